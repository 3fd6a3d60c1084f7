"""Matrix elements between configurations (Slater-Condon rules) in plain JAX.

A configuration is alpha creators, then beta creators, each in rising order, on the vacuum, as in PySCF. So signs factor
by spin: moving an electron from p to a gives (-1)^n with n the electrons of its spin strictly between p and a.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxqc.nnqs._bits import unpack


@jax.jit
def diagonal(ham, keys) -> jax.Array:
    """Energies <i|H|i> of configurations.

    E_0 + sum_p n_p h_pp + 1/2 sum_pq [n_p n_q (pp|qq) - sum_s n_ps n_qs (pq|qp)], with n = n_alpha + n_beta.

    Args:
        ham: `Hamiltonian`.
        keys: (n, words) uint64.

    Returns:
        (n,) Hartree; rows that are sentinels have no meaning.
    """
    occupied = unpack(keys, ham.norb).astype(jnp.float64)
    total = occupied[:, 0] + occupied[:, 1]
    coulomb = jnp.einsum("ppqq->pq", ham.two)
    exchange = jnp.einsum("pqqp->pq", ham.two)
    repulsion = jnp.sum((total @ coulomb) * total, axis=-1)
    like_spins = jnp.sum((occupied @ exchange) * occupied, axis=(-2, -1))
    return ham.constant + total @ jnp.diagonal(ham.one) + 0.5 * (repulsion - like_spins)


@jax.jit
def element(ham, key_i, key_j) -> jax.Array:
    """Matrix elements <i|H|j>, zero where more than two electrons differ.

    Args:
        ham: `Hamiltonian`; the result is differentiable with respect to its integrals.
        key_i, key_j: (n, words) uint64.

    Returns:
        (n,) Hartree.
    """
    one, two = ham.one, ham.two
    occ_i, occ_j = unpack(key_i, ham.norb), unpack(key_j, ham.norb)
    moves = moves_between(occ_i, occ_j)
    moved, first, first_to = moves.moved, moves.first, moves.first_to
    spin = moves.spin[:, None]
    p, q, a, b = (moves.of_spin(x) for x in (first, moves.last, first_to, moves.last_to))
    sign_first, sign_last = moves.sign_first, moves.sign_last
    coulomb = jnp.einsum("paqq->paq", two)
    exchange = jnp.einsum("pqqa->paq", two)
    mine = jnp.take_along_axis(occ_i, spin[:, :, None], axis=1)[:, 0].astype(jnp.float64)
    total = jnp.sum(occ_i, axis=1).astype(jnp.float64)
    # The electron that moves is counted in both sums, which cancel for it: (pa|pp) - (pp|pa) = 0.
    single = one[p, a] + jnp.sum(coulomb[p, a] * total - exchange[p, a] * mine, axis=-1)
    single = moves.of_spin(sign_first) * single
    like = moves.of_spin(sign_first) * moves.of_spin(sign_last) * (two[p, a, q, b] - two[p, b, q, a])
    unlike = sign_first[:, 0] * sign_first[:, 1] * two[first[:, 0], first_to[:, 0], first[:, 1], first_to[:, 1]]

    number = jnp.sum(moved, axis=-1)
    value = jnp.where(number == 0, diagonal(ham, key_i), 0.0)
    value = jnp.where(number == 1, single, value)
    double = jnp.where(moved[:, 0] == 1, unlike, like)
    value = jnp.where(number == 2, double, value)
    return jnp.where(moves.same_numbers, value, 0.0)


class Moves(NamedTuple):
    """What tells configurations i and j apart: up to two electrons of each spin that move, (n, 2) each.

    Attributes:
        moved: how many electrons move.
        first, last: the lowest and the highest orbital that is left.
        first_to, last_to: the lowest and the highest that is entered.
        sign_first, sign_last: of moving the first electron, and then the last one in what that leaves.
        same_numbers: (n,) whether i and j have the same numbers of electrons.
    """

    moved: jax.Array
    first: jax.Array
    last: jax.Array
    first_to: jax.Array
    last_to: jax.Array
    sign_first: jax.Array
    sign_last: jax.Array
    same_numbers: jax.Array

    @property
    def spin(self) -> jax.Array:
        """(n,) int32: the spin that moves, where only one does."""
        return (self.moved[:, 1] > 0).astype(jnp.int32)

    def of_spin(self, x) -> jax.Array:
        """(n,) what (n, 2) has for that spin."""
        return jnp.take_along_axis(x, self.spin[:, None], axis=1)[:, 0]


def moves_between(occ_i, occ_j) -> Moves:
    """From occupations i to occupations j, (n, 2, norb) each."""
    left, entered = occ_i & ~occ_j, occ_j & ~occ_i
    moved = jnp.sum(left, axis=-1)
    first, last = jnp.argmax(left, axis=-1), _last(left)
    first_to, last_to = jnp.argmax(entered, axis=-1), _last(entered)
    sign_first = _sign(occ_i, first, first_to)
    sign_last = _sign(_move(occ_i, first, first_to), last, last_to)
    same_numbers = jnp.all(moved == jnp.sum(entered, axis=-1), axis=-1)
    return Moves(moved, first, last, first_to, last_to, sign_first, sign_last, same_numbers)


def _last(mask):
    return mask.shape[-1] - 1 - jnp.argmax(mask[..., ::-1], axis=-1)


def _sign(occupied, start, end):
    """(-1)^(electrons strictly between two orbitals), float64."""
    orbital = jnp.arange(occupied.shape[-1])
    low, high = jnp.minimum(start, end)[..., None], jnp.maximum(start, end)[..., None]
    crossed = jnp.sum(occupied & (orbital > low) & (orbital < high), axis=-1)
    return 1.0 - 2.0 * (crossed % 2).astype(jnp.float64)


def _move(occupied, start, end):
    orbital = jnp.arange(occupied.shape[-1])
    return (occupied & (orbital != start[..., None])) | (orbital == end[..., None])
