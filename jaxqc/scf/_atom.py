"""Spherically averaged atoms in a molecule's own basis: restricted Hartree-Fock with fractional occupations.

Radial functions live on a logarithmic grid, so an atom costs milliseconds of numpy and compiles nothing. The result is
a guess, hence grid errors of 1e-4 do not matter.
"""

from functools import lru_cache
from math import factorial

import numpy as np

_POINTS = 320
_LARGEST_L = 3
# Order in which subshells are filled (Madelung's rule): (n, l).
_FILLING = sorted(
    ((n, l) for n in range(1, 9) for l in range(min(n, _LARGEST_L + 1))), key=lambda s: (s[0] + s[1], s[0])
)


def configuration(number):
    """Electrons in s, p, d and f of a neutral atom by Madelung's rule, for example (4, 4, 0, 0) for oxygen."""
    counts = [0] * (_LARGEST_L + 1)
    for _, l in _FILLING:
        electrons = min(number, 4 * l + 2)
        counts[l] += electrons
        number -= electrons
    return tuple(counts)


@lru_cache(maxsize=512)
def atomic_density(number, shells):
    """Radial density matrices of a neutral atom.

    Args:
        number: nuclear charge.
        shells: tuple of (l, exponents, coefficients), the last two as tuples; coefficients before normalisation.

    Returns:
        dict from l to (indices of the shells with this l, (n, n) density matrix for one component m), electrons.

    Raises:
        numpy.linalg.LinAlgError: exponents and coefficients make no functions.
    """
    grid = _Grid(number)
    channels = {}
    for l, electrons in enumerate(configuration(number)):
        index = [k for k, shell in enumerate(shells) if shell[0] == l]
        if electrons and index:
            channels[l] = _Channel(grid, l, [shells[k] for k in index], electrons, number, index)
    if not channels:
        return {}
    for _ in _iterate(channels, grid):
        pass
    return {l: (tuple(c.index), c.density / (2 * l + 1)) for l, c in channels.items()}


class _Grid:
    """Points r = exp(x) with weights for integrals over r."""

    def __init__(self, number):
        x = np.linspace(np.log(1e-5 / number), np.log(80.0), _POINTS)
        self.r = np.exp(x)
        self.weights = (x[1] - x[0]) * self.r
        self.log_ratio = -np.abs(x[:, None] - x[None, :])

    def repulsion(self, k):
        """r_<^k / r_>^(k+1) with the weights of both points, (points, points)."""
        larger = np.maximum(self.r[:, None], self.r[None, :])
        return np.exp(k * self.log_ratio) / larger * self.weights[:, None] * self.weights[None, :]


class _Channel:
    """The functions of one angular momentum: r R(r) on the grid, one-electron matrices, occupations."""

    def __init__(self, grid, l, shells, electrons, number, index):
        r = grid.r
        values, slopes = [], []
        for _, exponents, coefficients in shells:
            a = np.asarray(exponents)
            # Up to a factor that all primitives of the shell share, their normalisation is a^((2l+3)/4).
            c = np.asarray(coefficients) * a ** ((2 * l + 3) / 4)
            gaussians = c[:, None] * np.exp(-a[:, None] * r**2)
            value = r ** (l + 1) * gaussians.sum(axis=0)
            slope = (l + 1) * r**l * gaussians.sum(axis=0) - 2 * r ** (l + 2) * (a[:, None] * gaussians).sum(axis=0)
            norm = np.sqrt(np.sum(grid.weights * value**2))
            values.append(value / norm)
            slopes.append(slope / norm)
        self.index, self.l = index, l
        self.values = np.array(values)
        slopes = np.array(slopes)
        weighted = self.values * grid.weights
        overlap = weighted @ self.values.T
        kinetic = 0.5 * (slopes * grid.weights) @ slopes.T + 0.5 * l * (l + 1) * (weighted / r**2) @ self.values.T
        self.hcore = kinetic - number * (weighted / r) @ self.values.T
        if not np.isfinite(self.hcore).all():
            raise np.linalg.LinAlgError("The functions of an atom are not finite.")  # which LAPACK would print
        s, u = np.linalg.eigh(overlap)
        self.transform = u[:, s > 1e-7] / np.sqrt(s[s > 1e-7])
        self.overlap = overlap
        # Whole subshells first, the rest of the electrons in the next one.
        full, rest = divmod(electrons, 4 * l + 2)
        occupations = [4 * l + 2] * full + [rest] * (rest > 0)
        self.occupations = np.array(occupations[: self.transform.shape[1]], dtype=float)
        self.fill(self.hcore)

    def fill(self, fock):
        """Occupies the lowest orbitals of a Fock matrix."""
        _, vectors = np.linalg.eigh(self.transform.T @ fock @ self.transform)
        self.orbitals = (self.transform @ vectors)[:, : len(self.occupations)]
        self.density = (self.orbitals * self.occupations) @ self.orbitals.T

    def error(self, fock):
        product = fock @ self.density @ self.overlap
        return self.transform.T @ (product - product.T) @ self.transform


def _fock_matrices(channels, grid, kernels):
    density = sum(np.einsum("ig,ij,jg->g", c.values, c.density, c.values) for c in channels.values())
    coulomb = (kernels[0] @ density) / grid.weights
    focks = {}
    for l, channel in channels.items():
        fock = channel.hcore + (channel.values * (grid.weights * coulomb)) @ channel.values.T
        for other, occupied in channels.items():
            for k in range(abs(l - other), l + other + 1, 2):
                weight = _three_j_squared(l, k, other)
                for orbital, electrons in zip(occupied.orbitals.T @ occupied.values, occupied.occupations, strict=True):
                    pair = channel.values * orbital
                    fock = fock - 0.5 * electrons * weight * (pair @ kernels[k] @ pair.T)
        focks[l] = fock
    return focks


def _iterate(channels, grid, cycles=30, tolerance=1e-4):
    """DIIS over all channels at once; yields the norm of the error after each cycle."""
    kernels = [grid.repulsion(k) for k in range(2 * max(channels) + 1)]
    history = []
    for _ in range(cycles):
        focks = _fock_matrices(channels, grid, kernels)
        error = np.concatenate([c.error(focks[l]).ravel() for l, c in channels.items()])
        history = [*history, (focks, error)][-6:]
        size = len(history)
        system = np.ones((size + 1, size + 1))
        system[:size, :size] = [[a @ b for _, a in history] for _, b in history]
        system[size, size] = 0.0
        weights = np.linalg.lstsq(system, np.eye(size + 1)[size], rcond=1e-14)[0][:size]
        for l, channel in channels.items():
            channel.fill(sum(w * f[l] for w, (f, _) in zip(weights, history, strict=True)))
        norm = float(np.linalg.norm(error))
        yield norm
        if norm < tolerance:
            return


def _three_j_squared(a, b, c):
    """Square of Wigner's 3j symbol (a b c; 0 0 0), for an even sum a + b + c."""
    g = (a + b + c) // 2
    triangle = factorial(2 * g - 2 * a) * factorial(2 * g - 2 * b) * factorial(2 * g - 2 * c) / factorial(2 * g + 1)
    return triangle * (factorial(g) / (factorial(g - a) * factorial(g - b) * factorial(g - c))) ** 2
