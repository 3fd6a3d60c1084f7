"""Selected CI without a network: the set grows by perturbative importance, the energy is extrapolated."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import on_gpu
from jaxqc.elements import shorten
from jaxqc.nnqs._bits import SENTINEL, Configurations, aufbau
from jaxqc.nnqs._coupling import check_epsilon, check_set, round_capacity
from jaxqc.nnqs._davidson import states_on
from jaxqc.nnqs._density_matrices import density_matrices
from jaxqc.nnqs._perturbation import MEMORY, ExactSum, contributions, exact_sum, external

_TIE = 1e-9  # relative difference up to which importances count as equal
_TOLERANCE = 1e-6  # of the norm of the residual, Hartree
_LEAST_GROWTH = 250  # configurations


class Point(NamedTuple):
    """One stage of `selected_ci`: size of the set, E_CI and E_PT2 in Hartree, <S^2>."""

    size: int
    e_ci: float
    e_pt2: float
    spin_square: float


class SelectedCI(NamedTuple):
    """The result of `selected_ci`.

    Attributes:
        e_ci: lowest energy on the set, Hartree, an upper bound of the exact one.
        e_pt2: perturbative correction, Hartree.
        e_extrapolated: E_CI where E_PT2 vanishes, Hartree, from a line through the last stages; no bound.
        error: estimate of the error of `e_extrapolated`, Hartree.
        spin_square: <S^2> on the set.
        configurations: the set, sorted.
        vector: (capacity,) coefficients.
        complete: nothing outside is coupled to the set any more: E_CI is exact for the symmetry of the vector.
        history: one `Point` for each stage.
    """

    e_ci: float
    e_pt2: float
    e_extrapolated: float
    error: float
    spin_square: float
    configurations: Configurations
    vector: jax.Array
    complete: bool
    history: tuple[Point, ...]


def selected_ci(
    ham,
    size: int = 10_000,
    *,
    epsilon: float = 1e-8,
    growth: float = 2.0,
    start=None,
    memory: int = MEMORY,
    callback=None,
) -> SelectedCI:
    """Grows a set of configurations by perturbative importance and diagonalises the Hamiltonian on it (CIPSI).

    In each stage the configurations k of largest (sum_i H_ki c_i)^2 / |E - H_kk| join (Huron, Malrieu and Rancurel,
    J. Chem. Phys. 58, 5745 (1973), doi:10.1063/1.1679199). Those of equal importance join together, so that spin
    partners are not torn apart; the set can become larger than `size` by them.

    Args:
        ham: `Hamiltonian`.
        size: of the set at which to end.
        epsilon: terms |H_ki c_i| up to it are left out, Hartree.
        growth: the factor by which the set grows in one stage, above 1.
        start: `Configurations` or keys to begin with; None for the one with the lowest orbitals occupied.
        memory: bytes for the perturbation theory; where it needs more it works in parts.
        callback: function that is called with the `Point` of each stage.

    Raises:
        TypeError, ValueError: an argument is not what it must be.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
        >>> found = jaxqc.nnqs.selected_ci(jaxqc.nnqs.Hamiltonian.from_molecule(mol))
        >>> round(found.e_ci, 5)
        -1.13728
    """
    name = "jaxqc.nnqs.selected_ci"
    start = aufbau(ham.norb, ham.nalpha, ham.nbeta) if start is None and hasattr(ham, "norb") else start
    keys, count = check_set(ham, start, name)
    check_epsilon(epsilon, name)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"Argument size of {name} must be a whole number from 1 on, but it is {shorten(size)}.")
    if not isinstance(growth, int | float) or not 1.0 < growth < np.inf:
        raise ValueError(f"Argument growth of {name} must be a number above 1, but it is {shorten(growth)}.")
    if int(count) == 0:
        raise ValueError(f"The set that {name} was given to begin with is empty; give one configuration or more.")
    keys, guess, history = np.asarray(keys[: int(count)]), None, []
    while True:
        configurations = padded_set(keys)
        state = states_on(ham, configurations.keys, configurations.count, 1, guess, _TOLERANCE, 200)
        _check_residual(float(state.residuals[0]))
        e_ci, vector = float(state.energies[0]), state.vectors[0]
        room = max(_LEAST_GROWTH, int(len(keys) * (growth - 1)))
        wanted = min(room, max(0, size - len(keys)))
        e_pt2, best = best_external(ham, configurations, vector, e_ci, epsilon, memory, wanted)
        history.append(Point(len(keys), e_ci, e_pt2, float(state.spin_squares[0])))
        if callback is not None:
            callback(history[-1])
        if len(best) == 0:
            break
        keys, old = np.concatenate([keys, best]), len(keys)
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        guess = np.zeros((1, round_capacity(len(keys))))
        guess[0, : len(keys)] = np.concatenate([np.asarray(vector)[:old], np.zeros(len(best))])[order]
    complete = e_pt2 == 0.0
    value, error = (e_ci, 0.0) if complete else extrapolate([(p.e_ci, p.e_pt2) for p in history])
    return SelectedCI(
        e_ci, e_pt2, value, error, history[-1].spin_square, configurations, vector, complete, tuple(history)
    )


def extrapolate(points) -> tuple[float, float]:
    """E_CI at E_PT2 = 0 from (E_CI, E_PT2) of growing sets, and an estimate of its error, Hartree.

    The value is a line through the last three points. The error is the largest of: the difference from a parabola
    through the last four, from the line through the three before the last, and a twentieth of the extrapolated part.
    With one point the value is E_CI + E_PT2, and its error the half of E_PT2.
    """
    points = np.asarray(points, float).reshape(-1, 2)[-4:]
    points = points[np.argsort(-np.abs(points[:, 1]), kind="stable")]
    e_ci, e_pt2 = points.T
    if len(points) == 1 or np.ptp(e_pt2) < 1e-12:
        return float(e_ci[-1] + e_pt2[-1]), float(0.5 * abs(e_pt2[-1]))
    value = _line(points[-3:])
    estimates = [0.05 * abs(value - e_ci[-1])]
    if len(points) >= 3:
        estimates.append(abs(value - _line(points[-4:-1])))
    if len(points) == 4:
        estimates.append(abs(value - _line(points, 2)))
    return value, float(max(estimates))


def _line(points, degree=1):
    e_ci, e_pt2 = points.T
    scale = np.max(np.abs(e_pt2))
    return float(np.polynomial.polynomial.polyfit(e_pt2 / scale, e_ci, min(degree, len(points) - 1))[0])


def _check_residual(residual):
    if not residual <= 10 * _TOLERANCE:
        raise RuntimeError(
            f"The diagonalisation in jaxqc.nnqs.selected_ci did not converge: its residual is {residual:.2e} Hartree. "
            "Begin with other configurations (argument start)."
        )


def padded_set(keys):
    rows = round_capacity(len(keys))
    padded = np.full((rows, keys.shape[1]), SENTINEL)
    padded[: len(keys)] = keys
    return Configurations(jnp.asarray(padded), jnp.int32(len(keys)))


def best_external(ham, configurations, vector, energy, epsilon, memory, wanted):
    """E_PT2, and the keys of the `wanted` most important configurations outside, with all that equal the last one."""
    choose = _best_on_device if on_gpu() else _best_on_host

    def parts():
        for part in external(ham, configurations.keys, configurations.count, vector, epsilon, memory):
            yield choose(part.keys, contributions(part, energy), wanted)

    return best_of_parts(parts(), wanted, configurations.keys.shape[1])


def best_of_parts(parts, wanted, words):
    """The sum and the `wanted` best of parts, each of which is an exact sum, magnitudes and keys."""
    total, keys, scores = ExactSum(), np.zeros((0, words), np.uint64), np.zeros(0)
    for part_total, score, found in parts:
        total.add(part_total)
        scores, keys = np.concatenate([scores, score]), np.concatenate([keys, found])
        if wanted < len(scores):
            limit = np.partition(scores, len(scores) - wanted)[len(scores) - wanted] if wanted else np.inf
            kept = scores >= limit * (1 - _TIE)
            keys, scores = keys[kept], scores[kept]
    return float(total), keys


def _best_on_host(keys, terms, wanted):
    """The sum of terms, and all that are not 0: their magnitudes and keys."""
    total, terms = exact_sum(terms), np.asarray(terms)
    found = np.flatnonzero(terms)
    return total, np.abs(terms[found]), np.asarray(keys)[found]


def _best_on_device(keys, terms, wanted):
    """The sum of terms, and the `wanted` largest ones with all that equal the last one."""
    total, kept, number = largest(terms, jnp.int32(wanted))
    size, number = min(round_capacity(int(number)), keys.shape[0]), int(number)
    rows = positions(kept, size=size)
    return total, np.abs(np.asarray(terms[rows])[:number]), np.asarray(keys[rows])[:number]


@jax.jit
def largest(terms, wanted):
    """Their exact sum, which of them are among the `wanted` largest in magnitude or equal the last one, how many."""
    score = jnp.abs(terms)
    # Numbers that are not negative come in the order of their bits, which are sorted faster.
    rising = jax.lax.sort(jax.lax.bitcast_convert_type(score, jnp.uint64))
    at = jnp.clip(score.shape[0] - wanted, 0, score.shape[0] - 1)
    limit = jnp.where(wanted > 0, jax.lax.bitcast_convert_type(rising[at], jnp.float64), jnp.inf)
    kept = (score > 0) & (score >= limit * (1 - _TIE))
    return exact_sum(terms), kept, jnp.sum(kept, dtype=jnp.int32)


@partial(jax.jit, static_argnames="size")
def positions(kept, *, size):
    """The first `size` places that are kept, then zeros."""
    place = jnp.where(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, size)
    return jnp.zeros(size, jnp.int32).at[place].set(jnp.arange(kept.shape[0], dtype=jnp.int32), mode="drop")


def natural_orbitals(ham, size: int = 2000) -> np.ndarray:
    """(norb, norb) natural orbitals of a small selected CI in the orbitals of `ham`, by falling occupation."""
    found = selected_ci(ham, size, epsilon=1e-5)
    dm1 = np.asarray(density_matrices(ham, found.configurations, found.vector)[0])
    labels = np.asarray(ham.irreps or (0,) * ham.norb)
    # Labels of different representations move them apart: none are mixed, whatever is degenerate.
    apart = 4.0 * np.diag(np.unique(labels, return_inverse=True)[1])
    _, orbitals = np.linalg.eigh(np.where(labels[:, None] == labels, dm1, 0.0) + apart)
    occupations = np.einsum("pi,pq,qi->i", orbitals, dm1, orbitals)
    return orbitals[:, np.argsort(-occupations, kind="stable")]
