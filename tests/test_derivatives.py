"""Derivatives of energies and of properties of the density, against PySCF and central differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from differences import central
from pyscf import gto, scf

import jaxqc

TIGHT: dict[str, Any] = {"tolerance": 1e-12, "gradient_tolerance": 1e-9}
WATER = "O 0 0.02 0.1173; H 0.05 0.7572 -0.4692; H 0 -0.7372 -0.4792"
CASES = {
    # name: (atoms, basis, charge, spin, restricted, cartesian)
    "rhf": (WATER, "6-31g*", 0, 0, None, False),
    "rhf-cartesian": (WATER, "6-31g*", 0, 0, None, True),
    "rhf-f": ("H 0 0 0; F 0.1 0.2 0.917", "cc-pvtz", 0, 0, None, False),
    "rhf-cation": ("O 0 0 0; H 0.95 0 0.2; H -0.45 0.8 0.2; H -0.5 -0.8 0.25", "def2-svp", 1, 0, None, False),
    "uhf": ("N 0 0 0; H 0.8 0.6 0.1; H -0.85 0.6 0", "cc-pvdz", 0, 1, None, False),
    "rohf": ("C 0 0 0.1; H 1.079 0 0; H -0.5395 0.9344 0; H -0.5395 -0.9344 0", "6-31g", 0, 1, True, False),
    "third-row": ("S 0 0 0; O 0.1 0.2 1.48", "3-21g", 0, 2, None, False),
    "ghost": ("ghost-O 0 0 0; H 0 0 1.0; F 0 0.3 1.9", "sto-3g", 0, 0, None, False),
}


def molecule(name):
    atoms, basis, charge, spin, _, cart = CASES[name]
    return jaxqc.Molecule(atoms, basis=basis, charge=charge, spin=spin, cart=cart)


def reference(name) -> Any:
    _, _, _, spin, restricted, _ = CASES[name]
    kind = scf.RHF if spin == 0 else scf.ROHF if restricted else scf.UHF
    mf: Any = kind(molecule(name).to_pyscf())
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle, mf.verbose = 1e-13, 1e-8, 200, 0
    mf.kernel()
    return mf


# First order


@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_pyscf(name):
    mf = reference(name)
    mol = molecule(name)
    slopes = np.asarray(jaxqc.gradient(mol, restricted=CASES[name][4]))
    assert abs(float(jaxqc.energy(mol, restricted=CASES[name][4])) - mf.e_tot) < 1e-9
    np.testing.assert_allclose(slopes, mf.nuc_grad_method().kernel(), atol=1e-7)
    assert np.abs(slopes.sum(axis=0)).max() < 1e-9


@pytest.mark.parametrize(
    ("atoms", "basis", "charge", "spin"),
    [
        ("O 0 0 0; H 0 0 0.97", "aug-cc-pvdz", -1, 0),
        ("C 0 0 0; N 0 0 1.17", "cc-pvdz", 0, 1),
        ("N 0 0 0; O 0 0 1.15", "6-31g*", 0, 1),
    ],
)
def test_default_tolerance_gives_the_gradient_to_seven_digits(atoms, basis, charge, spin):
    # Diffuse functions and soft rotations: the gradient is wrong in first order of the orbital gradient.
    mol = jaxqc.Molecule(atoms, basis=basis, charge=charge, spin=spin)
    result = jaxqc.scf(mol)
    mf: Any = (scf.UHF if spin else scf.RHF)(mol.to_pyscf())
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle, mf.verbose = 1e-12, 5e-9, 200, 0
    mf.kernel(np.asarray(result.density))
    assert np.linalg.norm(mf.get_grad(mf.mo_coeff, mf.mo_occ)) < 1e-8
    expected = mf.nuc_grad_method().kernel()
    np.testing.assert_allclose(jaxqc.gradient(result), expected, atol=1e-7)
    np.testing.assert_allclose(jaxqc.gradient(mol), expected, atol=1e-7)


@pytest.mark.parametrize("name", ["rhf", "uhf", "rohf", "ghost"])
def test_gradient_equals_central_differences(name):
    mol, options = molecule(name), {**TIGHT, "restricted": CASES[name][4]}
    expected = central(lambda x: jaxqc.energy(mol.with_coords(x), **options), mol.coords)
    np.testing.assert_allclose(jaxqc.gradient(mol, **options), expected, atol=1e-7)


def test_gradient_in_all_its_forms():
    mol = molecule("rhf")
    expected = np.asarray(jaxqc.gradient(mol))

    def total(x):
        return jaxqc.energy(mol.with_coords(x))

    np.testing.assert_allclose(jax.grad(total)(mol.coords), expected, atol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(mol.coords), expected, atol=1e-10)
    np.testing.assert_allclose(jax.jit(jaxqc.gradient)(mol), expected, atol=1e-10)
    np.testing.assert_allclose(jaxqc.gradient(jaxqc.scf(mol)), expected, atol=1e-10)
    np.testing.assert_allclose(
        jax.grad(lambda x: jaxqc.scf(mol.with_coords(x)).energy)(mol.coords), expected, atol=1e-10
    )
    whole = jax.grad(jaxqc.energy)(mol)
    np.testing.assert_allclose(whole.coords, expected, atol=1e-10)
    direction = jnp.asarray(np.random.default_rng(3).normal(size=(3, 3)))
    value, slope = jax.jvp(total, (mol.coords,), (direction,))
    assert abs(float(value) - float(total(mol.coords))) < 1e-11
    assert abs(float(slope) - float(np.sum(expected * np.asarray(direction)))) < 1e-10


@pytest.mark.parametrize(
    ("leaf", "name"),
    [
        ("exponents", "rohf"),
        ("coefficients", "ghost"),
        pytest.param("exponents", "ghost", marks=pytest.mark.slow),
        pytest.param("coefficients", "rohf", marks=pytest.mark.slow),
    ],
)
def test_basis_set_gradient(leaf, name):
    mol, options = molecule(name), {**TIGHT, "restricted": CASES[name][4]}
    with_leaf = getattr(mol, f"with_{leaf}")
    values = getattr(mol, leaf)

    # Relative changes of each number, because exponents span orders of magnitude.
    def total(scales):
        return jaxqc.energy(with_leaf(values * scales), **options)

    ones = jnp.ones_like(values)
    slopes = jax.grad(total)(ones)
    np.testing.assert_allclose(slopes, central(total, ones), atol=2e-8)
    # The norm of a contraction has no meaning, so neither has a common factor of its coefficients.
    if leaf == "coefficients":
        shell = max(mol.shells, key=lambda s: s.nprim)
        assert abs(float(slopes[shell.coefficient_start : shell.coefficient_start + shell.nprim].sum())) < 1e-9


def test_vmap_equals_loop():
    mol = molecule("ghost")
    batch = jnp.stack([mol.coords, mol.coords * 1.02, mol.coords + 0.1 * jnp.sin(mol.coords)])

    def total(x):
        return jaxqc.energy(mol.with_coords(x))

    np.testing.assert_allclose(jax.vmap(total)(batch), [float(total(x)) for x in batch], atol=1e-10)
    expected = [np.asarray(jax.grad(total)(x)) for x in batch]
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(total)))(batch), expected, atol=1e-8)


# The electric field


@pytest.mark.parametrize("name", ["rhf", "uhf", "rohf"])
def test_field(name):
    mol, options = molecule(name), {**TIGHT, "restricted": CASES[name][4]}
    result = jaxqc.scf(mol, **options)

    def total(f):
        return jaxqc.energy(mol, field=f, **options)

    zero = jnp.zeros(3)
    np.testing.assert_allclose(-jax.grad(total)(zero), result.dipole("au"), atol=1e-9)
    field = jnp.asarray([0.01, -0.02, 0.015])
    mf = reference(name)
    h = mf.get_hcore() + np.einsum("x,xij->ij", field, mf.mol.intor("int1e_r"))
    mf.get_hcore = lambda *_: h
    mf.kernel()
    nuclear = -np.einsum("a,ax,x->", mf.mol.atom_charges(), mf.mol.atom_coords(), field)
    assert abs(float(total(field)) - mf.e_tot - float(nuclear)) < 1e-9
    np.testing.assert_allclose(jax.grad(total)(field), central(total, field), atol=1e-7)
    polarisability = -np.asarray(jax.hessian(total)(zero))

    # The slope is wrong in first order of the orbital gradient, and here the difference of two is divided by 2e-3.
    slope = jax.grad(lambda f: jaxqc.energy(mol, field=f, **{**options, "gradient_tolerance": 1e-11}))
    np.testing.assert_allclose(polarisability, -central(slope, zero, step=2e-3), atol=1e-6)
    np.testing.assert_allclose(polarisability, polarisability.T, atol=1e-8)


# Second and third order


def test_hessian_equals_pyscf():
    mole = gto.M(atom=WATER, basis="sto-3g", verbose=0)
    mf: Any = scf.RHF(mole)
    mf.conv_tol, mf.conv_tol_grad = 1e-13, 1e-9
    mf.kernel()
    expected = mf.Hessian().kernel().transpose(0, 2, 1, 3)
    mol = jaxqc.Molecule.from_pyscf(mole)
    hessian = jax.hessian(lambda x: jaxqc.energy(mol.with_coords(x), **TIGHT))(mol.coords)
    np.testing.assert_allclose(hessian, expected, atol=1e-6)


@pytest.mark.parametrize(("spin", "restricted"), [(1, None), (1, True)])
def test_open_shell_hessian_equals_central_differences(spin, restricted):
    mol = jaxqc.Molecule("O 0 0 0; H 0.1 0.2 0.97", basis="sto-3g", spin=spin)
    options = {**TIGHT, "restricted": restricted}

    def total(x):
        return jaxqc.energy(mol.with_coords(x), **options)

    hessian = np.asarray(jax.hessian(total)(mol.coords))
    np.testing.assert_allclose(hessian, central(jax.grad(total), mol.coords), atol=1e-6)
    np.testing.assert_allclose(hessian, hessian.transpose(2, 3, 0, 1), atol=1e-7)


@pytest.mark.parametrize(
    ("basis", "middle", "outer"),
    [
        ("sto-3g", jax.grad, jax.jacfwd),
        pytest.param("6-31g**", jax.grad, jax.grad, marks=pytest.mark.slow),
        pytest.param("sto-3g", jax.jacfwd, jax.jacfwd, marks=pytest.mark.slow),
    ],
)
def test_third_derivative_of_hydrogen(basis, middle, outer):
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 1.4", basis=basis, unit="bohr")

    def total(r):
        return jaxqc.energy(mol.with_coords(jnp.asarray([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]) * r), **TIGHT)

    second = jax.jit(middle(jax.grad(total)))
    third = jax.jit(outer(middle(jax.grad(total))))
    assert abs(float(third(1.4)) - float(central(second, 1.4))) < 1e-5


# Properties of the density


@pytest.mark.parametrize("name", ["ghost", "rohf"])
def test_dipole_derivative(name):
    mol, options = molecule(name), {**TIGHT, "restricted": CASES[name][4]}

    def moment(x):
        return jaxqc.scf(mol.with_coords(x), **options).dipole("au")

    expected = np.moveaxis(central(moment, mol.coords), -1, 0)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(moment))(mol.coords), expected, atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.jacrev(moment))(mol.coords), expected, atol=1e-6)


def test_density_derivative_with_degenerate_levels():
    mol = jaxqc.Molecule("N 0 0 0; N 0 0 1.1", basis="sto-3g")

    def quantities(r):
        coords = jnp.asarray([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]) * r
        result = jaxqc.scf(mol.with_coords(coords), **TIGHT)
        squared = jnp.sum(result.density**2)
        # Sums over degenerate levels, and a Mulliken charge, which brings in the overlap.
        return jnp.stack([squared, jnp.sum(result.mo_energy[4:7]), result.mo_energy[0], result.charges[0]])

    expected = central(quantities, 2.1)
    slopes = np.asarray(jax.jacfwd(quantities)(2.1))
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(slopes, expected, atol=1e-6)


def test_parts_of_the_energy_differentiate():
    mol = molecule("ghost")

    def parts(x):
        r = jaxqc.scf(mol.with_coords(x), **TIGHT)
        return jnp.stack([r.energy_nuclear, r.energy_one_electron, r.energy_two_electron])

    slopes = np.asarray(jax.jit(jax.jacfwd(parts))(mol.coords))
    np.testing.assert_allclose(slopes, np.moveaxis(central(parts, mol.coords), -1, 0), atol=1e-6)
    np.testing.assert_allclose(slopes.sum(axis=0), jaxqc.gradient(mol, **TIGHT), atol=1e-7)


def test_atom_has_no_gradient():
    mol = jaxqc.Molecule("H 0.1 0.2 0.3", basis="6-31g", spin=1)
    np.testing.assert_allclose(jaxqc.gradient(mol), np.zeros((1, 3)), atol=1e-12)
    hessian = jax.hessian(lambda x: jaxqc.energy(mol.with_coords(x)))(mol.coords)
    np.testing.assert_allclose(hessian, np.zeros((1, 3, 1, 3)), atol=1e-8)
