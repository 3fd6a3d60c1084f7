"""Selected CI without a network: the set grows by perturbative importance, the energy is extrapolated."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._checks import checked_count
from jaxqc._platform import on_gpu
from jaxqc.elements import shorten
from jaxqc.nnqs._bits import SENTINEL, Configurations, aufbau
from jaxqc.nnqs._coupling import check_epsilon, check_set, coarse_capacity, round_capacity
from jaxqc.nnqs._davidson import Eigenstates, states_on
from jaxqc.nnqs._density_matrices import density_matrices
from jaxqc.nnqs._extrapolate import State, other_threshold, points_of, spin_square_bound, states_of
from jaxqc.nnqs._first_set import all_there_are, first_set, states_followed
from jaxqc.nnqs._perturbation import MEMORY, ExactSum, checked_memory, contributions, exact_sum, external

_TIE = 1e-9  # relative difference up to which importances count as equal
_TOLERANCE = 1e-6  # of the norm of the residual, Hartree
_LEAST_GROWTH = 250  # configurations
_MOST_AT_ONCE = 1 << 20  # of which unused ones cost a GPU next to nothing


class Point(NamedTuple):
    """One stage of `selected_ci`: size of the set; E_CI, E_PT2 (Hartree) and <S^2> of the lowest state, and others."""

    size: int
    e_ci: float
    e_pt2: float
    spin_square: float
    excited: tuple[tuple[float, float, float], ...] = ()


class SelectedCI(NamedTuple):
    """The result of `selected_ci`.

    Attributes:
        e_ci: lowest energy on the set, Hartree, an upper bound of the exact one.
        e_pt2: perturbative correction, Hartree.
        e_extrapolated: E_CI where E_PT2 vanishes, Hartree, from a line through the last stages; no bound.
        error: estimate of the error of `e_extrapolated`, Hartree; see `State`.
        spin_square: <S^2> on the set.
        configurations: the set, sorted.
        vector: (capacity,) coefficients.
        complete: the states are exact. For one state: it is coupled to nothing outside of the set, whatever `epsilon`,
            so that E_CI is exact for the symmetry of what the set grew from. For more: no configuration is outside.
        history: one `Point` for each stage.
        states: a `State` for each of the `nroots`, by rising energy; the attributes above are of the first one.
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
    states: tuple[State, ...]

    def __repr__(self):
        numbers = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields[:5])
        size = int(self.configurations.count)
        return f"SelectedCI({numbers}, complete={self.complete}, {size} configurations, {len(self.states)} states)"


def selected_ci(
    ham,
    size: int = 10_000,
    *,
    epsilon: float = 1e-8,
    growth: float = 2.0,
    start=None,
    nroots: int = 1,
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
        start: `Configurations` or keys to begin with. The set grows by what is coupled to them: states are of their
            symmetries (irreducible representations) and no others. None begins with the lowest orbitals occupied, so
            that the state is the lowest of the symmetry of that; for several states singles and doubles of lowest
            energy are added, and all configurations are taken where `size` allows.
        nroots: how many of the lowest states, for each of which the set grows by an equal part. All have the spin
            projection of `ham`; `spin_square` tells multiplets apart. For one state, the lowest of the least spin
            grows, too, while a state of higher spin lies below it.
        memory: bytes for the perturbation theory, 16 KiB or more; where it needs more it works in parts.
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
    given = aufbau(ham.norb, ham.nalpha, ham.nbeta) if start is None and hasattr(ham, "norb") else start
    keys, count = check_set(ham, given, name)
    check_epsilon(epsilon, name)
    size, nroots = checked_count(size, "size", name, 1), checked_count(nroots, "nroots", name, 1)
    memory = checked_memory(memory, name)
    if not isinstance(growth, int | float | np.integer | np.floating) or not 1.0 < growth < np.inf:
        raise ValueError(f"Argument growth of {name} must be a number above 1, but it is {shorten(growth)}.")
    if int(count) == 0:
        raise ValueError(f"The set that {name} was given to begin with is empty; give one configuration or more.")
    keys = first_set(ham, nroots, size, name) if start is None else np.asarray(keys[: int(count)])
    guess, points, history = None, [], []
    while True:
        configurations, size_now = padded_set(keys, _rows(len(keys), size)), len(keys)
        diagonalise = partial(_diagonalise, ham, configurations, guess)
        found = states_followed(diagonalise, ham, nroots, size_now, size)
        number = len(found.energies)
        _check_residual(float(np.max(np.asarray(found.residuals))))
        room = max(_LEAST_GROWTH, int(min(size, size_now * (growth - 1))))
        wanted = min(room, max(0, size - size_now))
        limits = epsilon, memory, -(-wanted // max(number, nroots))
        corrections, best = best_of_states(best_external, ham, configurations, found, *limits)
        points.append(points_of(found, corrections, guess))
        history.append(_point(size_now, found, corrections, nroots))
        if callback is not None:
            callback(history[-1])
        if len(best) == 0:
            break
        keys = np.concatenate([keys, best])
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        guess = np.zeros((number, _rows(len(keys), size)))
        known = np.pad(np.asarray(found.vectors)[:, :size_now], ((0, 0), (0, len(best))))
        guess[:, : len(keys)] = known[:, order]
    if number < nroots:
        raise ValueError(
            f"Argument nroots of {name} is {nroots}, but the configurations to begin with are coupled to no more than "
            f"{size_now} in all; begin with others (argument start) or ask for fewer states."
        )
    whole = size_now == all_there_are(ham)
    if not all(corrections):
        exact, _ = best_of_states(best_external, ham, configurations, found, 0.0, memory, 0)
    else:
        exact = corrections
    bound = spin_square_bound(ham) if nroots == 1 else None
    threshold, other = other_threshold(epsilon), None
    if threshold is not None and any(corrections):
        other, _ = best_of_states(best_external, ham, configurations, found, threshold, memory, 0)
    certain = whole or nroots == 1
    states = states_of(found, points, exact, 0.0 if certain else float("nan"), bound, other)[:nroots]
    first, complete = states[0], not any(exact[:nroots]) and certain
    return SelectedCI(*first[:5], configurations, first.vector, complete, tuple(history), states)


def _diagonalise(ham, configurations, guess, number):
    return states_on(ham, configurations.keys, configurations.count, number, guess, _TOLERANCE, 200)


def _rows(number, final):
    """Rows for so many configurations: on GPUs as for the last set, so that little is compiled for each stage."""
    return coarse_capacity(max(number, min(final, _MOST_AT_ONCE)) if on_gpu() else number)


def _point(size, found, corrections, nroots):
    e_ci, spin = (np.asarray(x).tolist() for x in (found.energies, found.spin_squares))
    lowest, *excited = zip(e_ci, corrections, spin, strict=True)
    return Point(size, *lowest, tuple(excited[: nroots - 1]))


def best_of_states(best, ham, configurations, found: Eigenstates, epsilon, memory, wanted):
    """E_PT2 of every state, and the keys of the `wanted` most important configurations outside for each."""
    corrections, keys, number = [], [], len(found.energies)
    for vector, energy in zip(found.vectors, np.asarray(found.energies).tolist(), strict=True):
        e_pt2, chosen = best(ham, configurations, vector, energy, epsilon, memory, wanted)
        corrections.append(e_pt2)
        keys.append(chosen)
    return corrections, keys[0] if number == 1 else np.unique(np.concatenate(keys), axis=0)


def _check_residual(residual):
    if not residual <= 10 * _TOLERANCE:
        raise RuntimeError(
            f"The diagonalisation in jaxqc.nnqs.selected_ci did not converge: its residual is {residual:.2e} Hartree. "
            "Begin with other configurations (argument start)."
        )


def padded_set(keys, rows=None) -> Configurations:
    """A set of sorted keys, an array of NumPy, with unused rows after them."""
    rows = round_capacity(len(keys)) if rows is None else rows
    padded = np.full((rows, keys.shape[1]), SENTINEL)
    padded[: len(keys)] = keys
    return jax.device_put(Configurations(padded, np.int32(len(keys))))  # pyright: ignore[reportArgumentType]


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
    total, kept, number = largest(terms, np.int32(wanted))
    size, number = min(coarse_capacity(int(number)), keys.shape[0]), int(number)
    terms, keys = _rows_kept(terms, keys, kept, size=size)
    return total, np.abs(np.asarray(terms)[:number]), np.asarray(keys)[:number]


@partial(jax.jit, static_argnames="size")
def _rows_kept(terms, keys, kept, *, size):
    rows = positions(kept, size=size)
    return terms[rows], keys[rows]


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
    """Natural orbitals of a small selected CI, by falling occupation, for `Hamiltonian.rotate`.

    They make the wave function of strongly correlated molecules more compact; labels of orbitals are kept.

    Args:
        ham: `Hamiltonian`.
        size: configurations of the set at which to end.

    Returns:
        (norb, norb) coefficients in the orbitals of `ham`.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
    """
    found = selected_ci(ham, size, epsilon=1e-5, growth=4.0)
    dm1 = np.asarray(density_matrices(ham, found.configurations, found.vector)[0])
    labels = np.asarray(ham.irreps or (0,) * ham.norb)
    # Labels of different representations move them apart: none are mixed, whatever is degenerate.
    apart = 4.0 * np.diag(np.unique(labels, return_inverse=True)[1])
    _, orbitals = np.linalg.eigh(np.where(labels[:, None] == labels, dm1, 0.0) + apart)
    occupations = np.einsum("pi,pq,qi->i", orbitals, dm1, orbitals)
    return orbitals[:, np.argsort(-occupations, kind="stable")]
