r"""Energies of a wave function given by its log-amplitudes and phases on a set, and losses to train it with.

All are plain functions of `log_amplitude` and `phase`, in float64, to be composed with a network and differentiated:

    loss = lambda parameters: energy(*module.apply(parameters, occupations), links)

With psi_i = exp(log_amplitude_i + i phase_i), p_i = |psi_i|^2 / sum_S |psi|^2 and the local energies
E_i = sum_j H_ij psi_j / psi_i,

    projected:  j in S, the Rayleigh quotient on the set, an upper bound of the ground-state energy;
    connected:  j in all configurations coupled to i (arXiv:2604.15768, eq. 5). No bound, unless S is the whole space.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxqc._platform import on_gpu
from jaxqc.nnqs._bits import sorted_positions
from jaxqc.nnqs._mesh import gathered


class Links(NamedTuple):
    """Matrix elements H_ij between rows i of a set S and columns j, both positions in one list of n configurations.

    Attributes:
        rows, columns: (entries,) int32 positions, rows rising; unused entries have the value 0 and the row n.
        values: (entries,) Hartree.
        members: (n,) bool, which configurations of the list are in S. The others are coupled to S, or unused.
    """

    rows: jax.Array
    columns: jax.Array
    values: jax.Array
    members: jax.Array


@partial(jax.tree_util.register_dataclass)
@dataclass(frozen=True)
class SharedLinks:
    """`Links` over a mesh, for use within `jax.shard_map`.

    Attributes:
        rows: (entries,) int32, those of this device, rising, among its share of S; its length for unused entries.
        columns, values: (entries,) of this device, as in `Links`.
        places: (size,) int32 positions in the list of all rows of S, share by share; n for rows that are not used.
        members: (n,) bool.
        axis: of the mesh (static).
    """

    rows: jax.Array
    columns: jax.Array
    values: jax.Array
    places: jax.Array
    members: jax.Array
    axis: str = field(metadata={"static": True})


class Products(NamedTuple):
    """In the place of `Links`: products H psi that are known, (2, n) as of `local_products`, and members (n,)."""

    h_psi: jax.Array
    members: jax.Array


class Estimate(NamedTuple):
    """Energy of a wave function on a set.

    Attributes:
        energy: () Hartree.
        variance: () sum_i p_i |E_i - energy|^2, Hartree^2.
        weight: () sum of |psi|^2 over the set: the share of the norm that it holds, for a normalised psi.
    """

    energy: jax.Array
    variance: jax.Array
    weight: jax.Array


def _parts(log_amplitude, phase, members):
    """Real and imaginary part of psi, (2, n), with the largest |psi| of the set scaled to 1, and log of that scale."""
    log_amplitude = jnp.asarray(log_amplitude, jnp.float64)
    phase = jnp.asarray(phase, jnp.float64)
    top = jax.lax.stop_gradient(jnp.max(jnp.where(members, log_amplitude, -jnp.inf)))
    size = jnp.exp(log_amplitude - top)
    return jnp.stack([size * jnp.cos(phase), size * jnp.sin(phase)]), top


def local_products(log_amplitude, phase, links) -> tuple[jax.Array, jax.Array]:
    """psi and H psi on S, real and imaginary parts, (2, n) each, in a scale where the largest |psi| of S is 1."""
    return _pieces(log_amplitude, phase, links)[:2]


def _pieces(log_amplitude, phase, links):
    psi, top = _parts(log_amplitude, phase, links.members)
    member = links.members.astype(jnp.float64)

    if isinstance(links, Products):
        return psi * member[None], links.h_psi * member[None], top
    size = links.places.shape[0] // jax.lax.axis_size(links.axis) if isinstance(links, SharedLinks) else psi.shape[1]
    h_psi = [row_sums(links.values * x[links.columns], links.rows, size) for x in psi]
    if isinstance(links, SharedLinks):
        h_psi = [jnp.zeros_like(psi[0]).at[links.places].set(gathered(x, links.axis), mode="drop") for x in h_psi]
    return psi * member[None], jnp.stack(h_psi) * member[None], top


def row_sums(terms, rows, number: int) -> jax.Array:
    """(number,) sums of terms of equal rows, which rise: in a fixed order, on GPUs too. Other rows are left out."""
    if not on_gpu():
        return jax.ops.segment_sum(terms, rows, num_segments=number)
    from jaxqc.nnqs import _cuda_coupling

    def forward(rows, terms):
        start = sorted_positions(rows, jnp.arange(number + 1, dtype=rows.dtype))
        sums = _cuda_coupling.row_sums(start, terms)
        return jnp.where(jnp.all(rows[1:] >= rows[:-1]), sums, jnp.nan)  # loud rather than wrong

    def transposed(rows, sums):
        return sums.at[rows].get(mode="fill", fill_value=0.0)

    return jax.custom_derivatives.linear_call(forward, transposed, rows, terms)


def estimate(log_amplitude, phase, links) -> Estimate:
    """Energy, variance and captured weight of a wave function.

    Args:
        log_amplitude, phase: (n,) of the configurations that `links` counts.
        links: `Links`; its columns decide whether the energy is `projected` or `connected`.

    Returns:
        `Estimate`.
    """
    psi, h_psi, top = _pieces(log_amplitude, phase, links)
    norm = jnp.sum(psi * psi)
    value = jnp.sum(psi * h_psi) / norm
    return Estimate(value, jnp.sum((h_psi - value * psi) ** 2) / norm, norm * jnp.exp(2 * top))


def local_energies(log_amplitude, phase, links) -> tuple[jax.Array, jax.Array]:
    """Local energies E_i = sum_j H_ij psi_j / psi_i, real and imaginary part, (n,) Hartree each; zero beyond S."""
    psi, h_psi, _ = _pieces(log_amplitude, phase, links)
    size = jnp.sum(psi * psi, axis=0)
    safe = jnp.where(size > 0, size, 1.0)
    return jnp.sum(psi * h_psi, axis=0) / safe, (psi[0] * h_psi[1] - psi[1] * h_psi[0]) / safe


def rayleigh_quotient(log_amplitude, phase, links) -> jax.Array:
    """The energy as it is written down, () Hartree; JAX differentiates it to any order.

    `energy` has the same value, and where S holds all columns the same gradient, at half the price.
    """
    psi, h_psi, _ = _pieces(log_amplitude, phase, links)
    return jnp.sum(psi * h_psi) / jnp.sum(psi * psi)


def energy(log_amplitude, phase, links) -> jax.Array:
    r"""The energy of a wave function, to be minimised: () Hartree.

    Its derivative is that of the surrogate sum_i 2 p_i [Re(E_i - E) log_amplitude_i + Im(E_i) phase_i] at fixed p and
    E_i: the exact gradient of the projected energy, and of the connected energy what is used in the field, which is
    exact where S is the whole space. Differentiable once, forward and reverse.

    Args:
        log_amplitude, phase: (n,) as for `estimate`.
        links: `Links`.
    """
    psi, h_psi, _ = jax.lax.stop_gradient(_pieces(log_amplitude, phase, links))
    norm = jnp.sum(psi * psi)
    value = jnp.sum(psi * h_psi) / norm
    # 2 p_i Re(E_i - E) and 2 p_i Im E_i, without dividing by psi_i.
    by_size = 2 * jnp.sum(psi * (h_psi - value * psi), axis=0) / norm
    by_phase = 2 * (psi[0] * h_psi[1] - psi[1] * h_psi[0]) / norm
    return value + _tangent(by_size, log_amplitude) + _tangent(by_phase, phase)


def _tangent(weight, x):
    """Zero, with the derivative sum_i weight_i dx_i."""
    x = jnp.asarray(x, jnp.float64)
    return jnp.sum(weight * (x - jax.lax.stop_gradient(x)))


def infidelity(log_amplitude, phase, vector, members) -> jax.Array:
    """1 - |<c|psi>|^2 / <c|c> <psi|psi> on a set, () from 0 to 1.

    Args:
        log_amplitude, phase: (n,).
        vector: (n,) real coefficients c.
        members: (n,) bool, which configurations are in the set.
    """
    psi, _ = _parts(log_amplitude, phase, members)
    member = members.astype(jnp.float64)
    vector, psi = vector * member, psi * member[None]
    return 1 - jnp.sum((psi @ vector) ** 2) / (jnp.sum(vector**2) * jnp.sum(psi**2))


def distillation(log_amplitude, phase, vector, members) -> jax.Array:
    r"""A loss with which a network learns a CI vector: () >= 0.

    sum_i w_i [(log_amplitude_i - log |c_i|)^2 + (phase_i - theta_i)^2], with sum c^2 = 1, w_i = |c_i| / sum |c|, and
    theta_i = 0 or pi where c_i has the sign of the largest coefficient or the other one. Unlike the infidelity it has
    no stationary points where signs are wrong, and it draws the norm of a network into the set. Arguments as for
    `infidelity`.
    """
    vector = vector * members.astype(jnp.float64)
    size = jnp.abs(vector)
    seen = size > 0
    log_size = jnp.log(jnp.where(seen, size, 1.0)) - 0.5 * jnp.log(jnp.sum(vector**2))
    target = jnp.where(vector * vector[jnp.argmax(size)] < 0, jnp.pi, 0.0)
    # Weighted by c^2, small coefficients, which are most of them, would be learned in ten times as many steps.
    weight = size / jnp.sum(size)
    error = jnp.where(seen[None], jnp.stack([log_amplitude - log_size, phase - target]).astype(jnp.float64), 0.0)
    return jnp.sum(weight[None] * error**2)
