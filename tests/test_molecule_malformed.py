"""Input without meaning: an error that says in a sentence what is wrong, never a crash, a NaN or a silent default."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxqc import Molecule
from jaxqc.basis import resolve_basis
from jaxqc.elements import parse_label

HE = "He 0 0 0"
H2 = "H 0 0 0; H 0 0 0.74"
NAN, INF = float("nan"), float("inf")
NOT_FOUND, ECP = FileNotFoundError, NotImplementedError
S = [0, [1.0, 1.0]]


def he(**arguments):
    return {"atoms": HE, "basis": "sto-3g"} | arguments


def atoms(value, **arguments):
    return {"atoms": value, "basis": "sto-3g"} | arguments


def basis(value, on=HE):
    return {"atoms": on, "basis": value}


MALFORMED = [
    # empty or missing geometries
    (atoms(""), ValueError, "empty"),
    (atoms("   \t "), ValueError, "empty"),
    (atoms("\n\n"), ValueError, "empty"),
    (atoms(";;;"), ValueError, "empty"),
    (atoms("# only a comment\n# and another"), ValueError, "empty"),
    (atoms([]), ValueError, "empty"),
    (atoms(()), ValueError, "empty"),
    (atoms(np.zeros((0, 4))), ValueError, "empty"),
    (atoms(None), TypeError, "must be a path"),
    (atoms(3), TypeError, "must be a path"),
    (atoms(b"He 0 0 0"), TypeError, "must be a path"),
    (atoms({"He": (0, 0, 0)}), TypeError, "must be a path"),
    (atoms(object()), TypeError, "must be a path"),
    (atoms("no such file.xyz"), NOT_FOUND, "no geometry file"),
    (atoms("water"), NOT_FOUND, "no geometry file"),
    (atoms("He"), NOT_FOUND, "no geometry file"),
    (atoms("x" * 5000), NOT_FOUND, "no geometry file"),
    (atoms("a\0b"), NOT_FOUND, "no geometry file"),
    (atoms("."), ValueError, "directory"),
    # lines of atoms
    (atoms("He 0 0\nHe 0 0 1"), ValueError, "has 3 words"),
    (atoms("He 0 0 0 0\nHe 0 0 1"), ValueError, "has 5 words"),
    (atoms("He 0 0 0; He 1"), ValueError, "Z-matrices"),
    (atoms("H\nO 1 0.96\nH 2 0.96 1 104"), ValueError, "Z-matrices"),
    (atoms("He 0 0 x\nHe 0 0 1"), ValueError, "'x'.*is not a number"),
    (atoms("He 0 0 1_0\nHe 0 0 1"), ValueError, "'1_0'.*is not a number"),
    (atoms("He 0 0 0x1; He 0 0 2"), ValueError, "is not a number"),
    (atoms("He 0 0 1+1; He 0 0 2"), ValueError, "is not a number"),
    (atoms("He 0 0 __import__('os'); He 0 0 2"), ValueError, "is not a number"),
    (atoms("He 0 0 nan"), ValueError, "not finite"),
    (atoms("He 0 inf 0"), ValueError, "not finite"),
    (atoms("He 0 0 1e999"), ValueError, "not finite"),
    (atoms("He 0 0 1e300"), ValueError, "exceed 1e8"),
    # XYZ text
    (atoms("2\ncomment\nHe 0 0 0"), ValueError, "gives 2 atoms, but 1"),
    (atoms("1\ncomment\nHe 0 0 0\nHe 0 0 2"), ValueError, "gives 1 atoms, but 2"),
    (atoms("1\nframe\nHe 0 0 0\n1\nframe\nHe 0 0 1"), ValueError, "trajectory"),
    (atoms("0\ncomment\n"), ValueError, "at least one"),
    (atoms("-1\ncomment\nHe 0 0 0"), ValueError, "at least one"),
    (atoms("1\n"), ValueError, "gives 1 atoms, but 0"),
    (atoms("1\nHe 0 0 0"), ValueError, "gives 1 atoms, but 0"),
    (atoms("1\ncomment\nHe 0 0 0 0.3"), ValueError, "has 5 words"),
    (atoms("1\ncomment\nHe 0 0"), ValueError, "has 3 words"),
    (atoms("2\ncomment\nHe 0 0 0\n\nHe 0 0 1"), ValueError, "gives 2 atoms, but 3"),
    (atoms("99999999999999999999\n\nHe 0 0 0"), ValueError, "but 1 lines follow"),
    # elements
    (atoms("Foo 0 0 0"), ValueError, "not an element symbol"),
    (atoms("Hx 0 0 0"), ValueError, "not an element symbol"),
    (atoms("J 0 0 0"), ValueError, "not an element symbol"),
    (atoms("D 0 0 0"), ValueError, "Isotopes"),
    (atoms("oxygen 0 0 0"), ValueError, "Did you mean 'O'"),
    (atoms("2H 0 0 0"), ValueError, "not an element symbol"),
    (atoms("H1a 0 0 0"), ValueError, "not an element symbol"),
    (atoms("ghost-Foo 0 0 0; He 0 0 1"), ValueError, "not an element symbol"),
    (atoms("119 0 0 0"), ValueError, "no element with the atomic number 119"),
    (atoms([(500, (0, 0, 0))]), ValueError, "no element with the atomic number 500"),
    (atoms([(-1, (0, 0, 0))]), ValueError, "no element with the atomic number -1"),
    (atoms([(True, (0, 0, 0))]), TypeError, "element symbol such as"),
    (atoms([(None, (0, 0, 0))]), TypeError, "element symbol such as"),
    (atoms([(1.0, (0, 0, 0))]), TypeError, "element symbol such as"),
    (atoms([("", (0, 0, 0))]), ValueError, "not an element symbol"),
    # lists
    (atoms([1, 2, 3]), ValueError, "must be \\(symbol"),
    (atoms([("He",)]), ValueError, "must be \\(symbol"),
    (atoms([("He", 0, 0)]), ValueError, "must be \\(symbol"),
    (atoms([("He", 0, 0, 0, 0)]), ValueError, "must be \\(symbol"),
    (atoms([("He", (0, 0))]), ValueError, "must be three numbers"),
    (atoms([("He", (0, 0, 0, 0))]), ValueError, "must be three numbers"),
    (atoms([("He", "000")]), ValueError, "must be three numbers"),
    (atoms([("He", ("0", "0", "0"))]), ValueError, "must be three numbers"),
    (atoms([("He", None)]), ValueError, "must be three numbers"),
    (atoms([("He", (0, 0, None))]), ValueError, "must be three numbers"),
    (atoms([("He", (0, 0, [1]))]), ValueError, "must be three numbers"),
    (atoms([("He", (0, 0, True))]), ValueError, "must be three numbers"),
    (atoms([("He", np.zeros((3, 1)))]), ValueError, "must be three numbers"),
    (atoms([("He", (0, 0, NAN))]), ValueError, "atom 0 are not finite"),
    (atoms([("He", (0, 0, 0)), ("He", (0, INF, 0))]), ValueError, "atom 1 are not finite"),
    (atoms([("He", (0, 0, 1j))]), TypeError, "real numbers"),
    (atoms([("He", (0, 0, object()))]), TypeError, "real numbers"),
    (atoms((["He", "He"], np.zeros(6))), ValueError, "2 rows and 3 columns"),
    (atoms((["He"], np.zeros((2, 3)))), ValueError, "1 rows and 3 columns"),
    (atoms((["He"], np.zeros((1, 2)))), ValueError, "1 rows and 3 columns"),
    (atoms((["He", "He"], [[0, 0, 0], [0, 0]])), ValueError, "rows differ in length"),
    (atoms((["He"], np.full((1, 3), NAN))), ValueError, "not finite"),
    (atoms((["He"], np.zeros((1, 3), dtype=complex))), TypeError, "real numbers"),
    (atoms((["He"], np.array([["0", "0", "0"]]))), TypeError, "real numbers"),
    # atoms at one place
    (atoms("H 0 0 0; H 0 0 0"), ValueError, "at the same place"),
    (atoms("H 0 0 0; H 0 0 1; H 0 0 1.000000001; H 5 5 5"), ValueError, "atoms 1 \\(H\\) and 2 \\(H\\)"),
    (atoms([("O", (1, 1, 1)), ("O", (1, 1, 1))]), ValueError, "at the same place"),
    # charge and spin
    (he(charge=2), ValueError, "has 0 electrons"),
    (atoms("H 0 0 0", charge=1), ValueError, "has 0 electrons"),
    (he(charge=7), ValueError, "has -5 electrons"),
    (atoms("ghost-He 0 0 0"), ValueError, "has 0 electrons"),
    (he(charge=0.0), TypeError, "charge must be an integer"),
    (he(charge="0"), TypeError, "charge must be an integer"),
    (he(charge=None), TypeError, "charge must be an integer"),
    (he(charge=True), TypeError, "charge must be an integer"),
    (he(charge=NAN), TypeError, "charge must be an integer"),
    (he(charge=np.array([0])), TypeError, "charge must be an integer"),
    (he(charge=-10), ValueError, "too few for its 6 alpha"),
    (he(spin=1), ValueError, "2 electrons, and spin=1 .* 2S = N_alpha - N_beta"),
    (atoms("H 0 0 0"), ValueError, "1 electrons, and spin=0 was given.*Use spin=1"),
    (atoms("O 0 0 0; H 0 0 0.97"), ValueError, "9 electrons, and spin=0 was given"),
    (atoms("H 0 0 0", spin=-1), ValueError, "must not be negative. Use spin=1"),
    (he(spin=4), ValueError, "cannot exceed the number of electrons"),
    (he(spin=2), ValueError, "too few for its 2 alpha"),
    (he(spin=0.0), TypeError, "spin must be an integer"),
    (he(spin="singlet"), TypeError, "spin must be an integer"),
    (he(spin=None), TypeError, "spin must be an integer"),
    (he(spin=False), TypeError, "spin must be an integer"),
    (he(spin=[0]), TypeError, "spin must be an integer"),
    (he(spin=2**70), ValueError, "cannot exceed"),
    # unit and cart
    (he(unit="parsec"), ValueError, "unit must be"),
    (he(unit=""), ValueError, "unit must be"),
    (he(unit="angstom"), ValueError, "Did you mean 'angstrom'"),
    (he(unit=None), TypeError, "unit must be"),
    (he(unit=0.529), TypeError, "unit must be"),
    (he(cart="yes"), TypeError, "cart must be True or False"),
    (he(cart=None), TypeError, "cart must be True or False"),
    (he(cart=1), TypeError, "cart must be True or False"),
    # names of basis sets
    ({"atoms": HE}, TypeError, "basis is missing"),
    (basis(None), TypeError, "basis is missing"),
    (basis(3), TypeError, "basis must be a name"),
    (basis(1.5), TypeError, "basis must be a name"),
    (basis(True), TypeError, "basis must be a name"),
    (basis(b"sto-3g"), TypeError, "basis must be a name"),
    (basis(object()), TypeError, "basis must be a name"),
    (basis({"sto-3g"}), TypeError, "basis must be a name"),
    (basis(""), ValueError, "basis is empty"),
    (basis("   "), ValueError, "basis is empty"),
    (basis("no-such-basis"), ValueError, "no basis set named 'no-such-basis'"),
    (basis("cc-pvtzz"), ValueError, "Did you mean 'cc-pvtz'"),
    (basis("def2-svpp"), ValueError, "Did you mean 'def2-svp'"),
    (basis("6-31g(d"), ValueError, "basis set"),
    (basis("6-31g(xyz)", on="O 0 0 0"), ValueError, "basis set"),
    (basis("x" * 5000), ValueError, "no basis set named"),
    (basis("a\0b"), ValueError, "no basis set named"),
    (basis("cc-pvdz", on="Xe 0 0 0"), ValueError, "has no functions for Xe"),
    (basis("ano@9s"), ValueError, "Cannot truncate"),
    (basis("ano@"), ValueError, "Cannot truncate"),
    (basis("ano@3s@2p"), ValueError, "Cannot truncate"),
    (basis("def2-svp", on="Xe 0 0 0"), ECP, "core electrons of Xe"),
    (basis("lanl2dz", on="Na 0 0 0; Cl 0 0 2.4"), ECP, "core electrons of Na"),
    (basis("sto-3g", on="He 0 0 0; X 0 0 1"), ValueError, "ghost atom X has no element"),
    # texts
    (basis("He S\n"), ValueError, "no basis set named"),
    (basis("He S\nHe P\n1.0 1.0"), ValueError, "has no primitives"),
    (basis("He S\n1.0\n"), ValueError, "has 1 numbers"),
    (basis("He S\n1.0 1.0\n0.5\n"), ValueError, "has 1 numbers"),
    (basis("He SP\n1.0 1.0\n"), ValueError, "has 2 numbers"),
    (basis("He S\n1.0 abc\n"), ValueError, "'abc'.*is not a number"),
    (basis("He S\n1.0 __import__('os')\n"), ValueError, "is not a number"),
    (basis("He Z\n1.0 1.0\n"), ValueError, "is none of S, P"),
    (basis("Qq S\n1.0 1.0\n"), ValueError, "does not begin with an element"),
    (basis("1.0 1.0\nHe S\n1.0 1.0\n"), ValueError, "Cannot read the line"),
    (basis("complete nonsense\nin two lines"), ValueError, "Cannot read the line"),
    (basis("# nothing\n! here\n"), ValueError, "is empty"),
    (basis("BASIS\nEND\n"), ValueError, "is empty"),
    (basis("He S\n-1.0 1.0\n"), ValueError, "exponent -1; it must be positive"),
    (basis("He S\n1.0 0.0\n"), ValueError, "are zero"),
    (basis("He K\n1.0 1.0\n"), ECP, "angular momentum 7"),
    (basis("He 0\nS 2 1.00\n1.0 1.0\n"), ValueError, "ends before its 2 primitives"),
    (basis("He 0\nS 0 1.00\n"), ValueError, "has no primitives"),
    (basis("He 0\n****\n"), ValueError, "has no shells"),
    (basis("He 0\nQ 1 1.00\n1.0 1.0\n"), ValueError, "is none of S, P"),
    (basis("He 0\nS 1 1.00\n1.0 1.0\nrubbish here\n"), ValueError, "Cannot read the line"),
    (basis("He nelec 2\nHe ul\n2 1.0 0.0\n"), ECP, "effective core potential"),
    (basis("H S\n1.0 1.0\n"), ValueError, "no functions for He"),
    # shells
    (basis([]), ValueError, "is empty"),
    (basis({"He": []}), ValueError, "is empty"),
    (basis([[]]), TypeError, "must read \\[l,"),
    (basis([3]), TypeError, "must read \\[l,"),
    (basis([[0]]), ValueError, "has no primitives"),
    (basis([[0, []]]), ValueError, "must read \\[l,|A shell"),
    (basis([[0, [1.0]]]), ValueError, "A shell"),
    (basis([[0, 1.0, 1.0]]), ValueError, "A shell"),
    (basis([[0, [1.0, 1.0], [2.0]]]), ValueError, "A shell"),
    (basis([["s", [1.0, 1.0]]]), TypeError, "must read|integer l"),
    (basis([[0.0, [1.0, 1.0]]]), TypeError, "integer l"),
    (basis([[True, [1.0, 1.0]]]), TypeError, "integer l"),
    (basis([[-1, [1.0, 1.0]]]), ValueError, "must not be negative"),
    (basis([S, [7, [1.0, 1.0]]]), ECP, "angular momentum 7"),
    (basis([[1, -1, [1.0, 1.0]]]), ECP, "kappa"),
    (basis([[0, [0.0, 1.0]]]), ValueError, "exponent 0; it must be positive"),
    (basis([[0, [-2.0, 1.0]]]), ValueError, "exponent -2; it must be positive"),
    (basis([[0, [NAN, 1.0]]]), ValueError, "not finite"),
    (basis([[0, [1.0, NAN]]]), ValueError, "not finite"),
    (basis([[0, [INF, 1.0]]]), ValueError, "not finite"),
    (basis([[0, [1e300, 1.0]]]), ValueError, "exponent 1e\\+300"),
    (basis([[0, [1e-300, 1.0]]]), ValueError, "exponent 1e-300"),
    (basis([[0, [1.0, 0.0]]]), ValueError, "only zero coefficients"),
    (basis([[0, [1.0, 1.0, 0.0], [2.0, 1.0, 0.0]]]), ValueError, "only zero coefficients"),
    (basis([[0, [1.0, 1.0], [1.0, -1.0]]]), ValueError, "norm 0"),
    (basis([[0, [1.0, "1.0x"]]]), ValueError, "A shell"),
    (basis([[0, [1.0, 1j]]]), ValueError, "A shell"),
    (basis([[0, [1.0, None]]]), ValueError, "A shell"),
    (basis(np.zeros((2, 2))), TypeError, "integer l"),
    # dicts
    (basis({}), ValueError, "empty dict"),
    (basis({"O": "sto-3g"}), ValueError, "no entry for the atom He"),
    (basis({"Foo": "sto-3g", "He": "sto-3g"}), ValueError, "has the key 'Foo'"),
    (basis({None: "sto-3g"}), TypeError, "has the key None"),
    (basis({2.0: "sto-3g"}), TypeError, "has the key 2.0"),
    (basis({True: "sto-3g"}, on="H 0 0 0; H 0 0 1"), TypeError, "has the key True"),
    (basis({"He": "sto-3g", "he": "cc-pvdz"}), ValueError, "two entries for 'He'"),
    (basis({"He": "sto-3g", 2: "cc-pvdz"}), ValueError, "two entries for 'He'"),
    (basis({"He@1": "sto-3g", "default": "cc-pvdz"}), ValueError, "no atom has this label"),
    (basis({"He": None}), TypeError, "basis must be a name"),
    (basis({"He": {"He": "sto-3g"}}), TypeError, "basis must be a name"),
    (basis({"He": 5}), TypeError, "basis must be a name"),
    (basis({"H1": "sto-3g"}, on="H1 0 0 0; H2 0 0 1"), ValueError, "no entry for the atom H2"),
]


def assert_sentence(message):
    assert len(message) > 20 and message[0].isupper() and message.rstrip()[-1] in ".?", message
    assert len(message) < 700, message


@pytest.mark.parametrize("arguments, error, pattern", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_input_raises_a_sentence(arguments, error, pattern):
    with pytest.raises(error, match=f"(?s){pattern}") as caught:
        Molecule(**arguments)
    assert type(caught.value) is error
    assert_sentence(str(caught.value))


def test_there_are_enough_malformed_inputs():
    assert len(MALFORMED) >= 110


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00\x01", b"1\n\nHe 0 0", b"PK\x03\x04 zip"])
def test_malformed_files(tmp_path, content):
    path = tmp_path / "geometry.xyz"
    path.write_bytes(content)
    for form in (path, str(path)):
        with pytest.raises(ValueError) as caught:
            Molecule(form, "sto-3g")
        assert_sentence(str(caught.value))
    with pytest.raises(ValueError) as caught:
        Molecule(HE, path)
    assert_sentence(str(caught.value))


def test_missing_files(tmp_path):
    for form in (tmp_path / "none.xyz", str(tmp_path / "none.xyz")):
        with pytest.raises(FileNotFoundError, match="no geometry file"):
            Molecule(form, "sto-3g")
    with pytest.raises(ValueError, match="directory"):
        Molecule(tmp_path, "sto-3g")
    with pytest.raises(FileNotFoundError, match="no basis set file"):
        Molecule(HE, tmp_path / "none.nw")


H2_MOLECULE = Molecule(H2, "sto-3g")
BAD_COORDS = [
    (np.zeros((2, 2)), ValueError, "2 rows and 3 columns"),
    (np.zeros((3, 3)), ValueError, "shape \\(3, 3\\)"),
    (np.zeros((1, 2, 3)), ValueError, "shape \\(1, 2, 3\\)"),
    (np.zeros(6), ValueError, "shape \\(6,\\)"),
    (0.0, ValueError, "shape"),
    ([], ValueError, "shape|real numbers"),
    (None, TypeError, "real numbers"),
    ("H2", TypeError, "real numbers"),
    ([[0, 0, 0], [0, 0]], ValueError, "rows differ in length"),
    (np.array([[0, 0, 0], [0, 0, NAN]]), ValueError, "atom 1 are not finite"),
    (jnp.array([[0, 0, 0], [0, INF, 1]]), ValueError, "atom 1 are not finite"),
    (np.zeros((2, 3)), ValueError, "at the same place"),
    (np.zeros((2, 3), dtype=complex), TypeError, "real numbers"),
    (np.zeros((2, 3), dtype=bool), TypeError, "real numbers"),
]


@pytest.mark.parametrize("coords, error, pattern", BAD_COORDS, ids=range(len(BAD_COORDS)))
def test_malformed_coordinates(coords, error, pattern):
    with pytest.raises(error, match=pattern) as caught:
        H2_MOLECULE.with_coords(coords)
    assert_sentence(str(caught.value))


def test_malformed_parameters():
    for method, name in ((H2_MOLECULE.with_exponents, "exponents"), (H2_MOLECULE.with_coefficients, "coefficients")):
        for value, error in (
            (np.ones(2), ValueError),
            (np.ones((3, 1)), ValueError),
            ([1.0, 2.0, NAN], ValueError),
            (["a", "b", "c"], TypeError),
            (np.ones(3) * 1j, TypeError),
        ):
            with pytest.raises(error, match=f"Argument {name}"):
                method(value)
    with pytest.raises(ValueError, match="must be positive"):
        H2_MOLECULE.with_exponents([1.0, 2.0, 0.0])


def test_shapes_are_checked_while_tracing():
    with pytest.raises(ValueError, match="2 rows and 3 columns"):
        jax.jit(lambda x: H2_MOLECULE.with_coords(x).energy_nuc())(jnp.zeros((3, 3)))
    with pytest.raises(ValueError, match="2 rows and 3 columns"):
        jax.eval_shape(lambda x: H2_MOLECULE.with_coords(x), jnp.zeros((4, 2, 3)))


def test_a_molecule_is_no_geometry():
    with pytest.raises(TypeError, match="a Molecule already"):
        Molecule(H2_MOLECULE, "sto-3g")


def test_calls_without_meaning_fail_before_the_basis_is_loaded():
    with pytest.raises(ValueError, match="electrons"):
        Molecule("H 0 0 0", "a basis that does not exist")


# Generated input: a molecule or one of four errors in a sentence, and nothing else

ERRORS = (ValueError, TypeError, FileNotFoundError, NotImplementedError)


def molecule_or_sentence(*arguments, **keywords):
    try:
        mol = Molecule(*arguments, **keywords)
    except ERRORS as error:
        assert type(error) in ERRORS
        assert_sentence(str(error))
        return
    assert mol.nelec > 0 and mol.nao >= mol.nalpha >= mol.nbeta >= 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(mol))
    assert np.isfinite(mol.energy_nuc())


words = st.sampled_from(
    [
        "H",
        "he",
        "O1",
        "ghost-H",
        "X",
        "X-O",
        "1",
        "8",
        "0",
        "-1.5",
        "0.7",
        "1e5",
        "nan",
        "inf",
        "1d0",
        "#",
        ",",
        "é",
        "Q",
    ]
)
lines = st.lists(words, max_size=6).map(" ".join)
texts = st.lists(lines, max_size=5).flatmap(
    lambda rows: st.sampled_from(["\n", ";", " ; "]).map(lambda s: s.join(rows))
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=4),
)
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.tuples(inner, inner), st.dictionaries(st.text(), inner)),
    max_leaves=12,
)


@given(st.text(max_size=40))
def test_any_text_as_atoms(text):
    molecule_or_sentence(text, "sto-3g", spin=1)


@given(texts, st.integers(-3, 3), st.integers(-1, 3))
def test_words_in_any_order_as_atoms(text, charge, spin):
    molecule_or_sentence(text, "3-21g", charge=charge, spin=spin)


@given(st.integers(-2, 4), texts)
def test_words_in_any_order_as_xyz(count, text):
    molecule_or_sentence(f"{count}\ncomment\n{text}", "sto-3g")


@given(nested)
def test_any_object_as_atoms(value):
    molecule_or_sentence(value, "sto-3g")


@given(st.lists(st.tuples(st.sampled_from(["H", "He", "Q", 1, None]), nested), max_size=3))
def test_any_object_as_coordinates(value):
    molecule_or_sentence(value, "sto-3g")


@given(st.lists(st.tuples(st.sampled_from(["H", "He", "ghost-H"]), st.tuples(*[st.floats(width=32)] * 3)), max_size=4))
def test_any_numbers_as_coordinates(value):
    molecule_or_sentence(value, "sto-3g")


@given(scalars, scalars, scalars)
def test_any_object_as_charge_spin_or_unit(charge, spin, unit):
    molecule_or_sentence(H2, "sto-3g", charge=charge)
    molecule_or_sentence(H2, "sto-3g", spin=spin)
    molecule_or_sentence(H2, "sto-3g", unit=unit)


@given(st.text(max_size=30))
def test_any_text_as_basis(text):
    molecule_or_sentence(H2, text)
    molecule_or_sentence(H2, "H S\n" + text)
    molecule_or_sentence(H2, f"H 0\nS 1 1.00\n{text}\n****\n")


basis_words = st.sampled_from(
    ["H", "S", "SP", "P", "0", "1", "1.0", "2.5", "-1", "I", "K", "****", "END", "L=2", "ECP"]
)


@given(st.lists(st.lists(basis_words, max_size=4).map(" ".join), max_size=6).map("\n".join))
def test_words_in_any_order_as_basis(text):
    molecule_or_sentence(H2, text + "\n")


@given(nested)
def test_any_object_as_basis(value):
    molecule_or_sentence(H2, value)
    molecule_or_sentence(H2, {"H": value})


@given(st.lists(st.tuples(st.integers(-1, 8), st.lists(st.lists(st.floats(), max_size=3), max_size=3)), max_size=3))
def test_any_numbers_as_shells(value):
    molecule_or_sentence(H2, [[l, *rows] for l, rows in value])


@given(nested)
def test_any_object_as_other_coordinates(value):
    try:
        mol = H2_MOLECULE.with_coords(value)
    except (ValueError, TypeError) as error:
        assert_sentence(str(error))
        return
    assert np.isfinite(mol.energy_nuc())


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=5), st.integers(0, 6))
def test_any_positive_exponents_are_a_basis(exponents, l):
    keys, blocks = resolve_basis([[l, *[[e, 1.0] for e in exponents]]], [parse_label("He")])
    assert blocks[keys[0]][0].exponents == tuple(sorted(exponents, reverse=True))
