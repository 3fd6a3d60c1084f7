"""Labels of orbitals, kept from the molecule to the tables of excitations."""

from typing import Any

import numpy as np
import pytest
from nnqs_cases import fci_energy, random_integrals, symmetric_integrals
from pyscf import gto, mcscf, scf, symm

import jaxqc
from jaxqc.nnqs import Hamiltonian, all_configurations, couple, density_matrices, lowest
from jaxqc.nnqs._tables import tables_of

TILTED = "N 0.1 0.2 0.3; N 0.7 0.9 0.8"  # degenerate orbitals are mixed at will there


def test_orbitals_of_a_molecule_are_labelled():
    mol = jaxqc.Molecule(TILTED, basis="sto-3g")
    ham = Hamiltonian.from_molecule(mol)
    reference: Any = scf.RHF(gto.M(atom=TILTED, basis="sto-3g", symmetry="D2h", verbose=0)).run()
    labels = np.asarray(reference.get_orbsym())
    assert sorted(ham.irreps or ()) == sorted(labels)
    # All of the representations of D2h that a linear molecule has: as many excitations as in PySCF's orbitals.
    allowed = symm.direct_prod(np.asarray(ham.irreps), np.asarray(ham.irreps)) == 0
    assert np.all(np.asarray(ham.one)[~allowed] == 0)
    pairs = labels[:, None] ^ labels
    possible = np.count_nonzero((pairs[:, :, None, None] ^ pairs) == 0)
    assert possible / 2 < np.count_nonzero(ham.two) <= possible
    assert tables_of(ham).unlike_value.size < possible
    assert ham.orbitals is not None
    overlap = jaxqc.integrals.overlap(mol)
    np.testing.assert_allclose(ham.orbitals.T @ overlap @ ham.orbitals, np.eye(10), atol=1e-12)
    hartree_fock = float(lowest(ham, all_configurations(10, 7, 7).keys[:1]).energies[0])
    assert hartree_fock == pytest.approx(reference.e_tot, abs=1e-8)


def test_frozen_natural_orbitals_keep_their_labels():
    mol = jaxqc.Molecule("Li 0 0 0; H 0.3 0.8 1.4", basis="sto-3g")
    plain, natural = (Hamiltonian.from_molecule(mol, frozen=1, natural=choice) for choice in (False, True))
    for ham in (plain, natural):
        assert sorted(ham.irreps or ()) == [0, 0, 0, 2, 3]
        whole = all_configurations(5, 1, 1)
        state = lowest(ham, whole)
        assert float(state.energies[0]) == pytest.approx(fci_energy(plain), abs=1e-9)
        dm1 = np.asarray(density_matrices(ham, whole, state.vectors[0])[0])
        labels = np.asarray(ham.irreps)
        np.testing.assert_allclose(dm1[labels[:, None] != labels], 0.0, atol=1e-14)
    mixed = natural.rotate(np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0])
    assert mixed.irreps is None


def test_molecules_without_symmetry():
    nearly = "O 0 0 0; H 0.2774 0.8929 0.2544; H 0.6068 -0.2383 -0.7169"  # bonds are equal to four digits
    for atoms in (nearly, "H 0 0 0; H 0 0 1; H 0 1 2; H 1 1 1.4"):
        assert Hamiltonian.from_molecule(jaxqc.Molecule(atoms, basis="sto-3g")).irreps is None


def test_six_digits_of_a_geometry_are_enough():
    ammonia = "N 0 0 0; H .94 0 .38; H -.47 .814064 .38; H -.47 -.814064 .38"  # 1.2e-7 Angstrom from C3v
    ham = Hamiltonian.from_molecule(jaxqc.Molecule(ammonia, basis="sto-3g"), frozen=1)
    assert sorted(ham.irreps or ()) == [0, 0, 0, 0, 0, 1, 1]
    field: Any = scf.RHF(gto.M(atom=ammonia, basis="sto-3g", verbose=0)).run(conv_tol=1e-12)
    space: Any = mcscf.CASCI(field, 7, 8)
    space.verbose = 0
    assert fci_energy(ham) == pytest.approx(space.kernel()[0], abs=1e-9)


def test_rounding_is_left_out_and_wrong_labels_are_refused():
    labels = (0, 1, 1, 5)
    exact_one, exact_two = symmetric_integrals(labels, 3)
    noise_one, noise_two = (1e-12 * x for x in random_integrals(4, 5))
    exact, noisy = (
        Hamiltonian.from_integrals(a, b, 2, 2, irreps=c)
        for a, b, c in ((exact_one, exact_two, None), (exact_one + noise_one, exact_two + noise_two, labels))
    )
    whole = all_configurations(4, 2, 2)
    assert int(couple(noisy, whole).count) == int(couple(exact, whole).count)
    assert tables_of(noisy).unlike_value.size == tables_of(exact).unlike_value.size
    with pytest.raises(ValueError, match="exclusive or of their labels is not 0"):
        Hamiltonian.from_integrals(*random_integrals(4, 3), 2, 2, irreps=labels)
