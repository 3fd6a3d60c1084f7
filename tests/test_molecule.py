"""The molecule against PySCF, under JAX transformations, and as an object people handle."""

import pickle
import subprocess
import sys
import warnings
from itertools import combinations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto

from jaxqc import Molecule

ROOT = Path(__file__).parent.parent
WATER = "O 0.1 0 0; H 0 0 0.96; H 0.93 0 -0.24"
STRETCHED = "P 0 0.2 0; S 0 0 1.9; Cl 1.9 0 -0.24; Li 0 2.5 0.3; H 1 -1 0.1"  # three rows


def assert_same_functions(mol, mole):
    """Orbital counts, order, labels, offsets, normalisation and coordinates, all exactly as PySCF has them."""
    other = mol.to_pyscf()
    assert mol.nao == mole.nao_nr()
    assert mol.ao_labels() == mole.ao_labels()
    np.testing.assert_array_equal(mol.aoslice, mole.aoslice_by_atom()[:, 2:])
    np.testing.assert_array_equal(np.asarray(mol.coords), mole.atom_coords())
    np.testing.assert_array_equal(mol.numbers, mole.atom_charges())
    assert (mol.nalpha, mol.nbeta) == tuple(mole.nelec)
    np.testing.assert_array_equal(other.intor("int1e_ovlp"), mole.intor("int1e_ovlp"))
    assert mol.nshell == sum(mole.bas_nctr(k) for k in range(mole.nbas))
    assert other.ao_labels() == mole.ao_labels()


BASES = [
    *("sto-3g", "6-31g**", "6-31g(d,p)", "6-311++g**", "3-21g", "cc-pvdz", "cc-pvtz", "cc-pvqz"),
    *(
        "cc-pv5z",
        "aug-cc-pvtz",
        "def2-svp",
        "def2-tzvpp",
        "def2-qzvpp",
        "ano",
        "ano@4s3p2d1f",
        "unc-cc-pvdz",
        "DEF2 SVP",
    ),
]


@pytest.mark.parametrize("cart", [False, True], ids=["spherical", "cartesian"])
@pytest.mark.parametrize("basis", BASES)
def test_functions_agree_with_pyscf(basis, cart):
    mole = gto.M(atom=WATER, basis=basis, cart=cart, verbose=0)
    assert_same_functions(Molecule(WATER, basis=basis, cart=cart), mole)
    assert_same_functions(Molecule.from_pyscf(mole), mole)


@pytest.mark.parametrize("basis", ["sto-3g", "6-31g**", "cc-pvtz", "def2-tzvpp", "ano-rcc"])
def test_functions_of_three_rows_agree_with_pyscf(basis):
    mole = gto.M(atom=STRETCHED, basis=basis, spin=1, charge=1, verbose=0)
    assert_same_functions(Molecule(STRETCHED, basis=basis, spin=1, charge=1), mole)
    assert_same_functions(Molecule.from_pyscf(mole), mole)


@pytest.mark.parametrize("symbol", ["H", "He", "Li", "Be", "B", "C", "N", "O", "F", "Ne", "Na", "Si", "Ar", "Sc", "Kr"])
def test_atoms_agree_with_pyscf(symbol):
    spin = gto.charge(symbol) % 2
    mole = gto.M(atom=symbol, basis="def2-tzvp", spin=spin, verbose=0)
    assert_same_functions(Molecule(f"{symbol} 0 0 0", basis="def2-tzvp", spin=spin), mole)


GHOSTS = [
    ("O 0 0 0; H 0 0 1; ghost-H 0 1 0", "cc-pvdz"),
    ("O 0 0 0; H 0 0 1; GHOST-O1 0 0 1", "6-31g"),
    ("O 0 0 0; H 0 0 1; X-F 0 1 0; Xe 0 0 3", "3-21g"),
    ("O1 0 0 0; H 0 0 1; ghost.He 0 1 0", {"O1": "cc-pvtz", "H": "6-31g", "He": "sto-3g"}),
    ("O 0 0 0; H 0 0 1; X 0 1 0", {"O": "cc-pvdz", "H": "6-31g", "X": [[0, [1.3, 1.0]], [1, [0.7, 1.0]]]}),
    ("O 0 0 0; H@1 0 0 1; ghost-H@2 0 1 0", {"O": "cc-pvdz", "H@1": "6-31g", "H@2": "3-21g"}),
]


@pytest.mark.parametrize("atoms, basis", GHOSTS)
def test_ghosts_agree_with_pyscf(atoms, basis):
    mole = gto.M(atom=atoms, basis=basis, spin=1, verbose=0)
    assert_same_functions(Molecule(atoms, basis=basis, spin=1), mole)
    assert_same_functions(Molecule.from_pyscf(mole), mole)


def test_ghost_has_functions_but_neither_charge_nor_electrons():
    mol = Molecule("ghost-O 0 0 0; O 0 0 1", basis="sto-6g", spin=2)
    assert (mol.nelec, mol.nalpha, mol.nbeta, mol.nao) == (8, 5, 3, 10)
    assert mol.numbers == (0, 8) and mol.symbols == ("O", "O") and mol.labels == ("GHOST-O", "O")
    assert float(mol.energy_nuc()) == 0.0


def test_basis_by_label_agrees_with_pyscf():
    atoms = "O 0 0 0; H1 0 0 0.96; H2 0.93 0 -0.24; O@3 0 3 0"
    basis = {"o@3": "sto-3g", "O": "cc-pvtz", "H2": "6-31g**", "h1": "aug-cc-pvdz"}
    mole = gto.M(atom=atoms, basis=basis, verbose=0)
    assert_same_functions(Molecule(atoms, basis=basis), mole)
    assert_same_functions(Molecule.from_pyscf(mole), mole)


def test_units_agree():
    bohr = Molecule("H 0 0 0; H 0 0 1.4", "sto-3g", unit="BOHR")
    assert float(bohr.coords[1, 2]) == 1.4
    for unit in ("angstrom", "Ang", "A", "ANGSTROM"):
        angstrom = Molecule("H 0 0 0; H 0 0 1.4", "sto-3g", unit=unit)
        np.testing.assert_array_equal(angstrom.coords, gto.M(atom="H 0 0 0; H 0 0 1.4", verbose=0).atom_coords())
    for unit in ("bohr", "b", "au", "AU", "a.u."):
        np.testing.assert_array_equal(Molecule("H 0 0 0; H 0 0 1.4", "sto-3g", unit=unit).coords, bohr.coords)
    np.testing.assert_array_equal(bohr.with_coords(bohr.coords).coords, bohr.coords)
    back = angstrom.with_coords(angstrom.coords * 0.52917721092, unit="angstrom")
    np.testing.assert_allclose(back.coords, angstrom.coords, rtol=1e-15)


def test_other_numbers_of_electrons():
    assert Molecule(WATER, "sto-3g", charge=1, spin=1).nelec == 9
    assert Molecule("O 0 0 0", "sto-3g", spin=2).nalpha == 5
    hydrogen = Molecule("H 0 0 0", "sto-3g", spin=1)
    assert (hydrogen.nalpha, hydrogen.nbeta, hydrogen.nelec) == (1, 0, 1)
    assert Molecule("H 0 0 0", "sto-3g", charge=int(np.int64(-1))).nelec == 2


def test_heavy_ghost_needs_no_potential():
    mol = Molecule("He 0 0 0; ghost-Xe 0 0 3", "def2-svp")
    assert mol.nelec == 2 and mol.nao > 10


# Derivatives and transformations


def brute_force_repulsion(charges, coords):
    return sum(a * b / np.linalg.norm(x - y) for (a, x), (b, y) in combinations(zip(charges, coords, strict=True), 2))


def test_nuclear_repulsion_and_its_derivatives():
    mol = Molecule(STRETCHED + "; ghost-O 0 0 0.3", "sto-3g", spin=1, charge=1)
    coords = np.asarray(mol.coords)
    assert float(mol.energy_nuc()) == pytest.approx(brute_force_repulsion(mol.numbers, coords), rel=1e-14)
    gradient = jax.grad(lambda x: mol.with_coords(x).energy_nuc())(mol.coords)
    step = 1e-4
    for atom, axis in np.ndindex(mol.natm, 3):
        plus, minus = (coords + s * step * np.eye(3 * mol.natm)[3 * atom + axis].reshape(-1, 3) for s in (1, -1))
        difference = (brute_force_repulsion(mol.numbers, plus) - brute_force_repulsion(mol.numbers, minus)) / (2 * step)
        assert float(gradient[atom, axis]) == pytest.approx(difference, abs=1e-6)
    assert np.abs(np.sum(gradient, axis=0)).max() < 1e-12
    assert (np.asarray(gradient)[-1] == 0).all()


@pytest.mark.parametrize("atoms", ["He 0 0 0", "He 0 0 0; ghost-He 0 0 0", "ghost-O 0 0 1; He 0 0 0"])
def test_repulsion_of_one_nucleus_is_exactly_zero(atoms):
    mol = Molecule(atoms, "sto-3g")
    energy = lambda x: mol.with_coords(x).energy_nuc()  # noqa: E731
    assert float(mol.energy_nuc()) == 0.0
    assert (np.asarray(jax.grad(energy)(mol.coords)) == 0.0).all()
    assert (np.asarray(jax.hessian(energy)(mol.coords)) == 0.0).all()


def test_far_nuclei_repel_weakly():
    mol = Molecule("H 0 0 0; H 0 0 1e7", "sto-3g", unit="bohr")
    assert float(mol.energy_nuc()) == pytest.approx(1e-7, rel=1e-14)
    assert np.isfinite(jax.hessian(lambda x: mol.with_coords(x).energy_nuc())(mol.coords)).all()


def test_transformations_agree():
    mol = Molecule(WATER, "cc-pvdz")
    energy = lambda x: mol.with_coords(x).energy_nuc()  # noqa: E731
    batch = jnp.stack([mol.coords, 1.1 * mol.coords, 0.7 * mol.coords])
    each = np.array([float(energy(x)) for x in batch])
    np.testing.assert_allclose(jax.vmap(energy)(batch), each, rtol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.vmap(energy))(batch), each, rtol=1e-14)
    np.testing.assert_allclose(each, each[0] / np.array([1.0, 1.1, 0.7]), rtol=1e-14)
    tangent = jax.jvp(energy, (mol.coords,), (mol.coords,))[1]
    assert float(tangent) == pytest.approx(-each[0], rel=1e-13)  # scaling all distances


def test_molecule_is_a_pytree():
    mol = Molecule(WATER, "cc-pvdz")
    leaves, tree = jax.tree.flatten(mol)
    assert [leaf.shape for leaf in leaves] == [mol.coords.shape, mol.exponents.shape, mol.coefficients.shape]
    assert all(leaf.dtype == jnp.float64 for leaf in leaves)
    again = jax.tree.unflatten(tree, leaves)
    assert again.shells == mol.shells and again.nao == mol.nao
    assert hash(tree) == hash(jax.tree.structure(again)) and tree == jax.tree.structure(again)
    assert tree != jax.tree.structure(Molecule(WATER, "cc-pvtz"))
    assert tree != jax.tree.structure(Molecule(WATER, "cc-pvdz", charge=2))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(mol)[0]]
    assert paths == [".coords", ".exponents", ".coefficients"]
    gradient = jax.grad(lambda m: m.energy_nuc() + jnp.sum(m.exponents**2))(mol)
    np.testing.assert_allclose(gradient.exponents, 2 * mol.exponents)


def test_other_coordinates_and_equal_molecules_compile_nothing():
    traces = []

    @jax.jit
    def energy(mol):
        traces.append(mol)
        return mol.energy_nuc()

    mol = Molecule(WATER, "cc-pvdz")
    energy(mol)
    energy(mol.with_coords(mol.coords * 1.1))
    energy(mol.with_exponents(mol.exponents * 1.1))
    energy(Molecule(WATER, "cc-pvdz"))
    energy(Molecule.from_pyscf(mol.to_pyscf()))
    assert len(traces) == 1
    energy(Molecule(WATER, "cc-pvtz"))
    assert len(traces) == 2


def test_molecule_can_be_built_from_traced_coordinates():
    def energy(x):
        listed = Molecule([("O", x[0]), ("H", x[1]), ("H", (x[2, 0], 0.0, x[2, 2]))], "sto-3g", unit="bohr")
        return listed.energy_nuc() + Molecule((["O", "H", "H"], x), "sto-3g", unit="bohr").energy_nuc()

    mol = Molecule(WATER, "sto-3g")
    assert float(jax.jit(energy)(mol.coords)) == pytest.approx(2 * float(mol.energy_nuc()), rel=1e-14)
    assert np.isfinite(jax.grad(energy)(mol.coords)).all()


def test_traced_molecule_has_all_static_properties():
    @jax.jit
    def look(mol):
        assert mol.nao == 24 and mol.nelec == 10 and len(mol.ao_labels()) == 24
        assert repr(mol) == "Molecule(H2O, cc-pvdz, charge 0, spin 0, 24 AOs)"
        assert "py3Dmol" not in mol._repr_html_()
        with pytest.raises(TypeError, match="outside jit"):
            mol.to_pyscf()
        return mol.coords

    look(Molecule(WATER, "cc-pvdz"))


def test_parameters_of_the_basis_are_shared_by_element_and_separate_by_label():
    assert Molecule("H 0 0 0; H 0 0 1", "sto-3g").exponents.shape == (3,)
    assert Molecule("H1 0 0 0; H2 0 0 1", {"H1": "sto-3g", "H2": "sto-3g"}).exponents.shape == (6,)


def test_changed_basis_parameters_reach_pyscf():
    mol = Molecule(WATER, "cc-pvdz")
    other = mol.with_exponents(mol.exponents * 1.3).with_coefficients(mol.coefficients * 2.0)
    scaled = {
        symbol: [[shell[0], *[[row[0] * 1.3, *row[1:]] for row in shell[1:]]] for shell in gto.load("cc-pvdz", symbol)]
        for symbol in "OH"
    }
    expected = gto.M(atom=WATER, basis=scaled, verbose=0).intor("int1e_kin")
    np.testing.assert_allclose(other.to_pyscf().intor("int1e_kin"), expected, rtol=1e-12, atol=1e-13)


# PySCF


def test_from_pyscf_keeps_everything():
    mole = gto.M(atom="O 0 0 0; ghost-H 0 0 1; H1 0 1 0", basis="cc-pvdz", charge=1, spin=2, cart=True, verbose=0)
    mol = Molecule.from_pyscf(mole)
    assert (mol.charge, mol.spin, mol.cart, mol.nelec) == (1, 2, True, 8)
    assert mol.labels == ("O", "GHOST-H", "H1") and mol.numbers == (8, 0, 1)
    unbuilt = gto.Mole(atom="He 0 0 0", basis="sto-3g", verbose=0)
    assert Molecule.from_pyscf(unbuilt).nao == 1


def test_from_pyscf_refuses_what_it_cannot_represent():
    potential = gto.M(atom="Xe 0 0 0", basis="def2-svp", ecp="def2-svp", verbose=0)
    with pytest.raises(NotImplementedError, match="core potentials"):
        Molecule.from_pyscf(potential)
    with pytest.raises(NotImplementedError, match="finite nuclei"):
        Molecule.from_pyscf(gto.M(atom="He 0 0 0", basis="sto-3g", nucmod={"He": 1}, verbose=0))
    with pytest.raises(TypeError, match="pyscf.gto.Mole"):
        Molecule.from_pyscf("He 0 0 0")
    changed = gto.M(atom="O 0 0 0", basis="cc-pvdz", verbose=0).decontract_basis()[0]
    with pytest.raises(ValueError, match="changed after it was built"):
        Molecule.from_pyscf(changed)
    attenuated = gto.M(atom="He 0 0 0", basis="sto-3g", verbose=0)
    attenuated.set_range_coulomb(0.3)
    with pytest.raises(NotImplementedError, match="omega"):
        Molecule.from_pyscf(attenuated)
    from pyscf.pbc import gto as periodic

    with pytest.raises(NotImplementedError, match="periodic"):
        Molecule.from_pyscf(periodic.M(atom="He 0 0 0", basis="sto-3g", a=np.eye(3) * 5, verbose=0))


def test_from_pyscf_refuses_another_number_of_electrons():
    mole = gto.M(atom="O 0 0 0; H 0 0 1; H 0 1 0", basis="sto-3g", verbose=0)
    mole.nelectron = 8
    with pytest.raises(ValueError, match=r"set to 8.*make 10; set mole.charge=2"):
        Molecule.from_pyscf(mole)
    mole.nelectron, mole.charge = 8, 2
    assert Molecule.from_pyscf(mole).nelec == 8
    mole = gto.M(atom="O 0 0 0; H 0 0 1; H 0 1 0", basis="sto-3g", verbose=0)
    mole.nelec = (5, 5)
    assert Molecule.from_pyscf(mole).nelec == 10


@pytest.mark.parametrize(
    "basis",
    [
        "def2-svp",
        "DEF2 SVP",
        {"default": "def2-svp"},
        {"i": "def2-svp", "H": "sto-3g"},
        {"I1": "lanl2dz", "H": "sto-3g"},
        {"I": ["lanl2dz"], "H": ["sto-3g"]},
    ],
)
def test_from_pyscf_refuses_a_basis_set_that_lacks_its_potential(basis):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mole = gto.M(atom="I1 0 0 0; H 0 0 1.6", basis=basis, verbose=0)
    with pytest.raises(NotImplementedError, match="core electrons of I"):
        Molecule.from_pyscf(mole)


def test_from_pyscf_takes_a_valence_set_on_a_ghost():
    mole = gto.M(atom="ghost-I 0 0 0; He 0 0 1.6", basis="def2-svp", verbose=0)
    assert Molecule.from_pyscf(mole).nelec == 2


# An object


def test_molecule_is_frozen_and_pickles():
    mol = Molecule(WATER, {"O": "cc-pvdz", "H": "sto-3g"}, charge=1, spin=1)
    with pytest.raises(AttributeError, match="with_coords"):
        mol.coords = mol.coords + 1.0
    with pytest.raises(AttributeError, match="cannot be changed"):
        del mol.coords
    again = pickle.loads(pickle.dumps(mol))
    assert jax.tree.structure(again) == jax.tree.structure(mol) and repr(again) == repr(mol)
    assert isinstance(again.coords, jax.Array)
    np.testing.assert_array_equal(again.coords, mol.coords)


def test_a_molecule_pickled_by_another_process_is_the_same():
    code = (
        f"import pickle, jaxqc; m = jaxqc.Molecule({WATER!r}, 'sto-3g');"
        "hash(m.structure); m.nao; print(pickle.dumps(m).hex())"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=ROOT).stdout
    other = pickle.loads(bytes.fromhex(output.strip()))
    assert jax.tree.structure(other) == jax.tree.structure(Molecule(WATER, "sto-3g"))


def test_representations():
    water = Molecule(WATER, "def2-svp", cart=True)
    assert repr(water) == "Molecule(H2O, def2-svp, Cartesian, charge 0, spin 0, 25 AOs)"
    assert repr(Molecule("Cl 0 0 0; C 0 0 1.8; ghost-H 1 1 1", "sto-3g", spin=1)).startswith("Molecule(CCl + 1 ghost,")
    table = water._repr_html_()
    assert "<td>H2O</td>" in table and "10 (5 alpha, 5 beta)" in table


def test_notebook_view_has_a_model_where_py3dmol_is_installed():
    pytest.importorskip("py3Dmol", reason="py3Dmol is not installed")
    view = Molecule(WATER, "sto-3g")._repr_html_()
    assert view.startswith("<table>") and "addModel" in view and "H 0.930000 0.000000 -0.240000" in view


def test_pyscf_is_imported_only_when_it_is_needed():
    code = (
        "import sys, jaxqc; jaxqc.Molecule('He 0 0 0', [[0, [1.0, 1.0]]]).energy_nuc();"
        "assert not any(name.startswith('pyscf') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_components_of_high_functions_have_pyscf_labels():
    basis = [[l, [1.0, 1.0]] for l in range(7)]
    for cart in (False, True):
        mole = gto.M(atom="He 0 0 0", basis={"He": basis}, cart=cart, verbose=0)
        assert_same_functions(Molecule("He 0 0 0", basis, cart=cart), mole)
