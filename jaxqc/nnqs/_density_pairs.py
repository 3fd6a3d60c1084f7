"""Density matrices in plain JAX, from all pairs of configurations of a set that differ by one or two electrons."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import unpack
from jaxqc.nnqs._slater_condon import moves_between
from jaxqc.nnqs._sparse import sparse_above
from jaxqc.nnqs._tables import tables_of

_BATCH = 1 << 18  # pairs
_UNIT = 2.0**58  # of sums, which are made in whole numbers: GPUs add in any order, and the bits must not depend on it


def density_from_pairs(ham, keys, count, bra, ket) -> tuple[jax.Array, jax.Array]:
    """`density_matrices` of vectors (n,) on the first `count` of sorted keys."""
    if int(count) == 0:
        return jnp.zeros((ham.norb,) * 2), jnp.zeros((ham.norb,) * 4)
    # Each sum of products of normalised coefficients is at most 1 for one excitation of spin orbitals.
    scales = [jnp.maximum(jnp.linalg.norm(vector), 1e-300) for vector in (bra, ket)]
    bra, ket = bra / scales[0], ket / scales[1]
    matrix = sparse_above(ham, keys, count, tables_of(ham, complete=True), -1.0)
    pairs, norb = int(matrix.row_start[-1]), ham.norb
    sums = [jnp.zeros(norb**k, jnp.int64) for k in (2, 3, 3, 4)]
    for start in range(0, pairs, _BATCH):
        sums = _add_pairs(sums, keys, bra, ket, matrix.row_start, matrix.columns, jnp.int64(start), norb=norb)
    dm1, dm2 = _assembled(sums, keys, bra * ket, norb=norb)
    scale = scales[0] * scales[1]
    return scale * dm1, scale * dm2


@partial(jax.jit, static_argnames="norb", donate_argnums=0)
def _add_pairs(sums, keys, bra, ket, row_start, columns, start, *, norb):
    """Adds pairs i, j = rows, columns from `start` on. The sums are of w = sign bra_j ket_i:

    (a, p) of moving p to a; (a, p, r) of the same times the occupation of r, of both spins and of the same spin; and
    (a, p, b, q) of moving p to a and q to b.
    """
    at = start + jnp.arange(_BATCH, dtype=jnp.int64)
    used = at < row_start[-1]
    i = jnp.minimum(jnp.searchsorted(row_start, at, side="right").astype(jnp.int32) - 1, keys.shape[0] - 1)
    j = columns[jnp.minimum(at, columns.shape[0] - 1)]
    occ_i = unpack(keys[i], norb)
    moves = moves_between(occ_i, unpack(keys[j], norb))
    p, q, a, b = (moves.of_spin(x) for x in (moves.first, moves.last, moves.first_to, moves.last_to))
    sign, then = moves.of_spin(moves.sign_first), moves.of_spin(moves.sign_last)
    number = jnp.sum(moves.moved, axis=1)
    unlike = moves.moved[:, 0] == 1
    weight = jnp.where(used, bra[j] * ket[i], 0.0)
    one, total, mine, two = sums

    single = jnp.where(number == 1, weight * sign, 0.0)
    place = a * norb + p
    stay = occ_i & (jnp.arange(norb) != p[:, None, None])
    of_spin = jnp.take_along_axis(stay, moves.spin[:, None, None], axis=1)[:, 0]
    # The orbital that is left may hold an electron of the other spin, and stays occupied by it.
    other = jnp.take_along_axis(occ_i, 1 - moves.spin[:, None, None], axis=1)[:, 0]
    one = one.at[place].add(_whole(single))
    rows = place[:, None] * norb + jnp.arange(norb)
    total = total.at[rows].add(_whole(single[:, None] * (of_spin.astype(jnp.float64) + other.astype(jnp.float64))))
    mine = mine.at[rows].add(_whole(single[:, None] * of_spin.astype(jnp.float64)))

    def quadruple(a, p, b, q):
        return ((a * norb + p) * norb + b) * norb + q

    like = jnp.where((number == 2) & ~unlike, weight * sign * then, 0.0)
    first, to = moves.first, moves.first_to
    both = quadruple(to[:, 0], first[:, 0], to[:, 1], first[:, 1])
    signs = moves.sign_first[:, 0] * moves.sign_first[:, 1]
    mixed = jnp.where((number == 2) & unlike, weight * signs, 0.0)
    two = two.at[jnp.where(unlike, both, quadruple(a, p, b, q))].add(_whole(mixed + like))
    two = two.at[quadruple(a, q, b, p)].add(-_whole(like))
    return [one, total, mine, two]


def _whole(x):
    return jnp.round(x * _UNIT).astype(jnp.int64)


@partial(jax.jit, static_argnames="norb")
def _assembled(sums, keys, diagonal, *, norb):
    one, total, mine, two = (s.astype(jnp.float64) / _UNIT for s in sums)
    occupied = unpack(keys, norb).astype(jnp.float64)
    alpha, beta = occupied[:, 0], occupied[:, 1]
    like = sum(n.T @ (diagonal[:, None] * n) for n in (alpha, beta))
    unlike = alpha.T @ (diagonal[:, None] * beta)
    p, r = np.arange(norb)[:, None], np.arange(norb)
    dm1 = one.reshape(norb, norb).T + jnp.diag(jnp.diagonal(like))
    like = like - jnp.diag(jnp.diagonal(like))  # an electron does not meet itself
    # (a, p) with r that stays: a' p r' r and, of the same spin, -a' r r' p.
    half = two.reshape((norb,) * 4).at[:, :, r, r].add(total.reshape((norb,) * 3))
    exchanged = jnp.zeros((norb,) * 4).at[:, r, r, :].add(mine.reshape((norb,) * 3).transpose(0, 2, 1))
    half = half - exchanged
    half = half.at[p, p, r, r].add(0.5 * like + unlike).at[p, r, r, p].add(-0.5 * like)
    return dm1, half + half.transpose(2, 3, 0, 1)
