"""One-electron integrals over Cartesian primitives in 60-digit arithmetic: slow, plain formulas to test against."""

from decimal import Decimal, getcontext
from functools import cache
from math import comb

getcontext().prec = 60

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def boys(order, argument):
    """F_m(T) for one T, by its all-positive series, or, where exp(-T) is below 1e-60 of it, by its asymptote."""
    t = Decimal(argument)
    if t > 250:
        value = (PI / t).sqrt() / 2
        for m in range(order):
            value *= Decimal(2 * m + 1) / (2 * t)
        return value
    term = Decimal(1) / (2 * order + 1)
    total, i = term, 0
    while term > total * Decimal("1e-58"):
        i += 1
        term *= 2 * t / (2 * order + 2 * i + 1)
        total += term
    return (-t).exp() * total


def _double_factorial(n):
    value = 1
    for k in range(n, 1, -2):
        value *= k
    return value


def _power(x, n):
    return x**n if n else Decimal(1)  # Decimal refuses 0**0


def line(i, j, p, pa, pb):
    """int (x - A)^i (x - B)^j exp(-p (x - P)^2) dx, by the binomial theorem."""
    total = Decimal(0)
    for k in range(i + 1):
        for m in range(j + 1):
            n = k + m
            if n % 2 == 0:
                moment = _double_factorial(n - 1) / (2 * p) ** (n // 2)
                total += comb(i, k) * comb(j, m) * _power(pa, i - k) * _power(pb, j - m) * moment
    return total * (PI / p).sqrt()


class Pair:
    """Two primitives: exponents and centres as floats, taken as exact."""

    def __init__(self, a, center_a, b, center_b):
        self.a, self.b = Decimal(float(a)), Decimal(float(b))
        self.p = self.a + self.b
        self.ra = [Decimal(float(x)) for x in center_a]
        self.rb = [Decimal(float(x)) for x in center_b]
        self.center = [(self.a * x + self.b * y) / self.p for x, y in zip(self.ra, self.rb, strict=True)]
        r2 = sum((x - y) ** 2 for x, y in zip(self.ra, self.rb, strict=True))
        self.decay = (-self.a * self.b / self.p * r2).exp()

    def line(self, d, i, j):
        if i < 0 or j < 0:
            return Decimal(0)
        return line(i, j, self.p, self.center[d] - self.ra[d], self.center[d] - self.rb[d])

    def overlap(self, powers_a, powers_b):
        x, y, z = (self.line(d, powers_a[d], powers_b[d]) for d in range(3))
        return self.decay * x * y * z

    def kinetic(self, powers_a, powers_b):
        s = [self.line(d, powers_a[d], powers_b[d]) for d in range(3)]
        total = Decimal(0)
        for d in range(3):
            i, j = powers_a[d], powers_b[d]
            t = 4 * self.b**2 * self.line(d, i, j + 2) - 2 * self.b * (2 * j + 1) * s[d]
            t += j * (j - 1) * self.line(d, i, j - 2)
            rest = s[(d + 1) % 3] * s[(d + 2) % 3]
            total -= t * rest / 2
        return self.decay * total

    def _hermite(self, d, i, j):
        """E_t^{ij}, t = 0 ... i + j, of axis d."""

        @cache
        def e(i, j, t):
            if t < 0 or t > i + j:
                return Decimal(0)
            if i == j == 0:
                return Decimal(1)
            a, b, shift = (i - 1, j, self.ra) if i > 0 else (i, j - 1, self.rb)
            return e(a, b, t - 1) / (2 * self.p) + (self.center[d] - shift[d]) * e(a, b, t) + (t + 1) * e(a, b, t + 1)

        return [e(i, j, t) for t in range(i + j + 1)]

    def nuclear(self, powers_a, powers_b, point):
        """(a| 1/|r - point| |b)"""
        pc = [x - Decimal(float(c)) for x, c in zip(self.center, point, strict=True)]
        argument = self.p * sum(x * x for x in pc)

        @cache
        def r(t, u, v, m):
            if t < 0 or u < 0 or v < 0:
                return Decimal(0)
            if t == u == v == 0:
                return (-2 * self.p) ** m * boys(m, argument)
            if t > 0:
                return (t - 1) * r(t - 2, u, v, m + 1) + pc[0] * r(t - 1, u, v, m + 1)
            if u > 0:
                return (u - 1) * r(t, u - 2, v, m + 1) + pc[1] * r(t, u - 1, v, m + 1)
            return (v - 1) * r(t, u, v - 2, m + 1) + pc[2] * r(t, u, v - 1, m + 1)

        ex, ey, ez = (self._hermite(d, powers_a[d], powers_b[d]) for d in range(3))
        total = sum(
            ex[t] * ey[u] * ez[v] * r(t, u, v, 0)
            for t in range(len(ex))
            for u in range(len(ey))
            for v in range(len(ez))
        )
        return 2 * PI / self.p * self.decay * total
