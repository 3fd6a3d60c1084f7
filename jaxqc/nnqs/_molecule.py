"""Integrals of a molecule over the orbitals of a self-consistent field."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc.elements import shorten
from jaxqc.nnqs._hamiltonian import check_electrons, transform
from jaxqc.nnqs._symmetry import adapted_orbitals

NAME = "jaxqc.nnqs.Hamiltonian.from_molecule"
_ORTHONORMAL = 1e-6  # largest deviation


def molecular_integrals(mol, result, frozen, active):
    """(constant, one- and two-electron integrals, numbers of electrons), the orbitals, frozen ones first, and labels.

    Frozen orbitals are doubly occupied: h_pq becomes h_pq + sum_c [2 (pq|cc) - (pc|cq)].
    """
    from jaxqc import integrals, scf

    if result is None:
        result = scf.scf(mol, restricted=True)
    elif not isinstance(result, scf.Result):
        raise TypeError(f"Argument result of {NAME} must be a jaxqc.scf.Result, but it is {shorten(result)}.")
    if result.mo_coeff.ndim != 2:
        raise ValueError(
            f"Argument result of {NAME} is {result.kind}, with different orbitals for each spin; it must have one set. "
            "Compute it with jaxqc.scf.scf(mol, restricted=True)."
        )
    if result.mo_coeff.shape[0] != mol.nao:
        raise ValueError(
            f"Argument result of {NAME} has {result.mo_coeff.shape[0]} atomic orbitals and argument mol {mol.nao}; "
            "they must be of the same molecule."
        )
    norb = mol.nao - int(result.removed)
    _check_orthonormal(integrals.overlap(mol), result.mo_coeff[:, :norb])
    frozen, kept = _window(norb, min(mol.nalpha, mol.nbeta), frozen, active)
    nalpha, nbeta = check_electrons(kept, mol.nalpha - frozen, mol.nbeta - frozen, NAME)
    bounds = frozen, frozen + kept, mol.nalpha, mol.nbeta
    adapted = adapted_orbitals(mol, result.mo_coeff[:, :norb], result.mo_energy[:norb], bounds)
    mo_coeff, irreps = (result.mo_coeff, None) if adapted is None else (jnp.asarray(adapted[0]), adapted[1])
    core, orbitals = mo_coeff[:, :frozen], mo_coeff[:, frozen : frozen + kept]
    one = integrals.kinetic(mol) + integrals.nuclear(mol)
    constant = jnp.asarray(mol.energy_nuc())
    if frozen:
        density = 2.0 * core @ core.T
        coulomb, exchange = integrals.jk(mol, density)
        assert coulomb is not None and exchange is not None
        potential = coulomb - 0.5 * exchange
        constant = constant + jnp.sum((one + 0.5 * potential) * density)
        one = one + potential
    two = transform(integrals.eri(mol), orbitals)
    return (
        (constant, orbitals.T @ one @ orbitals, two, nalpha, nbeta),
        mo_coeff[:, : frozen + kept],
        (irreps and irreps[frozen : frozen + kept]),
    )


def _check_orthonormal(overlap, orbitals):
    product = orbitals.T @ overlap @ orbitals
    if isinstance(product, Tracer):
        return
    error = float(np.max(np.abs(np.asarray(product) - np.eye(product.shape[0])), initial=0.0))
    if not error < _ORTHONORMAL:
        raise ValueError(
            f"The orbitals of argument result of {NAME} are not orthonormal in argument mol: C^T S C differs from 1 "
            f"by {error:.1e}. They are of another geometry or basis; compute them with jaxqc.scf.scf(mol, "
            "restricted=True)."
        )


def _window(norb, doubly, frozen, active):
    for label, value in (("frozen", frozen), ("active", active)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise TypeError(f"Argument {label} of {NAME} must be a whole number, but it is {shorten(value)}.")
    if not 0 <= frozen <= doubly:
        raise ValueError(f"Argument frozen of {NAME} is {frozen}, but must be from 0 to the {doubly} electron pairs.")
    kept = norb - frozen if active is None else active
    if not 1 <= kept <= norb - frozen:
        raise ValueError(
            f"Argument active of {NAME} is {active}, but must be from 1 to the {norb - frozen} orbitals that are not "
            "frozen."
        )
    return int(frozen), int(kept)
