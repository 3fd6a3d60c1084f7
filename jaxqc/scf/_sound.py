"""Can a stationary point be the ground state? Canonical levels, crossed levels, and a way off a saddle point."""

import jax
import jax.numpy as jnp

from jaxqc.scf import _fock
from jaxqc.scf._rotation import rotate

# Energy assigned to the orbitals that were removed for linear dependence: sorted behind all others, never a NaN.
REMOVED_ENERGY = 1e9
# A virtual level further than this below an occupied one, Hartree, is no matter of rounding.
_CROSSED = 1e-6


def canonical_orbitals(reference, coefficients, fock):
    """Diagonalises the Fock matrix within each block of equally occupied orbitals; the density does not change.

    For ROHF the matrix is (F_alpha + F_beta)/2, which Roothaan's effective one equals on its diagonal blocks.

    Returns:
        coefficients (nset, nao, nao) and levels (nset, nao); removed vectors come last, with level `REMOVED_ENERGY`.
    """
    if reference.kind == "rohf":
        fock = jnp.mean(fock, axis=0, keepdims=True)
    sets, levels = [], []
    for c, matrix, blocks in zip(coefficients, fock, reference.blocks, strict=True):
        columns, energies = [], []
        for start, stop in blocks:
            block = c[:, start:stop]
            kept = jnp.sum(block**2, axis=0) > 0.0
            inner = _fock.symmetric(block.T @ matrix @ block)
            values, vectors = jnp.linalg.eigh(inner + _fock.lifted(inner, ~kept))
            turned = block @ vectors
            kept = jnp.sum(jnp.where(kept[:, None], vectors**2, 0.0), axis=0) > 0.5
            values = jnp.where(kept, values, REMOVED_ENERGY)
            order = jnp.argsort(values)
            columns.append((turned * kept.astype(turned.dtype)[None])[:, order])
            energies.append(values[order])
        sets.append(jnp.concatenate(columns, axis=1))
        levels.append(jnp.concatenate(energies))
    return jnp.stack(sets), jnp.stack(levels)


def _frontier(reference):
    """Indices of the highest occupied and the lowest virtual orbital of each set, or None where there is none."""
    if reference.kind == "uhf":
        pairs = [(n - 1, n) for n in (reference.nalpha, reference.nbeta)]
    else:
        # Levels of singly occupied orbitals are not bound to lie between those of the others.
        pairs = [(reference.nbeta - 1, reference.nalpha)]
    return [(i, a) if i >= 0 and a < reference.nao else None for i, a in pairs]


def crossed_sets(reference, levels):
    """For each orbital set, whether a virtual level lies below an occupied one; levels (nset, nao) are canonical."""
    pairs = _frontier(reference)
    return jnp.stack(
        [
            jnp.asarray(False) if pair is None else row[pair[1]] < row[pair[0]] - _CROSSED
            for row, pair in zip(levels, pairs, strict=True)
        ]
    )


def turned_orbitals(reference, coefficients, levels, overlap, energy_of):
    """Turns the highest occupied and the lowest virtual orbital into each other where their levels have crossed.

    The angles are quarters and eighths of pi, both ways, and a whole exchange (occupation by Aufbau); the one of the
    lowest energy is taken. Halfway between two mirror images lies the state that has their symmetry.

    Args:
        reference: `Reference`.
        coefficients, levels: (nset, nao, nao) and (nset, nao), canonical.
        overlap: (nao, nao).
        energy_of: function from coefficients to the energy, Hartree.

    Returns:
        coefficients (nset, nao, nao), and their energy.
    """
    crossed = crossed_sets(reference, levels)
    pairs = jnp.zeros_like(coefficients)
    for k, pair in enumerate(_frontier(reference)):
        if pair is not None:
            pairs = pairs.at[k, pair[1], pair[0]].set(jnp.where(crossed[k], 1.0, 0.0))
    # Cayley's transform turns by the angle t where the element of its generator is 2 tan(t/2).
    angles = jnp.pi * jnp.asarray([0.5, 0.25, -0.25, 0.125, -0.125])
    generators = 2.0 * jnp.tan(0.5 * angles)
    energies = jax.lax.map(lambda g: energy_of(rotate(coefficients, g * pairs, overlap)), generators)
    best = jnp.argmin(energies)
    return rotate(coefficients, generators[best] * pairs, overlap), energies[best]
