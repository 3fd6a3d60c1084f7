"""Geometries in and out: every form gives the same molecule, and what is written is read back."""

import json
from pathlib import Path

import numpy as np
import pytest
from pyscf import gto

from jaxqc import Molecule
from jaxqc.elements import BOHR, formula, length_in_bohr, parse_label
from jaxqc.io import from_qcschema, parse_atoms, parse_xyz, read_xyz, to_qcschema, write_xyz

COORDS = np.array([[0.1, 0.0, -0.2], [0.0, 0.0, 0.96], [0.93, 0.0, -0.24]])
XYZ = "3\nwater\nO 0.1 0 -0.2\nH 0 0 0.96\nH 0.93 0 -0.24\n"
FORMS = [
    XYZ,
    "\n" + XYZ.replace("\n", "\r\n") + "\n\n",
    "\ufeff" + XYZ,
    " 3 \n\n\tO\t1.0E-1 .0 -2.D-1\n h 0 0 9.6e-1\nH +0.93 -0. -0.24",
    "O 0.1 0 -0.2; H 0 0 0.96; H 0.93 0 -0.24",
    "O,0.1,0,-0.2;  H, 0, 0, 0.96;H 0.93,0 -0.24;",
    "# water\n8 0.1 0 -0.2\n\n1 0 0 0.96\n1 0.93 0 -0.24\n",
    [("O", (0.1, 0, -0.2)), ("H", (0, 0, 0.96)), ("H", (0.93, 0, -0.24))],
    [["O", [0.1, 0, -0.2]], ["H", np.array([0, 0, 0.96])], ["H", (0.93, 0, -0.24)]],
    [("O", 0.1, 0, -0.2), ("H", 0, 0, 0.96), (1, 0.93, 0, -0.24)],
    ((8, 0.1, 0, -0.2), (1, 0, 0, 0.96), (1, 0.93, 0, -0.24)),
    ["O 0.1 0 -0.2", "H,0,0,0.96", "H 0.93 0 -0.24"],
    (["O", "H", "H"], COORDS),
    (("O", "H", "H"), COORDS.tolist()),
    (np.array([8, 1, 1]), COORDS),
]


@pytest.mark.parametrize("atoms", FORMS, ids=range(len(FORMS)))
def test_all_forms_of_a_geometry_agree(atoms):
    labels, coords = parse_atoms(atoms)
    assert [label.text for label in labels] == ["O", "H", "H"]
    np.testing.assert_array_equal(coords, COORDS)
    mole = gto.M(atom=list(zip("OHH", COORDS.tolist(), strict=True)), basis="sto-3g", verbose=0)
    np.testing.assert_array_equal(Molecule(atoms, "sto-3g").coords, mole.atom_coords())


@pytest.mark.parametrize(
    "atoms", ["He 0 0 0", "He,0,0,0", "He 0 0 0;", "1\n\nHe 0 0 0", [("He", (0, 0, 0))], ((2, 0, 0, 0),)]
)
def test_one_atom(atoms):
    assert Molecule(atoms, "sto-3g").nelec == 2


def test_two_atoms_in_a_tuple_are_not_a_pair_of_symbols_and_coordinates():
    assert Molecule((("H", 0, 0, 0), ("H", 0, 0, 1)), "sto-3g").natm == 2
    assert Molecule(((1, 0, 0, 0), (1, 0, 0, 1)), "sto-3g").natm == 2
    assert Molecule((("H", (0, 0, 0)), ("H", (0, 0, 1))), "sto-3g").natm == 2
    assert Molecule(("H 0 0 0", "H 0 0 1"), "sto-3g").natm == 2
    assert Molecule((["H", "H"], [[0, 0, 0], [0, 0, 1]]), "sto-3g").natm == 2
    assert Molecule(([1, 1], [[0, 0, 0], [0, 0, 1]]), "sto-3g").natm == 2


def test_files(tmp_path):
    path = tmp_path / "a molecule.xyz"
    path.write_text(XYZ)
    for form in (path, str(path)):
        np.testing.assert_array_equal(parse_atoms(form)[1], COORDS)
    np.testing.assert_array_equal(read_xyz(path)[1], COORDS)
    path.write_text(XYZ.split("\n", 2)[2])
    np.testing.assert_array_equal(read_xyz(path)[1], COORDS)


def test_written_xyz_is_read_back(tmp_path):
    rng = np.random.default_rng(0)
    atoms = (["O", "ghost-H1", "Cl", "X"], rng.normal(size=(4, 3)) * 10)
    basis = {"O": "sto-3g", "H": "sto-3g", "Cl": "sto-3g", "X": [[0, [1.0, 1.0]]]}
    mol = Molecule(atoms, basis, spin=1)
    text = write_xyz(mol, tmp_path / "out.xyz")
    assert text == (tmp_path / "out.xyz").read_text() == mol.to_xyz()
    assert text.splitlines()[1] == "charge 0 spin 1"
    again = Molecule(tmp_path / "out.xyz", basis, spin=1)
    assert again.labels == mol.labels
    np.testing.assert_allclose(again.coords, mol.coords, rtol=1e-14)
    assert mol.to_xyz(comment="mine").splitlines()[1] == "mine"
    with pytest.raises(ValueError, match="one line"):
        write_xyz(mol, comment="two\nlines")


def test_qcschema_round_trip():
    mol = Molecule("O 0 0 0; ghost-H 0 0 1; H 0 1 0", "cc-pvdz", charge=1, spin=2, unit="bohr")
    data = json.loads(json.dumps(to_qcschema(mol)))
    assert data["schema_name"] == "qcschema_molecule" and data["schema_version"] == 2
    assert data["symbols"] == ["O", "H", "H"] and data["real"] == [True, False, True]
    assert data["geometry"] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert (data["molecular_charge"], data["molecular_multiplicity"]) == (1.0, 3)
    again = from_qcschema(data, "cc-pvdz")
    assert (again.charge, again.spin, again.numbers) == (1, 2, mol.numbers)
    np.testing.assert_array_equal(again.coords, mol.coords)
    plain = from_qcschema({"symbols": ["He"], "geometry": [0, 0, 1.0]}, "sto-3g")
    assert (plain.charge, plain.spin, float(plain.coords[0, 2])) == (0, 0, 1.0)


BAD_SCHEMAS = [
    (None, "symbols"),
    ({}, "symbols"),
    ({"symbols": ["He"]}, "symbols"),
    ({"symbols": ["He"], "geometry": [0, 0]}, "2 numbers"),
    ({"symbols": ["He"], "geometry": [0, 0, 0], "real": [True, True]}, "'real'"),
    ({"symbols": ["He"], "geometry": [0, 0, 0], "molecular_charge": 0.5}, "whole number"),
    ({"symbols": ["He"], "geometry": [0, 0, 0], "molecular_charge": float("nan")}, "whole number"),
    ({"symbols": ["He"], "geometry": [0, 0, 0], "molecular_multiplicity": "1"}, "whole number"),
    ({"symbols": ["He"], "geometry": [0, 0, 0], "molecular_multiplicity": 2}, "2S"),
    ({"symbols": ["He"], "geometry": [0, 0, 0], "molecular_multiplicity": 0}, "2S"),
    ({"symbols": "He", "geometry": [0, 0, 0]}, "symbols|numbers"),
]


@pytest.mark.parametrize("data, pattern", BAD_SCHEMAS, ids=range(len(BAD_SCHEMAS)))
def test_malformed_qcschema(data, pattern):
    with pytest.raises((ValueError, TypeError), match=pattern):
        from_qcschema(data, "sto-3g")


def test_ase_atoms_are_read():
    ase = pytest.importorskip("ase", reason="ASE is not installed")
    atoms = ase.Atoms("OH", positions=COORDS[:2], magmoms=[1.0, 0.0])
    mol = Molecule.from_ase(atoms, "sto-3g")
    assert (mol.charge, mol.spin) == (0, 1)
    np.testing.assert_array_equal(mol.coords, Molecule((["O", "H"], COORDS[:2]), "sto-3g", spin=1).coords)
    assert Molecule.from_ase(atoms, "sto-3g", charge=-1, spin=0).nelec == 10
    atoms.set_initial_charges([0.3, 0.0])
    with pytest.raises(ValueError, match="give charge"):
        Molecule.from_ase(atoms, "sto-3g")
    atoms.set_pbc(True)
    with pytest.raises(NotImplementedError, match="periodic"):
        Molecule.from_ase(atoms, "sto-3g")


def test_only_ase_atoms_are_taken_for_them():
    with pytest.raises(TypeError, match="ase.Atoms"):
        Molecule.from_ase("He 0 0 0", "sto-3g")


def test_labels_are_pyscfs():
    words = [
        "o",
        "CL",
        "cl1",
        "O@2",
        "H_1",
        "ghost-o",
        "GHOSTO1",
        "ghost.he",
        "x-O",
        "XO1",
        "X",
        "ghost",
        "xe",
        "Xe2",
        "7",
    ]
    for word in words:
        mole = gto.M(atom=[(word, (0, 0, 0))], basis={"default": [[0, [1.0, 1.0]]]}, spin=None, verbose=0)
        label = parse_label(word)
        assert label.text == mole.atom_symbol(0), word
        assert (0 if label.ghost else label.number) == mole.atom_charge(0), word
    for number in range(1, 119):
        assert parse_label(number).text == gto.mole._symbol(number)
        assert parse_label(gto.mole._symbol(number).lower()).number == number


def test_formula_is_in_hill_order():
    def of(symbols):
        return formula([parse_label(word) for word in symbols.split()])

    assert of("O H C H H H") == "CH4O"
    assert of("H O H") == "H2O" and of("Na Cl") == "ClNa"
    assert of("H N N X-H ghost-O") == "HN2 + 2 ghosts"


def test_the_unit_of_length_is_pyscfs():
    from pyscf.data import nist

    assert BOHR == nist.BOHR and length_in_bohr("angstrom") == 1 / nist.BOHR and length_in_bohr("AU") == 1.0


EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.xyz"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_reasonable_molecules(path):
    labels, coords = parse_xyz(path.read_text())
    distances = np.linalg.norm(coords[:, None] - coords[None], axis=-1) + 10 * np.eye(len(labels))
    assert 0.9 < distances.min() and distances.min(axis=1).max() < 1.6
    assert Molecule(path, "sto-3g", spin=sum(label.number for label in labels) % 2).natm == len(labels)


def test_there_are_examples():
    assert {"water", "benzene", "vitamin_c"} <= {path.stem for path in EXAMPLES}
