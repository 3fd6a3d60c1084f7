"""Tables of excitations: doubles sorted by magnitude, so that a threshold keeps a prefix of each row."""

import weakref
from typing import NamedTuple

import jax
import numpy as np


class Tables(NamedTuple):
    """What generating excitations needs, a pytree of arrays. Rows of doubles are in compressed form.

    Attributes:
        one: (norb, norb) h_pa.
        coulomb: (norb, norb, norb) (pa|qq).
        like: (norb, norb, norb) (pa|qq) - (pq|qa).
        bound: (norb, norb) an upper bound of the magnitude of single excitations p to a.
        like_start, like_target, like_value: rows of pairs p < q of one spin; targets a < b as a + 65536 b, int32;
            (pa|qb) - (pb|qa), largest magnitude first.
        unlike_start, unlike_target, unlike_value: rows p norb + q of alpha p and beta q; (pa|qb).
    """

    one: jax.Array
    coulomb: jax.Array
    like: jax.Array
    bound: jax.Array
    like_start: jax.Array
    like_target: jax.Array
    like_value: jax.Array
    unlike_start: jax.Array
    unlike_target: jax.Array
    unlike_value: jax.Array


_cache: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def tables_of(ham, complete: bool = False) -> Tables:
    """The tables of a Hamiltonian, made once for each; `complete` keeps elements that are zero."""
    kept = _cache.setdefault(ham, {})
    if complete not in kept:
        kept[complete] = excitation_tables(np.asarray(ham.one), np.asarray(ham.two), -1.0 if complete else 0.0)
    return kept[complete]


def excitation_tables(one, two, cut: float = 0.0) -> Tables:
    """Tables of all excitations whose elements are larger than `cut` in magnitude."""
    norb = one.shape[0]
    coulomb = np.einsum("paqq->paq", two)
    like = coulomb - np.einsum("pqqa->paq", two)
    bound = np.abs(one) + np.sum(np.abs(coulomb) + np.abs(like), axis=-1)
    p, q = np.triu_indices(norb, 1)

    def like_row(row):
        value = two[p[row], :, q[row], :]
        value = (value - value.T)[p, q]
        shared = (p == p[row]) | (p == q[row]) | (q == p[row]) | (q == q[row])  # occupied by the pair itself
        return np.where(shared, np.nan, value)

    def unlike_row(row):
        i, j = divmod(row, norb)
        value = two[i, :, j, :].copy()
        value[i, :] = value[:, j] = np.nan
        return value.ravel()

    a, b = np.divmod(np.arange(norb * norb), norb)
    like_rows = _sorted_rows(like_row, p.size, p | q << 16, cut)
    unlike_rows = _sorted_rows(unlike_row, norb * norb, a | b << 16, cut)
    arrays = (one, coulomb, like, bound, *like_rows, *unlike_rows)
    return Tables(*(jax.device_put(np.ascontiguousarray(x)) for x in arrays))


def _sorted_rows(row_values, count, codes, cut):
    """Starts of rows, codes and values of what is larger than `cut`, each row by falling magnitude."""
    sizes, targets, values = [0], [np.zeros(0, np.int32)], [np.zeros(0)]
    for row in range(count):
        value = row_values(row)
        kept = np.flatnonzero(np.abs(value) > cut)  # not where NaN
        kept = kept[np.argsort(-np.abs(value[kept]), kind="stable")]
        sizes.append(kept.size)
        targets.append(codes[kept].astype(np.int32))
        values.append(value[kept])
    return np.cumsum(sizes).astype(np.int32), np.concatenate(targets), np.concatenate(values)
