"""Electron-repulsion integrals in 60-digit arithmetic: slow, plain McMurchie-Davidson formulas to test against."""

from decimal import Decimal
from functools import cache

import numpy as np
from one_electron_reference import PI, boys

from jaxqc.integrals._shells import cartesian_powers, cartesian_to_spherical_matrix


def _hermite_row(i, j, p, pa, pb):
    """E_t^{ij}, t = 0 ... i + j, of one axis, without the factor of the product's decay."""

    @cache
    def e(i, j, t):
        if t < 0 or t > i + j:
            return Decimal(0)
        if i == j == 0:
            return Decimal(1)
        a, b, shift = (i - 1, j, pa) if i > 0 else (i, j - 1, pb)
        return e(a, b, t - 1) / (2 * p) + shift * e(a, b, t) + (t + 1) * e(a, b, t + 1)

    return np.array([e(i, j, t) for t in range(i + j + 1)])


class Charge:
    """The product of two basis functions as Hermite Gaussians: a list of (exponent, centre, coefficients[t, u, v])."""

    def __init__(self, f, g):
        self.terms = [self._primitive(f, a, ca, g, b, cb) for a, ca in f.primitives for b, cb in g.primitives]

    @staticmethod
    def _primitive(f, a, ca, g, b, cb):
        p = a + b
        center = [(a * x + b * y) / p for x, y in zip(f.center, g.center, strict=True)]
        distance2 = sum((x - y) ** 2 for x, y in zip(f.center, g.center, strict=True))
        decay = ca * cb * (-a * b / p * distance2).exp()
        size = f.l + g.l + 1
        total = np.full((size, size, size), Decimal(0))

        @cache
        def row(axis, i, j):
            return _hermite_row(i, j, p, center[axis] - f.center[axis], center[axis] - g.center[axis])

        for powers_f, wf in f.terms:
            for powers_g, wg in g.terms:
                x, y, z = (row(k, powers_f[k], powers_g[k]) for k in range(3))
                block = decay * wf * wg * x[:, None, None] * y[None, :, None] * z[None, None, :]
                total[: len(x), : len(y), : len(z)] += block
        return p, center, total


class Function:
    """One basis function: terms (powers, weight) times a sum over primitives (exponent, coefficient)."""

    def __init__(self, shells, shell, component, cart):
        self.l = shells.ls[shell]
        self.center = [Decimal(float(x)) for x in shells.centers[shell]]
        span = range(shells.prim_offsets[shell], shells.prim_offsets[shell + 1])
        self.primitives = [(Decimal(float(shells.exponents[k])), Decimal(float(shells.coefficients[k]))) for k in span]
        powers = cartesian_powers(self.l)
        if cart:
            self.terms = [(powers[component], Decimal(1))]
        else:
            column = cartesian_to_spherical_matrix(self.l)[:, component]
            self.terms = [(powers[k], Decimal(float(column[k]))) for k in np.flatnonzero(column)]


def _derivatives(size, alpha, separation):
    """R_tuv of the McMurchie-Davidson scheme for t + u + v < size."""
    argument = alpha * sum(x * x for x in separation)
    auxiliary = [np.full((size, size, size), Decimal(0)) for _ in range(size)]
    value = boys(size - 1, argument)
    decay = (-argument).exp()
    for m in range(size - 1, -1, -1):
        auxiliary[m][0, 0, 0] = (-2 * alpha) ** m * value
        if m:
            value = (2 * argument * value + decay) / (2 * m - 1)
    for total in range(1, size):
        for m in range(size - total):
            low, high = auxiliary[m + 1], auxiliary[m]
            for t in range(total + 1):
                for u in range(total - t + 1):
                    place = [t, u, total - t - u]
                    axis = int(np.argmax(place))
                    n = place[axis]
                    one, two = list(place), list(place)
                    one[axis] -= 1
                    two[axis] -= 2
                    value_here = separation[axis] * low[tuple(one)]
                    if n > 1:
                        value_here += (n - 1) * low[tuple(two)]
                    high[tuple(place)] = value_here
    return auxiliary[0]


def integral(bra, ket):
    """(ab|cd) of two charges."""
    total = Decimal(0)
    for p, center_p, e in bra.terms:
        for q, center_q, f in ket.terms:
            n, m = e.shape[0], f.shape[0]
            separation = [x - y for x, y in zip(center_p, center_q, strict=True)]
            r = _derivatives(n + m - 1, p * q / (p + q), separation)
            value = Decimal(0)
            for t, u, v in zip(*np.nonzero(f), strict=True):
                sign = -1 if (t + u + v) % 2 else 1
                value += sign * f[t, u, v] * np.sum(e * r[t : t + n, u : u + n, v : v + n])
            total += value * 2 * PI**2 * PI.sqrt() / (p * q * (p + q).sqrt())
    return total
