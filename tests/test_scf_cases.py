"""Small inputs that broke other programs, each with a known right value (Hartree; PySCF 2.14 where not said)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto, scf

import jaxqc

WATER_ATOMS = [("O", (0, 0, 0.1173)), ("H", (0, 0.7572, -0.4692)), ("H", (0, -0.7572, -0.4692))]
WATER = "; ".join(f"{s} {x} {y} {z}" for s, (x, y, z) in WATER_ATOMS)


def energy(atoms, basis, *, charge=0, spin=0, unit="angstrom", cart=False, **options):
    """Hartree-Fock energy as a float."""
    mol = jaxqc.Molecule(atoms, basis=basis, charge=charge, spin=spin, unit=unit, cart=cart)
    return float(jaxqc.scf(mol, **options).energy)


# An empty spin channel


@pytest.mark.parametrize(("basis", "expected"), [("sto-3g", -0.4665818496), ("cc-pvdz", -0.4992784034)])
def test_hydrogen_atom_has_no_beta_electron(basis, expected):
    mol = jaxqc.Molecule("H 0 0 0", basis=basis, spin=1)
    result = jaxqc.scf(mol)
    assert abs(float(result.energy) - expected) < 1e-9
    for leaf in (result.fock, result.mo_energy, result.mo_coeff, result.density, result.spin_square, result.charges):
        assert np.isfinite(np.asarray(leaf)).all()
    # The beta electron's Fock matrix is that of the field of the alpha electron.
    mole = mol.to_pyscf()
    expected_fock = scf.UHF(mole).get_fock(dm=np.asarray(result.density))
    np.testing.assert_allclose(result.fock, expected_fock, atol=1e-9)
    np.testing.assert_allclose(jaxqc.gradient(mol), np.zeros((1, 3)), atol=1e-30)  # rounding of some XLA: 1e-47


def test_hydrogen_atom_with_negative_spin_is_refused():
    with pytest.raises(ValueError, match="spin=1"):
        jaxqc.Molecule("H 0 0 0", basis="sto-3g", spin=-1)


def test_arrays_of_open_shells_have_the_same_rank():
    hydrogen = jaxqc.scf(jaxqc.Molecule("H 0 0 0", basis="sto-3g", spin=1), restricted=True)
    lithium = jaxqc.scf(jaxqc.Molecule("Li 0 0 0", basis="sto-3g", spin=1), restricted=True)
    for name in ("mo_energy", "mo_coeff", "mo_occ", "density", "fock"):
        assert getattr(hydrogen, name).ndim == getattr(lithium, name).ndim
    np.testing.assert_array_equal(lithium.mo_occ[:3], [2.0, 1.0, 0.0])


def test_nuclear_repulsion_of_one_atom_is_exactly_zero():
    mol = jaxqc.Molecule("H 0 0 0.3", basis="sto-3g", spin=1)
    assert float(jaxqc.scf(mol).energy_nuclear) == 0.0
    np.testing.assert_array_equal(jax.grad(lambda x: mol.with_coords(x).energy_nuc())(mol.coords), np.zeros((1, 3)))


# Convergence and roots


@pytest.mark.parametrize("guess", ["atom", "core"])
def test_water_cation_ends_in_the_lower_root(guess):
    atoms = "O 0 0 -0.224905893; H 1.4523499293 0 0.899623572; H -1.4523499293 0 0.899623572"
    value = energy(atoms, "cc-pvdz", charge=1, spin=1, unit="bohr", guess=guess)
    assert abs(value + 75.6330881795) < 1e-9


def test_nitric_oxide_converges():
    mole = gto.M(atom="N -0.5825 0 0; O 0.5825 0 0", basis="6-31g", spin=1, verbose=0)
    mf: Any = scf.UHF(mole).newton()
    mf.conv_tol = 1e-12
    expected = mf.kernel()
    mf._chkfile.close()  # PySCF leaves it open, and the collector's warning would fail whatever test runs then.
    mol = jaxqc.Molecule.from_pyscf(mole)
    result = jaxqc.scf(mol)
    assert bool(result.converged)
    assert abs(float(result.energy) - expected) < 1e-9
    assert jaxqc.scf.stability(mol, result).stable


def test_carbon_atom_does_not_depend_on_the_axes():
    # UHF breaks the symmetry of the atom; the energy is that without symmetry, however the axes are turned.
    assert abs(energy("C 0 0 0", "cc-pvtz", spin=2) + 37.6915691728) < 1e-9
    mol = jaxqc.Molecule("C 0 0 0; He 0.9 0.5 2.7", basis="6-31g*", spin=2)
    turned = mol.with_coords(mol.coords @ _rotation(1.1, 0.4, -0.7).T)
    assert abs(float(jaxqc.energy(mol)) - float(jaxqc.energy(turned))) < 1e-9


def test_hydroxyl_with_spin_zero_is_refused():
    with pytest.raises(ValueError, match="9 electrons.*spin=0.*2S"):
        jaxqc.Molecule("O 0 0 0; H 0 0 0.97", basis="sto-3g", spin=0)


# Far apart


def test_far_helium_atoms_are_twice_one():
    far = energy("He 0 0 0; He 0 0 1000", "sto-3g")
    assert abs(far - 2 * energy("He 0 0 0", "sto-3g")) < 1e-9
    assert abs(far + 5.6155679151) < 1e-9


def test_far_hydrogen_atoms_are_twice_one():
    far = energy("H 0 0 0; H 0 0 1000", "sto-3g", spin=2)
    assert abs(far + 0.9331636991) < 1e-9
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 1000", basis="sto-3g", spin=2)
    assert np.abs(np.asarray(jaxqc.gradient(mol))).max() < 1e-9


# Ghosts


def test_ghost_atom_gives_functions_and_nothing_else():
    atoms = "ghost-O 0 0 0; O 0 0 1"
    mol = jaxqc.Molecule(atoms, basis="sto-6g", spin=2)
    assert (mol.nelec, mol.nao, float(mol.energy_nuc())) == (8, 10, 0.0)
    result = jaxqc.scf(mol)
    assert abs(float(result.energy) + 74.5366638674) < 1e-9
    bare = energy("O 0 0 0", "sto-6g", spin=2)
    assert abs(bare + 74.5168163135) < 1e-9
    assert np.isfinite(np.asarray(jaxqc.gradient(mol))).all()


# Core potentials


def test_xenon_needs_its_core_potential():
    with pytest.raises(NotImplementedError, match="core potential"):
        jaxqc.Molecule("Xe 0 0 0", basis="def2-svp")


# Basis input


def test_integer_keys_of_a_basis():
    atoms = "O 0 0 0; H 0 1 0; H 0 0 1"
    mol = jaxqc.Molecule(atoms, basis={1: "def2-TZVP", 8: "def2-TZVP"})
    assert mol.nao == 43
    assert abs(float(jaxqc.energy(mol)) + 76.0474395568) < 1e-9
    assert mol.nao == jaxqc.Molecule(atoms, basis={"H": "def2-TZVP", "O": "def2-TZVP"}).nao


# Units


@pytest.mark.parametrize("unit", ["Bohr", "bohr", "Angstrom", "ANGSTROM"])
def test_units(unit):
    expected = -1.1167143251 if unit.lower() == "bohr" else -0.9414806547
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 1.4", basis="sto-3g", unit=unit)
    assert abs(float(jaxqc.energy(mol)) - expected) < 1e-9
    np.testing.assert_array_equal(mol.with_coords(mol.coords).coords, mol.coords)


# Cartesian functions


@pytest.mark.parametrize(("cart", "nao", "expected"), [(True, 25, -76.0243517048), (False, 24, -76.0240385794)])
def test_cartesian_and_spherical_water(cart, nao, expected):
    atoms = "O 0 0 0; H 1.515262 0 1.049898; H -1.515262 0 1.049898"
    mol = jaxqc.Molecule(atoms, basis="cc-pvdz", unit="bohr", cart=cart)
    assert mol.nao == nao
    assert abs(float(jaxqc.energy(mol)) - expected) < 1e-9


@pytest.mark.parametrize(("cart", "expected"), [(False, -75.9609839871), (True, -75.9622197550)])
def test_water_in_def2_svp(cart, expected):
    assert abs(energy(WATER, "def2-svp", cart=cart) - expected) < 1e-9


# Linear dependence


@pytest.mark.parametrize("guess", ["atom", "core"])
def test_neon_dimer_close_together(guess):
    value = energy("Ne 0 0 0; Ne 0 0 1.0", "unc-aug-cc-pvtz", guess=guess)
    assert abs(value + 255.6575926026) < 1e-9


def test_linearly_dependent_functions_are_removed():
    # A ghost almost on top of helium spans almost the same functions. The reference is PySCF with the projection on the
    # eigenvectors of the overlap above the same threshold put into its eigensolver.
    mole = gto.M(atom="He 0 0 0; ghost-He 0 0 1e-4; H 0 0 1.5", basis="6-31g", charge=1, unit="bohr", verbose=0)
    mf: Any = scf.RHF(mole)
    values, vectors = np.linalg.eigh(mf.get_ovlp())
    kept = vectors[:, values > 1e-6] / np.sqrt(values[values > 1e-6])

    def eig(fock, *_, **__):
        levels, orbitals = np.linalg.eigh(kept.T @ fock @ kept)
        return levels, kept @ orbitals

    mf.eig, mf.conv_tol, mf.init_guess = eig, 1e-12, "1e"
    expected = mf.kernel()
    assert mf.converged
    mol = jaxqc.Molecule.from_pyscf(mole)
    result = jaxqc.scf(mol, linear_dependence=1e-6)
    assert int(result.removed) == 2
    assert abs(float(result.energy) - expected) < 1e-9
    assert "removed as linearly dependent" in repr(result)

    def in_field(f):
        return jaxqc.energy(mol, field=f, linear_dependence=1e-6, gradient_tolerance=1e-8)

    np.testing.assert_allclose(-jax.grad(in_field)(jnp.zeros(3)), result.dipole("au"), atol=1e-6)
    step = jnp.asarray([0.0, 0.0, 1e-3])
    expected = (jax.grad(in_field)(step) - jax.grad(in_field)(-step)) / 2e-3
    np.testing.assert_allclose(jax.hessian(in_field)(jnp.zeros(3))[2], expected, atol=1e-5)


# Invariants


def _rotation(a, b, c):
    def plane(angle, i, j):
        matrix = np.eye(3)
        matrix[[i, j], [i, j]] = np.cos(angle)
        matrix[i, j], matrix[j, i] = -np.sin(angle), np.sin(angle)
        return matrix

    return jnp.asarray(plane(a, 0, 1) @ plane(b, 1, 2) @ plane(c, 0, 2))


@pytest.fixture(scope="module")
def water():
    return jaxqc.Molecule(WATER, basis="6-31g*")


def test_rotation_and_translation(water):
    expected = float(jaxqc.energy(water))
    turn = _rotation(0.3, 1.2, -0.5)
    moved = water.with_coords(water.coords @ turn.T + jnp.asarray([3.0, -7.0, 11.0]))
    assert abs(float(jaxqc.energy(moved)) - expected) < 1e-9
    np.testing.assert_allclose(jaxqc.gradient(moved), jaxqc.gradient(water) @ turn.T, atol=1e-7)
    np.testing.assert_allclose(jaxqc.scf(moved).dipole(), turn @ jaxqc.scf(water).dipole(), atol=1e-5)


def test_order_of_atoms(water):
    turned = jaxqc.Molecule([WATER_ATOMS[k] for k in (2, 0, 1)], basis="6-31g*")
    assert abs(float(jaxqc.energy(turned)) - float(jaxqc.energy(water))) < 1e-9


def test_forces_sum_to_zero(water):
    crooked = water.with_coords(water.coords + 0.1 * jnp.asarray([[0.1, 0.7, 0.2], [0.5, -0.3, 0.4], [0.2, 0.1, -0.6]]))
    assert np.abs(np.asarray(jaxqc.gradient(crooked)).sum(axis=0)).max() < 1e-9


def test_jit_equals_no_jit(water):
    traced = jax.jit(lambda x: jaxqc.energy(water.with_coords(x)))(water.coords)
    assert abs(float(traced) - float(jaxqc.energy(water))) < 1e-11
    whole = jax.jit(jaxqc.energy)(water)
    assert abs(float(whole) - float(traced)) < 1e-11


def test_basis_by_name_dict_and_text():
    named = energy("H 0 0 0; F 0 0 0.917", "6-31g")
    by_element = energy("H 0 0 0; F 0 0 0.917", {"H": "6-31g", "F": "6-31g"})
    table = {symbol: gto.basis.load("6-31g", symbol) for symbol in ("H", "F")}
    assert abs(named - by_element) < 1e-12
    assert abs(named - energy("H 0 0 0; F 0 0 0.917", table)) < 1e-12
