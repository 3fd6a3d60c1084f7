"""Selected CI against reference energies of larger systems, and against the speed of PySCF."""

import time

import numpy as np
import pytest
from pyscf import ao2mo, fci, gto, lib, scf

import jaxqc
from jaxqc.nnqs import Hamiltonian, selected_ci

WATER = "O 0 0 -0.004762593; H 0 0.80184232855 -0.56034446694; H 0 -0.80184232855 -0.56034446694"
N2 = "N 0 0 0; N 0 0 1.12079733"


def integrals(atom, symmetry):
    """Over PySCF's Hartree-Fock orbitals of a point group."""
    mol = gto.M(atom=atom, basis="cc-pvdz", symmetry=symmetry, verbose=0)
    mf = scf.RHF(mol)
    mf.conv_tol = 1e-12
    mf.kernel()
    c = mf.mo_coeff
    assert c is not None
    return mol, c.T @ mf.get_hcore() @ c, ao2mo.restore(1, ao2mo.kernel(mol, c), c.shape[1])


@pytest.mark.alone
def test_faster_than_pyscf_and_more_accurate():
    mol, one, two = integrals(N2, "D2h")
    exact = -109.2821730  # FCI to 1e-6, coordinate descent FCI (doi:10.1021/acs.jctc.9b00138)
    ham = Hamiltonian.from_integrals(one, two, 7, 7, mol.energy_nuc())
    selected_ci(ham, 500, epsilon=1e-6)  # compiles
    start = time.process_time()
    ours = selected_ci(ham, 500, epsilon=1e-6)
    middle = time.process_time()
    with lib.with_omp_threads(1):
        solver = fci.selected_ci.SCI(mol)
        solver.select_cutoff = solver.ci_coeff_cutoff = 0.05
        reference, _ = solver.kernel(one, two, one.shape[0], (7, 7), ecore=mol.energy_nuc())
    theirs = time.process_time() - middle
    assert exact < ours.e_ci < reference
    assert abs(ours.e_ci + ours.e_pt2 - exact) < 2e-3
    assert middle - start < theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("atom", "exact", "size"),
    [(WATER, -76.2418601, 8000), (N2, -109.2821730, 4000)],  # Olsen et al. 1996, and as above
)
def test_extrapolated_within_a_millihartree(atom, exact, size):
    ham = Hamiltonian.from_molecule(jaxqc.Molecule(atom, basis="cc-pvdz"))
    found = selected_ci(ham, size, epsilon=1e-7)
    assert exact < found.e_ci
    assert abs(found.e_extrapolated - exact) < 1e-3
    assert abs(found.e_ci + found.e_pt2 - exact) < 1e-3
    assert found.spin_square < 2e-3
    assert np.isfinite(found.error)
