"""Orbital rotations C -> C exp(K): gradient and Hessian of the energy, and the rotation itself.

With F_s the Fock matrix of spin s in the orbital basis and n_s its occupations, to second order in antisymmetric K

    E(K) = E + sum_{p>q} g_pq K_pq + 1/2 sum_{p>q} K_pq (H K)_pq,    g = 2 sum_s [F_s, n_s],
    H K = sum_s [[F_s, K], n_s] + [F_s, [K, n_s]] + 2 [G_s(dD), n_s],    dD_s = C [K, n_s] C^T.

A rotation is held as the (nset, nao, nao) array of its pairs (p, q) with p less occupied than q; other elements are 0.
"""

import jax.numpy as jnp

from jaxqc.scf._reference import over_sets, per_spin


def to_orbitals(reference, coefficients, matrix):
    """C^T M C for each spin channel."""
    c = per_spin(reference, coefficients)
    return jnp.einsum("sip,sij,sjq->spq", c, matrix, c)


def _bracket_occupations(matrix, occupations):
    """[M, n] for diagonal n: M_pq (n_q - n_p)."""
    return matrix * (occupations[:, None, :] - occupations[:, :, None])


def pair_mask(reference, coefficients):
    """Mask of non-redundant rotations; columns that were removed for linear dependence take no part."""
    valid = jnp.sum(coefficients**2, axis=1) > 0.0
    return jnp.asarray(reference.rotations) & valid[:, :, None] & valid[:, None, :]


def gradient_pairs(reference, fock_orbitals, mask):
    """Orbital gradient g = 2 sum_s [F_s, n_s] on the pairs of `mask`; Hartree."""
    pairs = 2.0 * over_sets(reference, _bracket_occupations(fock_orbitals, jnp.asarray(reference.occupations)))
    return jnp.where(mask, pairs, 0.0)


def response_density(reference, coefficients, pairs):
    """Change of the density, dD_s = C [K, n_s] C^T, for the rotation with the given pairs."""
    occupations = jnp.asarray(reference.occupations)
    antisymmetric = per_spin(reference, pairs - pairs.mT)
    c = per_spin(reference, coefficients)
    return jnp.einsum("sip,spq,sjq->sij", c, _bracket_occupations(antisymmetric, occupations), c)


def hessian_product(reference, coefficients, fock_orbitals, mask, response_of, pairs):
    """Product of the orbital Hessian with a rotation.

    Args:
        reference: `Reference`.
        coefficients: (nset, nao, nao).
        fock_orbitals: (nspin, nao, nao) Fock matrices in the orbital basis.
        mask: (nset, nao, nao) from `pair_mask`.
        response_of: function from a change of the density (nspin, nao, nao) to that of the Fock matrices.
        pairs: (nset, nao, nao) rotation.

    Returns:
        (nset, nao, nao), Hartree.
    """
    occupations = jnp.asarray(reference.occupations)
    rotation = per_spin(reference, pairs - pairs.mT)
    moved = fock_orbitals @ rotation - rotation @ fock_orbitals
    change = _bracket_occupations(rotation, occupations)
    first = _bracket_occupations(moved, occupations)
    second = fock_orbitals @ change - change @ fock_orbitals
    response = response_of(response_density(reference, coefficients, pairs))
    third = 2.0 * _bracket_occupations(to_orbitals(reference, coefficients, response), occupations)
    return jnp.where(mask, over_sets(reference, first + second + third), 0.0)


def hessian_diagonal(reference, fock_orbitals, floor=0.1):
    """Diagonal of the Hessian without its two-electron response, made positive: a preconditioner."""
    occupations = jnp.asarray(reference.occupations)
    levels = jnp.diagonal(fock_orbitals, axis1=1, axis2=2)
    gaps = (levels[:, :, None] - levels[:, None, :]) * (occupations[:, None, :] - occupations[:, :, None])
    return jnp.maximum(jnp.abs(2.0 * over_sets(reference, gaps)), floor)


def rotate(coefficients, pairs, overlap):
    """C (1 - K/2)^-1 (1 + K/2), Cayley's orthogonal transform, with one step against loss of orthonormality."""
    rotation = pairs - pairs.mT
    unit = jnp.eye(rotation.shape[-1])[None]
    turned = coefficients @ jnp.linalg.solve(unit - 0.5 * rotation, unit + 0.5 * rotation)
    metric = jnp.einsum("sip,ij,sjq->spq", turned, overlap, turned)
    return turned @ (1.5 * unit - 0.5 * metric)
