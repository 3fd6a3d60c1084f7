"""Kohn-Sham energies against PySCF on the same grid, and the cases that broke other programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import dft, gto

import jaxqc

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
CROOKED = "O 0 0.02 0.1173; H 0.05 0.7572 -0.4692; H 0 -0.7372 -0.4792"
AMMONIA = "N 0 0 0.1; H 0 0.9377 -0.2816; H 0.8121 -0.4689 -0.2816; H -0.8121 -0.4689 -0.2816"
METHYL = "C 0 0 0.1; H 1.079 0 0; H -0.5395 0.9344 0; H -0.5395 -0.9344 0"
AMINO = "N 0 0 0; H 0.8 0.6 0.1; H -0.85 0.6 0"
FLUORIDE = "H 0 0 0; F 0.1 0.2 0.9"


def reference(mole, xc, restricted=None, level=3) -> Any:
    """A converged calculation of PySCF."""
    kind = dft.RKS if mole.spin == 0 and restricted is not False else dft.ROKS if restricted else dft.UKS
    mf: Any = kind(mole)
    mf.xc, mf.conv_tol, mf.conv_tol_grad, mf.max_cycle, mf.verbose = xc, 1e-12, 1e-7, 200, 0
    mf.small_rho_cutoff = 0.0
    if isinstance(level, tuple):
        mf.grids.atom_grid = level
    else:
        mf.grids.level = level
    mf.kernel()
    assert mf.converged
    return mf


CASES = [
    # atoms, basis, functional, charge, spin, restricted, grid, cartesian
    ("He 0 0 0", "6-31g", "lda,pw", 0, 0, None, 3, False),
    (CROOKED, "6-31g*", "pbe", 0, 0, None, (40, 110), True),
    (FLUORIDE, "cc-pvtz", "revpbe", 0, 0, None, 0, False),
    (METHYL, "sto-3g", "pbe", 0, 1, True, 1, False),
    (WATER, "def2-svp", "b3lyp", 0, 0, None, 1, False),
    (METHYL, "3-21g", "pbe0", 0, 1, None, 1, False),
    (CROOKED, "3-21g", "camb3lyp", 0, 0, None, 1, False),
    (FLUORIDE, "3-21g", "hse06", 0, 0, None, 1, False),
    (CROOKED, "3-21g", "scan", 0, 0, None, 3, False),
    ("O 0 0 0; H 0 0 0.97", "6-31+g", "m06l", -1, 0, None, 1, False),
    ("ghost-O 0 0 0; O 0 0 1.0", "sto-3g", "pbe", 0, 2, None, 1, False),
]

MORE = [
    (CROOKED, "6-31g*", "svwn", 0, 0, None, 2, False),
    (CROOKED, "6-31g*", "pbe", 0, 0, None, 3, False),
    (AMMONIA, "3-21g", "blyp", 0, 0, None, 1, False),
    ("C 0 0 0; O 0 0 1.13", "3-21g", "bp86", 0, 0, None, 1, False),
    (FLUORIDE, "3-21g", "lc_wpbe", 0, 0, None, 1, False),
    (FLUORIDE, "3-21g", "tpssh", 0, 0, None, 1, False),
    ("O 0 0 0; H 0 0 0.97", "3-21g", "m06l", -1, 0, None, 1, False),
    ("ghost-O 0 0 0; H 0 0 1.0; F 0 0.3 1.9", "sto-3g", "b3lyp", 0, 0, None, 1, False),
    ("O 0 0 0; H 0 0 0.97", "6-31+g", "pbe0", -1, 0, None, 1, False),
    ("O 0 0 0; O 0 0 1.2", "sto-3g", "pbe", 0, 2, None, 1, False),
    (FLUORIDE, "3-21g", "wb97x", 0, 0, None, 1, False),
    (AMINO, "3-21g", "tpss", 0, 1, True, 1, False),
    ("Li 0 0 0; H 0 0 1.6", "sto-3g", "svwn", 1, 1, True, 3, False),
    (FLUORIDE, "3-21g", "rpbe", 0, 0, None, 1, False),
    ("N 0 0 0; N 0 0 1.1", "sto-3g", "pbesol", 0, 0, None, 1, False),
    ("S 0 0 0; H 0.96 0.2 0; H 0 1.34 0.1", "3-21g", "pbe", 0, 0, None, 1, False),
    (METHYL, "sto-3g", "blyp", 0, 1, None, 1, False),
    (WATER, "sto-3g", "b3lyp", 0, 0, False, 1, False),
    (FLUORIDE, "3-21g", "x3lyp", 0, 0, None, 1, False),
    (FLUORIDE, "3-21g", "bhandhlyp", 0, 0, None, 1, False),
    (FLUORIDE, "3-21g", "0.25*HF + 0.75*pbe, pbe", 0, 0, None, 1, False),
    (AMINO, "3-21g", "hse06", 0, 1, None, 1, False),
    (METHYL, "sto-3g", "r2scan", 0, 1, None, 1, False),
    (FLUORIDE, "3-21g", "m062x", 0, 0, None, 1, False),
]


@pytest.mark.parametrize(
    ("atoms", "basis", "xc", "charge", "spin", "restricted", "grid", "cart"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_energy_equals_pyscf(atoms, basis, xc, charge, spin, restricted, grid, cart):
    mole = gto.M(atom=atoms, basis=basis, charge=charge, spin=spin, cart=cart, verbose=0)
    mf = reference(mole, xc, restricted, grid)
    mol = jaxqc.Molecule.from_pyscf(mole)
    result = jaxqc.scf(mol, xc=xc, restricted=restricted, grid=grid)
    assert abs(float(result.energy) - mf.e_tot) < 1e-8
    assert result.energy_xc is not None
    assert abs(float(result.energy_xc) + float(result.energy_two_electron) - mf.scf_summary["e2"]) < 1e-5
    assert result.kind == type(mf).__name__ and result.xc == xc
    levels = np.asarray(result.mo_energy)
    if restricted is not True or spin == 0:
        np.testing.assert_allclose(levels, mf.mo_energy if levels.ndim == mf.mo_energy.ndim else levels, atol=2e-5)


# The cases of public bug reports; the values are those of PySCF 2.14 on its grid of level 3.


@pytest.mark.parametrize(
    ("xc", "basis", "expected"),
    [
        ("svwn", "sto-3g", -0.4356702330),
        pytest.param("pbe", "sto-3g", -0.4643756633, marks=pytest.mark.slow),
        pytest.param("b3lyp", "sto-3g", -0.4675325874, marks=pytest.mark.slow),
        ("scan", "sto-3g", -0.4664594201),
        ("pbe", "6-31g", -0.4974316279),
    ],
)
def test_hydrogen_atom(xc, basis, expected):
    mol = jaxqc.Molecule("H 0 0 0", basis=basis, spin=1)
    result = jaxqc.scf(mol, xc=xc)
    assert abs(float(result.energy) - expected) < 1e-8
    assert np.isfinite(np.asarray(result.fock)).all()
    np.testing.assert_allclose(jaxqc.gradient(result), 0.0, atol=1e-12)


def test_all_derivatives_of_the_hydrogen_atom_are_finite():
    mol = jaxqc.Molecule("H 0 0 0", basis="6-31g", spin=1)
    slope = jax.grad(lambda x: jaxqc.energy(mol.with_coords(x), xc="pbe", grid=1))
    _, curvature = jax.jvp(slope, (mol.coords,), (jnp.asarray([[0.3, -0.5, 1.0]]),))
    assert np.isfinite(np.asarray(curvature)).all()
    np.testing.assert_allclose(curvature, 0.0, atol=1e-6)


def test_restricted_open_shells_have_the_same_ranks():
    lithium = jaxqc.scf(jaxqc.Molecule("Li 0 0 0", basis="sto-3g", spin=1), xc="svwn", restricted=True)
    hydrogen = jaxqc.scf(jaxqc.Molecule("H 0 0 0", basis="sto-3g", spin=1), xc="svwn", restricted=True)
    assert abs(float(lithium.energy) + 7.2213016498) < 1e-8
    for name in ("mo_energy", "mo_coeff", "mo_occ", "density", "fock"):
        assert getattr(lithium, name).ndim == getattr(hydrogen, name).ndim
    assert hydrogen.kind == "ROKS"


def test_degenerate_radical_converges_by_second_order():
    mol = jaxqc.Molecule("N -0.5825 0 0; O 0.5825 0 0", basis="6-31g", spin=1)
    result = jaxqc.scf(mol, xc="svwn")
    assert abs(float(result.energy) + 128.8585339167) < 1e-8
    assert int(result.second_order_cycles) > 0
    # The electron in one of two equal orbitals lifts its own level above the empty one: a minimum all the same.
    assert jaxqc.scf.stability(mol, result).stable


def test_degenerate_radical_is_not_a_plain_number_without_second_order():
    mol = jaxqc.Molecule("N -0.5825 0 0; O 0.5825 0 0", basis="6-31g", spin=1)
    with pytest.raises(jaxqc.ConvergenceError, match="did not converge"):
        jaxqc.scf(mol, xc="svwn", second_order=False)
    # Dirac exchange alone is another functional.
    exchange_only = jaxqc.scf(mol, xc="lda", second_order=False, throw=False)
    assert abs(float(exchange_only.energy) + 127.83) < 0.01


@pytest.mark.parametrize(("xc", "expected"), [("b3lyp", -75.3125218865), ("b3lyp5", -75.2752381459)])
def test_what_b3lyp_means(xc, expected):
    assert abs(float(jaxqc.energy(jaxqc.Molecule(WATER, basis="sto-3g"), xc=xc)) - expected) < 1e-8


# Screening and invariants


@pytest.mark.slow
def test_screening():
    mol = jaxqc.Molecule(f"{AMMONIA}; O 0 0 6; H 0 0.7572 6.6; H 0 -0.7572 6.6", basis="6-31g")
    dense = float(jaxqc.energy(mol, xc="pbe", grid=1, epsilon=0.0))
    assert abs(float(jaxqc.energy(mol, xc="pbe", grid=1)) - dense) < 1e-9 * mol.natm
    assert abs(float(jaxqc.energy(mol, xc="pbe", grid=1, epsilon=1e-10)) - dense) < 1e-7 * mol.natm


def test_translation_rotation_and_order_of_atoms():
    mol = jaxqc.Molecule(CROOKED, basis="sto-3g")
    expected = float(jaxqc.energy(mol, xc="svwn"))
    moved = mol.with_coords(mol.coords + jnp.asarray([3.0, -7.0, 11.0]))
    assert abs(float(jaxqc.energy(moved, xc="svwn")) - expected) < 1e-10
    c, s = np.cos(0.4), np.sin(0.4)
    turn = jnp.asarray([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    # The Lebedev points do not turn with the molecule.
    assert abs(float(jaxqc.energy(mol.with_coords(mol.coords @ turn.T), xc="svwn")) - expected) < 2e-5
    swapped = jaxqc.Molecule("; ".join(CROOKED.split("; ")[k] for k in (2, 0, 1)), basis="sto-3g")
    assert abs(float(jaxqc.energy(swapped, xc="svwn")) - expected) < 1e-10


def test_far_atoms_and_far_from_the_origin():
    atom = float(jaxqc.energy(jaxqc.Molecule("He 0 0 0", basis="6-31g"), xc="svwn"))
    both = float(jaxqc.energy(jaxqc.Molecule("He 0 0 0; He 0 0 1000", basis="6-31g"), xc="svwn"))
    assert abs(both - 2.0 * atom) < 1e-8
    far = float(jaxqc.energy(jaxqc.Molecule("He 1e4 1e4 -1e4", basis="6-31g"), xc="svwn"))
    assert abs(far - atom) < 1e-8


@pytest.mark.parametrize(
    ("basis", "xc", "spin"),
    [("def2-tzvp", "b3lyp", 0), ("cc-pvtz", "scan", 0), ("aug-cc-pvdz", "wb97x", 1), ("def2-tzvp", "m06", 1)],
)
@pytest.mark.slow
def test_larger_basis_sets(basis, xc, spin):
    mole = gto.M(atom=CROOKED, basis=basis, charge=spin, spin=spin, verbose=0)
    mf = reference(mole, xc, None, 4)
    assert abs(float(jaxqc.energy(jaxqc.Molecule.from_pyscf(mole), xc=xc, grid=4)) - mf.e_tot) < 1e-8
