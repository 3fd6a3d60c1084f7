"""Densities and dipole moments of selected CI, against full CI of PySCF."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import fci, mcscf, scf

import jaxqc
from jaxqc.nnqs import Hamiltonian, ao_density, aufbau, dipole_moment, lowest, selected_ci


def reference(mol, frozen, active):
    """Two states of PySCF in an active space, their dipole moments and the one between them, e a0."""
    mole: Any = mol.to_pyscf()
    field: Any = scf.RHF(mole).run(conv_tol=1e-12)
    pairs = (mol.nalpha - frozen, mol.nbeta - frozen)
    space: Any = mcscf.CASCI(field, active, pairs, ncore=frozen)
    space.fcisolver = fci.direct_spin0.FCI(mole)
    space.fcisolver.nroots, space.fcisolver.conv_tol = 2, 1e-13
    space.kernel()
    integrals = mole.intor("int1e_r")
    density = space.make_rdm1(ci=space.ci[0])
    moment = mole.atom_charges() @ mole.atom_coords() - np.einsum("xij,ji->x", integrals, density)
    between = space.fcisolver.trans_rdm1(space.ci[0], space.ci[1], active, pairs)
    orbitals = field.mo_coeff[:, frozen : frozen + active]
    return density, moment, -np.einsum("xij,ip,pq,jq->x", integrals, orbitals, between, orbitals)


@pytest.mark.parametrize("natural", [False, True])
def test_dipole_moments_equal_full_ci(natural):
    mol = jaxqc.Molecule("Li 0.1 0 0; H 0 0.2 1.6", basis="6-31g")
    result = jaxqc.scf.scf(mol)
    ham = Hamiltonian.from_molecule(mol, result, frozen=1, active=6, natural=natural)
    density, moment, between = reference(mol, 1, 6)
    found = selected_ci(ham, 100, epsilon=0.0)
    assert found.complete
    of_set = found.configurations, found.vector
    np.testing.assert_allclose(ao_density(ham, *of_set), density, atol=1e-5)
    np.testing.assert_allclose(dipole_moment(mol, ham, *of_set, unit="au"), moment, atol=1e-5)
    np.testing.assert_allclose(dipole_moment(mol, ham, *of_set, origin=(1.0, 2.0, 3.0)), moment * 2.541746, atol=1e-4)
    states = lowest(ham, found.configurations, nroots=4)
    singlets = states.vectors[np.flatnonzero(np.asarray(states.spin_squares) < 0.1)]
    ours = dipole_moment(mol, ham, found.configurations, singlets[0], singlets[1], unit="au")
    np.testing.assert_allclose(np.abs(ours), np.abs(between), atol=1e-5)


def test_orbitals_that_are_missing_or_of_another_molecule():
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
    with pytest.raises(ValueError, match="not orthonormal in argument mol"):
        Hamiltonian.from_molecule(mol, jaxqc.scf.scf(jaxqc.Molecule("H 0 0 0; H 0 0 0.75", basis="sto-3g")))
    ham = Hamiltonian.from_molecule(mol)
    first, one = aufbau(2, 1, 1), jnp.ones(1)
    bare = Hamiltonian.from_integrals(ham.one, ham.two, 1, 1)
    with pytest.raises(ValueError, match="has no orbitals of a molecule"):
        ao_density(bare, first, one)
    with pytest.raises(ValueError, match="of the same molecule"):
        dipole_moment(jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="6-31g"), ham, first, one)
    with pytest.raises(ValueError, match="'debye' or 'au'"):
        dipole_moment(mol, ham, first, one, unit="D")
    # Of one configuration it is that of Hartree-Fock.
    np.testing.assert_allclose(ao_density(ham, first, one), jaxqc.scf.scf(mol).total_density, atol=1e-9)
