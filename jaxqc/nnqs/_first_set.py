"""The set from which several states grow: configurations of low energy, whatever their symmetry."""

from math import comb

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import all_configurations, aufbau, pack, padded_keys
from jaxqc.nnqs._coupling import round_capacity
from jaxqc.nnqs._davidson import Eigenstates
from jaxqc.nnqs._extrapolate import spin_square_bound
from jaxqc.nnqs._slater_condon import diagonal

_NUMBER = 300  # configurations
_PER_STATE = 20
_ABOVE = 2  # states that are followed above those that are asked for
_LOOKED_AT = 6  # of lowest energy, for one of lower spin
_SINGLES = 100  # from which doubles are made
_TIE = 1e-6  # Hartree


def all_there_are(ham) -> int:
    """How many configurations there are."""
    return comb(ham.norb, ham.nalpha) * comb(ham.norb, ham.nbeta)


def states_followed(diagonalise, ham, nroots: int, count: int, size: int) -> Eigenstates:
    """The states for which a set of `count` configurations grows to `size`; `diagonalise(number)` makes the lowest.

    While it grows the lowest of several states may not be those of the exact ones; some above them grow, too. If one
    state was asked for, and the lowest is of a higher spin than it must be, the lowest of those with the least spin
    grows beside it: on a set that is grown for a quintet alone, a singlet lies higher than it is.
    """
    growing = count < min(size, all_there_are(ham))
    found = diagonalise(min(nroots + _ABOVE * (growing and nroots > 1), count))
    bound = spin_square_bound(ham)
    if nroots > 1 or not growing or count == 1 or float(found.spin_squares[0]) <= bound:
        return found
    more = diagonalise(min(_LOOKED_AT, count))
    spins = np.asarray(more.spin_squares)
    lower = np.flatnonzero(spins <= bound)
    chosen = np.asarray([0, lower[0] if lower.size else 1 + np.argmin(spins[1:])])
    return jax.tree.map(lambda x: x[chosen], more)


def first_set(ham, nroots: int, size: int, name: str, label: str = "size") -> np.ndarray:
    """Sorted keys, (n, words), to begin with; `label` is what `size` of the final set is called in `name`.

    For one state it is the lowest configuration: what grows from it is of its symmetry. States of other symmetries are
    coupled to it by nothing, so that for more states singles and doubles of lowest energy are added. All
    configurations are taken where there are not more than `size`.

    Raises:
        ValueError: there are not that many states.
    """
    reference = np.asarray(aufbau(ham.norb, ham.nalpha, ham.nbeta))
    if nroots == 1:
        return reference
    total = all_there_are(ham)
    if nroots > min(total, size):
        of = f"there are only {total} configurations" if total <= size else f"argument {label} is {size}"
        raise ValueError(f"Argument nroots of {name} is {nroots}, but {of}; ask for fewer states.")
    if total <= size:
        return np.asarray(all_configurations(ham.norb, ham.nalpha, ham.nbeta).keys)
    number = min(size, max(_PER_STATE * nroots, min(_NUMBER, size // 2)))
    flips = _single_flips(ham)
    singles = reference ^ flips
    low = reference ^ _lowest(ham, singles, _SINGLES)
    one, other = np.triu_indices(len(low), 1)
    apart = np.all(low[one] & low[other] == 0, axis=1)
    doubles = np.unique(reference ^ low[one[apart]] ^ low[other[apart]], axis=0)
    if 1 + len(singles) <= number // 2:
        kept = np.concatenate([reference, singles, _lowest(ham, doubles, number - 1 - len(singles))])
    else:
        kept = np.concatenate([reference, _lowest(ham, np.concatenate([singles, doubles]), number - 1)])
    if nroots > len(kept):
        raise ValueError(
            f"Argument nroots of {name} is {nroots}, more than the {len(kept)} configurations to begin with; ask for "
            f"fewer states, or make argument {label} {total}, the number of all configurations."
        )
    return kept[np.lexsort(kept.T[::-1])]


def _single_flips(ham):
    """Bits that single excitations of the lowest configuration change, (n, words)."""
    bits = np.asarray(pack(np.eye(2 * ham.norb, dtype=bool).reshape(2, ham.norb, 2, ham.norb)))
    flips = [
        (spin[:n, None] ^ spin[None, n:]).reshape(-1, bits.shape[-1])
        for spin, n in zip(bits, (ham.nalpha, ham.nbeta), strict=True)
    ]
    return np.concatenate(flips)


def _lowest(ham, keys, number):
    """Those of lowest energy, with all that equal the last one: shells and spin partners are not torn apart."""
    if len(keys) <= number:
        return keys
    padded = padded_keys(jnp.asarray(keys), round_capacity(len(keys)))
    energies = np.asarray(diagonal(ham, padded))[: len(keys)]
    return keys[energies <= np.partition(energies, number - 1)[number - 1] + _TIE]
