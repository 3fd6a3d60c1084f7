"""Energies of states where nothing is left outside of the set, from those on growing sets."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import search
from jaxqc.nnqs._davidson import Eigenstates

_SAME = 0.5  # squared overlap from which two vectors are of the same state
_CONTAMINATION = 0.5  # of <S^2> by other spins, up to which a state counts as one of the expected spin
_DISTINCT = 0.02  # relative difference of E_PT2 from which two sets tell more than one
_FINE = 1e-4  # Hartree; a threshold of E_PT2 beyond which even small sets miss much
_LOOSER = 3.0  # of fine thresholds, whose sums converge: what the next step down adds is less than what this leaves out
_NEGLIGIBLE = 1e-9  # Hartree; up to this one nothing of interest is missed


class State(NamedTuple):
    """A state on the final set.

    Attributes:
        e_ci: energy on the set, Hartree; an upper bound of that of the exact state in the same place.
        e_pt2: perturbative correction, Hartree.
        e_extrapolated: E_CI where E_PT2 vanishes, Hartree; no bound.
        error: estimate of the error of `e_extrapolated`, Hartree; 0 where the state is exact. What the threshold
            leaves out of E_PT2, seen by another threshold, is a part of it. It is nan where a lower
            state may have been missed: of another symmetry, where the set is coupled to nothing, but not all there is;
            of lower spin, where only one state was asked for and <S^2> exceeds the least possible by more than 0.5.
        spin_square: <S^2> on the set.
        residual: norm of H c - E c, Hartree.
        vector: (capacity,) coefficients c.
    """

    e_ci: float
    e_pt2: float
    e_extrapolated: float
    error: float
    spin_square: float
    residual: float
    vector: jax.Array


def points_of(found: Eigenstates, corrections, before) -> list[tuple[float, float, int]]:
    """E_CI, E_PT2 and the index on the set before, or -1, of every state on a set.

    Args:
        found: the states.
        corrections: E_PT2 of each of them.
        before: (k, capacity) vectors of the set before on this one, or None.
    """
    origin = [-1] * len(corrections)
    if before is not None:
        overlaps = np.asarray(before) @ np.asarray(found.vectors).T
        nearest = np.argmax(np.abs(overlaps), axis=0)
        origin = [int(j) if overlaps[j, k] ** 2 > _SAME else -1 for k, j in enumerate(nearest)]
    return list(zip(np.asarray(found.energies).tolist(), corrections, origin, strict=True))


def carried(keys, vectors, new_keys) -> jax.Array:
    """Vectors (k, capacity) on sorted keys, where these lie among other sorted keys."""
    place = jnp.minimum(search(new_keys, keys), new_keys.shape[0] - 1)
    inside = jnp.all(new_keys[place] == keys, axis=1)
    return jnp.zeros((len(vectors), new_keys.shape[0])).at[:, place].add(jnp.where(inside, vectors, 0.0))


def spin_square_bound(ham) -> float:
    """<S^2> up to which a state counts as one of the lowest spin that there is with these electrons."""
    spin = abs(ham.nalpha - ham.nbeta) / 2
    return spin * (spin + 1) + _CONTAMINATION


def other_threshold(epsilon) -> float | None:
    """With which E_PT2 is made once more to see what `epsilon` leaves out; None where that needs no look.

    Fine ones take long, 1e9 terms at 1e-6 Hartree and 1e6 configurations of Cr2, and a tenth of them longer than all
    that was before.
    """
    if epsilon <= _NEGLIGIBLE:
        return None
    return _LOOSER * epsilon if epsilon <= _FINE / 10 else min(epsilon / 10, _FINE)


def states_of(found: Eigenstates, points, exact, uncoupled_error, spin_bound=None, other=None) -> tuple[State, ...]:
    """The states on the last set.

    Args:
        found: what was found there.
        points: `points_of` all sets.
        exact: E_PT2 without a threshold of each state that has none with it; others are left out.
        uncoupled_error: of states that are coupled to nothing, Hartree.
        spin_bound: <S^2> beyond which errors are nan; None for any.
        other: E_PT2 of each state with `other_threshold`, or None.
    """
    states = []
    for k in range(len(points[-1])):
        series = _series(points, k)
        e_ci, e_pt2 = series[-1]
        if e_pt2 == 0.0:
            e_pt2 = exact[k]
            value = (e_ci, uncoupled_error) if e_pt2 == 0.0 else extrapolate([(e_ci, e_pt2)])
        else:
            value, error = extrapolate(series)
            value = value, error + (0.0 if other is None else abs(other[k] - e_pt2))
        spin_square = float(found.spin_squares[k])
        if e_pt2 != 0.0 and spin_bound is not None and spin_square > spin_bound:
            value = value[0], float("nan")
        states.append(State(e_ci, e_pt2, *value, spin_square, float(found.residuals[k]), found.vectors[k]))
    return tuple(states)


def _series(points, k):
    """(E_CI, E_PT2) of a state of the last set, from the first one on that has it."""
    series = []
    for of_set in reversed(points):
        e_ci, e_pt2, k = of_set[k]
        series.append((e_ci, e_pt2))
        if k < 0:
            break
    return series[::-1]


def extrapolate(points) -> tuple[float, float]:
    """E_CI at E_PT2 = 0 from (E_CI, E_PT2) of growing sets, and an estimate of its error, Hartree.

    The value is a line through the last three points, weighted by 1 / E_PT2^2: what is small follows the line best.
    The error is the largest of: the difference from the parabola through them, from the line through the three before
    the last or, where there are only three points, from E_CI + E_PT2, and a twentieth of the extrapolated part.
    Points with E_PT2 > 0 are left out, and those that differ from a later one by less than 2 % of E_PT2. With less than
    three, or where the line ends outside of E_CI + 2 E_PT2 to E_CI of the last point, the value is E_CI + E_PT2, and
    its error |E_PT2|.
    """
    points = np.asarray(points, float).reshape(-1, 2)
    last_ci, last_pt2 = (float(x) for x in points[-1])
    corrected = last_ci + last_pt2, abs(last_pt2)
    points = _distinct(points[points[:, 1] <= 0.0])[-4:]
    if last_pt2 > 0.0 or len(points) < 3:
        return corrected
    points = points[np.argsort(-np.abs(points[:, 1]), kind="stable")]
    e_ci, e_pt2 = points.T
    value = _line(points[-3:])
    if not last_ci + 2 * last_pt2 <= value <= last_ci:
        return corrected
    before = e_ci[-1] + e_pt2[-1] if len(points) < 4 else _line(points[:-1])
    estimates = [0.05 * abs(value - e_ci[-1]), abs(value - before), abs(value - _line(points[-3:], 2))]
    return value, float(max(estimates))


def _distinct(points):
    """Points in their order without those that equal a later one."""
    kept = []
    for point in points[::-1]:
        if all(abs(point[1] - other[1]) > _DISTINCT * max(abs(point[1]), abs(other[1])) for other in kept):
            kept.append(point)
    return np.reshape(kept[::-1], (-1, 2))


def _line(points, degree=1):
    e_ci, e_pt2 = points.T
    scaled = e_pt2 / np.max(np.abs(e_pt2))
    weights = 1 / np.maximum(np.abs(scaled), 1e-6) ** 2
    return float(np.polynomial.polynomial.polyfit(scaled, e_ci, min(degree, len(points) - 1), w=weights)[0])
