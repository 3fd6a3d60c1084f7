"""Hartree-Fock energies, levels and dipoles against PySCF, over elements, charges, spins and basis sets."""

from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf

import jaxqc

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
METHYL = "C 0 0 0; H 1.079 0 0; H -0.5395 0.9344 0; H -0.5395 -0.9344 0"

# name: (atoms, basis, charge, spin, restricted, cartesian)
CASES = {
    "H2": ("H 0 0 0; H 0 0 0.74", "sto-3g", 0, 0, None, False),
    "H2+": ("H 0 0 0; H 0 0 1.06", "cc-pvdz", 1, 1, None, False),
    "He": ("He 0 0 0", "cc-pvqz", 0, 0, None, False),
    "HeH+": ("He 0 0 0; H 0 0 0.77", "6-31g**", 1, 0, None, False),
    "Li": ("Li 0 0 0", "cc-pvtz", 0, 1, None, False),
    "Li+": ("Li 0 0 0", "cc-pvtz", 1, 0, None, False),
    "LiH": ("Li 0 0 0; H 0 0 1.6", "6-31g**", 0, 0, None, True),
    "BeH2": ("Be 0 0 0; H 0 0 1.33; H 0 0 -1.33", "def2-svp", 0, 0, None, False),
    "BH": ("B 0 0 0; H 0 0 1.23", "cc-pvtz", 0, 0, None, False),
    "CH4": ("C 0 0 0; H .63 .63 .63; H -.63 -.63 .63; H -.63 .63 -.63; H .63 -.63 -.63", "sto-3g", 0, 0, None, False),
    "CH3": (METHYL, "def2-svp", 0, 1, None, True),
    "CH3-rohf": (METHYL, "6-31g", 0, 1, True, False),
    "CO": ("C 0 0 0; O 0 0 1.128", "cc-pvdz", 0, 0, None, False),
    "CN-": ("C 0 0 0; N 0 0 1.18", "6-31+g", -1, 0, None, False),
    "N": ("N 0 0 0", "cc-pvqz", 0, 3, None, False),
    "N-rohf": ("N 0 0 0", "cc-pvdz", 0, 3, True, False),
    "N2": ("N 0 0 0; N 0 0 1.098", "6-311g*", 0, 0, None, False),
    "NH3": ("N 0 0 0.11; H 0 0.94 -0.27; H 0.814 -0.47 -0.27; H -0.814 -0.47 -0.27", "6-31g*", 0, 0, None, True),
    "NH4+": ("N 0 0 0; H .59 .59 .59; H -.59 -.59 .59; H -.59 .59 -.59; H .59 -.59 -.59", "6-31g", 1, 0, None, False),
    "NH2": ("N 0 0 0; H 0.8 0.6 0; H -0.8 0.6 0", "cc-pvdz", 0, 1, None, False),
    "H2O": (WATER, "cc-pvdz", 0, 0, None, False),
    "H2O-tz-cart": (WATER, "cc-pvtz", 0, 0, None, True),
    "H2O+": (WATER, "cc-pvdz", 1, 1, None, False),
    "H2O+-rohf": (WATER, "6-31g*", 1, 1, True, False),
    "OH-": ("O 0 0 0; H 0 0 0.97", "aug-cc-pvdz", -1, 0, None, False),
    "O2": ("O 0 0 0; O 0 0 1.21", "cc-pvdz", 0, 2, None, False),
    "O2-rohf": ("O 0 0 0; O 0 0 1.21", "6-31g*", 0, 2, True, True),
    "HF": ("H 0 0 0; F 0 0 0.917", "cc-pvqz", 0, 0, None, False),
    "F-": ("F 0 0 0", "aug-cc-pvdz", -1, 0, None, False),
    "Ne": ("Ne 0 0 0", "aug-cc-pvtz", 0, 0, None, False),
    "NaH": ("Na 0 0 0; H 0 0 1.89", "3-21g", 0, 0, None, False),
    "Na+": ("Na 0 0 0", "def2-svp", 1, 0, None, False),
    "MgO": ("Mg 0 0 0; O 0 0 1.75", "6-31g", 0, 0, None, False),
    "AlH": ("Al 0 0 0; H 0 0 1.65", "sto-3g", 0, 0, None, False),
    "SiH4": ("Si 0 0 0; H .9 .9 .9; H -.9 -.9 .9; H -.9 .9 -.9; H .9 -.9 -.9", "def2-svp", 0, 0, None, False),
    "P": ("P 0 0 0", "6-31g*", 0, 3, None, False),
    "H2S": ("S 0 0 0.1; H 0 0.96 -0.82; H 0 -0.96 -0.82", "cc-pvdz", 0, 0, None, False),
    "SO": ("S 0 0 0; O 0 0 1.48", "6-31g*", 0, 2, None, False),
    "HCl": ("H 0 0 0; Cl 0 0 1.275", "def2-tzvp", 0, 0, None, False),
    "Ar": ("Ar 0 0 0", "cc-pvtz", 0, 0, None, False),
}


def reference(atoms, basis, charge, spin, restricted, cart) -> Any:
    """Converged PySCF calculation of the same kind."""
    mole = gto.M(atom=atoms, basis=basis, charge=charge, spin=spin, cart=cart, verbose=0)
    # The classes themselves: pyscf.scf.UHF and ROHF would replace a one-electron calculation by another method.
    unrestricted = restricted is False or (restricted is None and spin)
    mf: Any = (scf.uhf.UHF if unrestricted else scf.rohf.ROHF if spin else scf.hf.RHF)(mole)
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle = 1e-12, 1e-7, 100
    mf.kernel()
    assert mf.converged
    return mf


@pytest.mark.parametrize("name", CASES)
def test_equals_pyscf(name):
    atoms, basis, charge, spin, restricted, cart = CASES[name]
    mf = reference(*CASES[name])
    mol = jaxqc.Molecule(atoms, basis=basis, charge=charge, spin=spin, cart=cart)
    result = jaxqc.scf(mol, restricted=restricted)
    assert bool(result.converged)
    assert abs(float(result.energy) - mf.e_tot) < 1e-9
    np.testing.assert_allclose(result.mo_energy, mf.mo_energy, atol=2e-6)
    np.testing.assert_allclose(np.asarray(result.mo_occ), mf.mo_occ)
    np.testing.assert_allclose(float(result.spin_square), mf.spin_square()[0] if spin else 0.0, atol=1e-5)
    if charge == 0:
        np.testing.assert_allclose(result.dipole(), mf.dip_moment(verbose=0), atol=2e-5)
    # What must hold inside the result: the energy is that of its density, which has the right number of electrons.
    total = np.asarray(result.total_density)
    assert abs(np.trace(total @ np.asarray(result.overlap)) - mol.nelec) < 1e-9
    density = np.asarray(result.density)
    assert abs(mf.energy_tot(density) - float(result.energy)) < 1e-9
    assert abs(float(result.charges.sum()) - charge) < 1e-9


@pytest.mark.slow
def test_water_with_h_functions():
    mf = reference(WATER, "cc-pv5z", 0, 0, None, False)
    result = jaxqc.scf(jaxqc.Molecule(WATER, basis="cc-pv5z"))
    assert abs(float(result.energy) - mf.e_tot) < 1e-9
