"""Derivatives of the converged solution, without differentiating iterations or eigenvectors.

First order. With the density D and W = 1/2 sum_s (D_s F_s C C^T + transpose) held fixed,

    dE = dL,    L(mol, field, parameters) = E_nuc + Tr D h + 1/2 Tr D G(D) + E_xc(D) - Tr W S,

because the energy is stationary in the orbital rotations and W is the multiplier of orthonormality
(doi:10.1080/00268976900100941). One reverse sweep through the integrals gives all components.
E_xc is the sum over the points of the grid, which move with the nuclei; its derivative with respect to the parameters
of a functional, at fixed density, is that of the energy.

Higher orders. The orbitals are an implicit function of the molecule: dC = C (K - S'/2), where the rotation K solves the
coupled-perturbed equations H K = -g' (doi:10.1063/1.1670299). Only rotations between
differently occupied orbitals occur, so degenerate levels do no harm. All expressions are written in terms of
the arguments, C and F without assuming canonical orbitals, hence can be differentiated again and again.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from jaxqc import integrals
from jaxqc.scf import _fock
from jaxqc.scf._compile import quick_jit
from jaxqc.scf._linear import minres
from jaxqc.scf._method import Arguments, Builder
from jaxqc.scf._reference import density_of, per_spin
from jaxqc.scf._rotation import gradient_pairs, hessian_diagonal, hessian_product, pair_mask, to_orbitals


class Converged(NamedTuple):
    """The point at which derivatives are taken; itself a constant."""

    energy: jax.Array
    coefficients: jax.Array  # (nset, nao, nao)
    fock: jax.Array  # (nspin, nao, nao)


def _moving(arguments, tangents):
    """Finds the leaves of a pytree that have a tangent.

    Leaving out the others spares derivative integrals that would only be multiplied by zero.

    Returns:
        indices of the moving leaves, and their tangents.
    """
    directions = jax.tree.structure(arguments).flatten_up_to(tangents)
    moving = [(i, t) for i, t in enumerate(directions) if not isinstance(t, SymbolicZero)]
    return tuple(i for i, _ in moving), [t for _, t in moving]


def _with_leaves(arguments, chosen, values):
    """The pytree with the chosen leaves replaced."""
    leaves, structure = jax.tree.flatten(arguments)
    for i, value in zip(chosen, values, strict=True):
        leaves[i] = value
    return jax.tree.unflatten(structure, leaves)


def weighted_density(reference, coefficients, fock):
    """Energy-weighted density W = 1/2 sum_s (D_s F_s C C^T + transpose), (nao, nao) Hartree."""
    density = density_of(reference, coefficients)
    projector = per_spin(reference, coefficients @ coefficients.mT)
    return jnp.sum(_fock.symmetric(density @ fock @ projector), axis=0)


def lagrangian(arguments: Arguments, density, weighted, method):
    """L of the module's description, (); Hartree."""
    mol, field = arguments.mol, arguments.field
    build = Builder(arguments, method, differentiated=True)
    electronic = build.energy(_fock.core_hamiltonian(mol, field), density)
    return _fock.nuclear_energy(mol, field) + electronic - jnp.sum(weighted * integrals.overlap(mol))


@partial(quick_jit, static_argnames=("reference", "method", "chosen"))
def lagrangian_gradient(arguments, coefficients, fock, *, reference, method, chosen):
    """Derivatives of L with respect to the chosen leaves of the arguments."""
    density = density_of(reference, coefficients)
    weighted = weighted_density(reference, coefficients, fock)

    def of_moving(moving):
        return lagrangian(_with_leaves(arguments, chosen, moving), density, weighted, method)

    leaves = jax.tree.leaves(arguments)
    return jax.grad(of_moving)([leaves[i] for i in chosen])


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def attach_energy(reference, method, arguments, converged):
    """The energy of the converged solution, as a differentiable function of the arguments."""
    return converged.energy


@partial(attach_energy.defjvp, symbolic_zeros=True)
def _attach_energy_jvp(reference, method, primals, tangents):
    arguments, converged = primals
    chosen, directions = _moving(arguments, tangents[0])
    energy = attach_energy(reference, method, arguments, converged)
    if not chosen:
        return energy, jnp.zeros_like(energy)
    coefficients, fock = attach_orbitals(reference, method, arguments, converged)
    slopes = lagrangian_gradient(arguments, coefficients, fock, reference=reference, method=method, chosen=chosen)
    return energy, sum(jnp.sum(s * t) for s, t in zip(slopes, directions, strict=True))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def attach_orbitals(reference, method, arguments, converged):
    """Orbitals and Fock matrices of the converged solution, as differentiable functions of the arguments.

    Derivatives of the orbitals are those of parallel transport within each block of equally occupied orbitals: right
    for everything that does not depend on the choice of orbitals inside a block, such as the density.
    """
    return converged.coefficients, converged.fock


@partial(attach_orbitals.defjvp, symbolic_zeros=True)
def _attach_orbitals_jvp(reference, method, primals, tangents):
    arguments, converged = primals
    chosen, directions = _moving(arguments, tangents[0])
    coefficients, fock = attach_orbitals(reference, method, arguments, converged)
    if not chosen:
        return (coefficients, fock), (jnp.zeros_like(coefficients), jnp.zeros_like(fock))
    change = _response(arguments, directions, coefficients, fock, reference=reference, method=method, chosen=chosen)
    return (coefficients, fock), change


@partial(quick_jit, static_argnames=("reference", "method", "chosen"))
def _response(arguments, directions, coefficients, fock, *, reference, method, chosen):
    """First-order change of orbitals and Fock matrices along the given directions of the chosen leaves."""
    leaves = jax.tree.leaves(arguments)
    moving = [leaves[i] for i in chosen]

    def overlap_of(moving):
        return integrals.overlap(_with_leaves(arguments, chosen, moving).mol)

    def fock_of(moving, density):
        moved = _with_leaves(arguments, chosen, moving)
        return _fock.core_hamiltonian(moved.mol, moved.field)[None] + Builder(moved, method)(density).total

    # 1. Orbitals follow the overlap: C (1 - S'/2) stays orthonormal to first order.
    _, overlap_change = jax.jvp(overlap_of, (moving,), (directions,))
    metric = jnp.einsum("sip,ij,sjq->spq", coefficients, overlap_change, coefficients)
    carried = -0.5 * coefficients @ metric

    def density_change(orbital_change):
        return jax.jvp(partial(density_of, reference), (coefficients,), (orbital_change,))[1]

    # 2. Fock matrices at the carried orbitals, and from them the change of the orbital gradient.
    density = density_of(reference, coefficients)
    _, fock_change = jax.jvp(fock_of, (moving, density), (directions, density_change(carried)))
    in_orbitals = to_orbitals(reference, coefficients, fock)
    half = in_orbitals @ per_spin(reference, metric)
    pushed = to_orbitals(reference, coefficients, fock_change) - 0.5 * (half + half.mT)
    mask = pair_mask(reference, coefficients)
    right = -gradient_pairs(reference, pushed, mask)

    response_of = Builder(arguments, method).response(density)

    # 3. The rotation that makes the gradient vanish again.
    diagonal = jax.lax.stop_gradient(hessian_diagonal(reference, in_orbitals))
    scale = jnp.where(mask, 1.0 / jnp.sqrt(diagonal), 0.0)

    def product(step):
        return scale * hessian_product(reference, coefficients, in_orbitals, mask, response_of, scale * step)

    step = jax.lax.custom_linear_solve(product, scale * right, minres, symmetric=True)
    pairs = scale * step
    turned = coefficients @ (pairs - pairs.mT)
    fock_response = response_of(density_change(turned))
    return carried + turned, fock_change + fock_response
