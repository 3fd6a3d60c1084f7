"""Basis sets by name, text, list and dict, against PySCF's library and parser."""

import numpy as np
import pytest
from pyscf import gto

from jaxqc import Molecule
from jaxqc._basis_text import parse_basis_text
from jaxqc.basis import resolve_basis
from jaxqc.elements import parse_label

CARBON_NWCHEM = """
# a comment
BASIS "ao basis" PRINT
#BASIS SET: (6s,3p) -> [2s,1p]
C    S
     71.6168370              0.15432897
     13.0450960              0.53532814
      3.5305122              0.44463454   ! another
C    SP
      2.9412494             -0.09996723             0.15591627
      0.6834831              0.39951283             0.60768372
      0.2222899              0.70011547             0.39195739
END
"""
HYDROGEN_NWCHEM = """H    S
      3.42525091             0.15432897
      0.62391373D+00         0.53532814d0
      1.688554E-01           0.44463454
"""
GAUSSIAN = """! STO-3G
****
H     0
S   3   1.00
      0.3425250914D+01       0.1543289673D+00
      0.6239137298D+00       0.5353281423D+00
      0.1688554040D+00       0.4446345422D+00
****
-C     0
S   3   1.00
      0.7161683735D+02       0.1543289673D+00
      0.1304509632D+02       0.5353281423D+00
      0.3530512160D+01       0.4446345422D+00
SP   3   1.00
      0.2941249355D+01      -0.9996722919D-01       0.1559162750D+00
      0.6834830964D+00       0.3995128261D+00       0.6076837186D+00
      0.2222899159D+00       0.7001154689D+00       0.3919573931D+00
D   1   1.00
      0.8                    1.0
****
"""
CH = "C 0 0 0; H 0 0 1.1"


def shells_of(basis, symbol):
    """The functions an element gets, as numbers."""
    labels = [parse_label(symbol)]
    keys, blocks = resolve_basis(basis, labels)
    return blocks[keys[0]]


def as_blocks(shells):
    """PySCF's format as sorted (l, exponents, coefficients)."""
    rows = [(shell[0], [row for row in shell[1:] if not isinstance(row, int)]) for shell in shells]  # without kappa
    tables = [(l, np.array(sorted(table, reverse=True))) for l, table in rows]
    return [(l, tuple(t[:, 0]), tuple(map(tuple, t[:, 1:].T))) for l, t in sorted(tables, key=lambda x: x[0])]


def test_nwchem_text_is_read_as_pyscf_reads_it():
    plain = CARBON_NWCHEM.replace("! another", "")  # PySCF knows '#' only
    assert as_blocks(parse_basis_text(CARBON_NWCHEM)["C"]) == as_blocks(gto.basis.parse(plain, "C"))
    assert list(shells_of(HYDROGEN_NWCHEM, "H")) == as_blocks(
        [[0, [3.42525091, 0.15432897], [0.62391373, 0.53532814], [0.1688554, 0.44463454]]]
    )


def test_gaussian_text_is_read_as_pyscf_reads_it():
    from pyscf.gto.basis import parse_gaussian

    carbon = "C 0\n" + GAUSSIAN.split("-C     0\n")[1].replace("****", "")
    expected = as_blocks(parse_gaussian.parse(carbon, optimize=False))
    assert list(shells_of(GAUSSIAN, "C")) == expected
    assert sorted(parse_basis_text(GAUSSIAN)) == ["C", "H"]


def test_gaussian_scale_factor_multiplies_exponents_by_its_square():
    scaled = parse_basis_text("H 0\nS 2 1.20\n 2.0 0.5\n 0.5 0.6\n****\n")
    assert scaled == {"H": [[0, [2.0 * 1.44, 0.5], [0.5 * 1.44, 0.6]]]}
    explicit = parse_basis_text("Ne 0\nL=6 1 1.00\n 2.0 1.0\n****\n")
    assert explicit == {"Ne": [[6, [2.0, 1.0]]]}


@pytest.mark.parametrize("name", ["sto-3g", "6-31g**", "cc-pvdz", "def2-tzvp", "ano-rcc"])
@pytest.mark.parametrize("symbol", ["H", "C", "O", "Si"])
def test_text_written_by_pyscf_gives_the_named_basis(name, symbol):
    text = gto.basis.parse_nwchem.convert_basis_to_nwchem(symbol, gto.basis.load(name, symbol))
    written, named = shells_of(text, symbol), shells_of(name, symbol)
    assert sorted(block.l for block in written) == sorted(block.l for block in named)
    for one, other in zip(written, named, strict=True):
        np.testing.assert_allclose(one.exponents, other.exponents, rtol=1e-7)  # PySCF writes nine digits
        np.testing.assert_allclose(one.coefficients, other.coefficients, atol=1e-9)


@pytest.mark.parametrize("basis", [CARBON_NWCHEM + HYDROGEN_NWCHEM, GAUSSIAN], ids=["nwchem", "gaussian"])
def test_text_name_list_and_dict_agree(basis):
    mole = gto.M(atom=CH, basis="sto-3g", spin=1, verbose=0).intor("int1e_kin")
    count = len(mole)
    whole = Molecule(CH, basis, spin=1)
    parts = Molecule(CH, {"C": basis, "default": basis}, spin=1)
    np.testing.assert_array_equal(whole.exponents, parts.exponents)
    order = [k for k, name in enumerate(whole.ao_labels()) if " 3d" not in name]  # the Gaussian text has one d more
    overlap = whole.to_pyscf().intor("int1e_kin")[np.ix_(order, order)]
    assert overlap.shape == (count, count)
    np.testing.assert_allclose(overlap, mole, atol=2e-6)


def test_list_in_pyscf_format():
    shells = gto.basis.load("cc-pvdz", "O")
    named = shells_of("cc-pvdz", "O")
    assert shells_of({"O": shells}, "O") == named
    assert shells_of(shells, "O") == named
    assert shells_of(tuple((s[0], *map(tuple, s[1:])) for s in shells), "O") == named
    assert shells_of([[s[0], 0, *s[1:]] for s in shells], "O") == named  # with kappa
    assert shells_of(list(reversed(shells)), "O")[0].l == 0


def test_lists_may_mix_names_and_shells():
    extra = [[0, [0.05, 1.0]], [1, [0.07, 1.0]]]
    mole = gto.M(atom="He 0 0 0; He 0 0 1", basis={"He": ["cc-pvdz", extra]}, verbose=0)
    mol = Molecule("He 0 0 0; He 0 0 1", {"He": ["cc-pvdz", extra]})
    np.testing.assert_array_equal(mol.to_pyscf().intor("int1e_ovlp"), mole.intor("int1e_ovlp"))
    assert len(shells_of(["sto-3g", "sto-3g"], "H")) == 2


def test_basis_from_a_file(tmp_path):
    path = tmp_path / "my basis.nw"
    path.write_text(CARBON_NWCHEM + HYDROGEN_NWCHEM)
    assert shells_of(path, "C") == shells_of(str(path), "C") == shells_of(CARBON_NWCHEM, "C")


def test_the_most_exact_entry_of_a_dict_wins():
    atoms = "O1 0 0 0; O 0 0 2; H2 0 2 0; ghost-O1 3 0 0; H 0 0 5; ghost-O9 0 0 9"
    basis = {"O1": "cc-pvdz", "o": "sto-3g", "DEFAULT": "6-31g", "ghost-O1": "cc-pvtz", "H2": "3-21g"}
    mol = Molecule(atoms, basis)
    sizes = np.diff(mol.aoslice, axis=1)[:, 0].tolist()
    assert sizes == [14, 5, 2, 30, 2, 5]
    assert mol.exponents.shape != Molecule(atoms, "sto-3g").exponents.shape
    assert Molecule("O 0 0 0", {8: "def2-tzvp"}).nao == Molecule("O 0 0 0", {"O": "def2-tzvp"}).nao == 31
    assert Molecule("O 0 0 0; H 0 1 0; H 0 0 1", {1: "def2-TZVP", 8: "def2-TZVP"}).nao == 43


def test_the_key_of_a_dict_wins_over_the_element_in_the_text():
    mol = Molecule("O 0 0 0", {"O": CARBON_NWCHEM})
    assert mol.nao == 5
    np.testing.assert_allclose(mol.exponents, Molecule("C 0 0 0", CARBON_NWCHEM).exponents)
    with pytest.raises(ValueError, match="no functions for O"):
        Molecule("O 0 0 0", CARBON_NWCHEM)
    with pytest.raises(ValueError, match="it has C, H"):
        Molecule("O 0 0 0", {"O": CARBON_NWCHEM + HYDROGEN_NWCHEM})


def test_general_contractions_share_their_primitives():
    mol = Molecule("O 0 0 0; O 0 0 1.2", "cc-pvdz")
    first = [shell for shell in mol.shells if shell.atom == 0]
    # 8 primitives in two contractions and a single one, as the zeros of the library show
    assert [(s.l, s.nprim) for s in first] == [(0, 8), (0, 8), (0, 1), (1, 3), (1, 1), (2, 1)]
    assert first[0].exponent_start == first[1].exponent_start
    assert mol.exponents.shape == (9 + 4 + 1,) and mol.coefficients.shape == (8 + 8 + 1 + 3 + 1 + 1,)
    assert [s[1:] for s in mol.shells if s.atom == 1] == [s[1:] for s in first]


POTENTIALS = [
    *(("def2-svp", "Xe"), ("def2-qzvpp", "Au"), ("lanl2dz", "Na"), ("lanl2dz", "Fe"), ("cc-pvdz-pp", "I")),
    *(("stuttgart", "Cl"), ("crenbl", "C"), ("bfd-vdz", "C"), ("ccecp-cc-pvdz", "H"), ("gth-dzvp", "C")),
    *(("ma-def2-svp", "I"), ("aug-cc-pvtz-pp", "Br"), ("sbkjc", "Si"), ("unc-def2-svp", "Xe"), ("def2-mtzvp", "I")),
]


@pytest.mark.parametrize("name, symbol", POTENTIALS)
def test_basis_sets_for_core_potentials_are_refused(name, symbol):
    with pytest.raises(NotImplementedError, match=f"core electrons of {symbol} by an effective core potential"):
        shells_of(name, symbol)


@pytest.mark.parametrize(
    "name, symbol", [("def2-svp", "Kr"), ("lanl2dz", "C"), ("ano-rcc", "Xe"), ("dyall-v2z", "I"), ("minao", "O")]
)
def test_all_electron_sets_are_not_refused(name, symbol):
    assert list(shells_of(name, symbol)) == as_blocks(gto.basis.load(name, symbol))


@pytest.mark.parametrize(
    "text", ["I nelec 28\nI ul\n1 1.0 0.0\n", "I 0\nS 1 1.0\n1.0 1.0\n****\nI 0\nI-ECP 3 28\n", "ECP\nI nelec 28\n"]
)
def test_text_with_core_potentials_is_refused(text):
    with pytest.raises(NotImplementedError, match="effective core potential"):
        parse_basis_text(text)


@pytest.mark.slow
def test_the_whole_library_of_pyscf():
    """Every set for every element up to radon: the shells PySCF has, or a refusal in words."""
    read = 0
    for name in gto.basis.ALIAS:
        for number in range(1, 87):
            symbol = parse_label(number).symbol
            try:
                blocks = shells_of(name, symbol)
            except (ValueError, NotImplementedError):
                continue
            assert list(blocks) == as_blocks(gto.basis.load(name, symbol)), (name, symbol)
            read += 1
    assert read > 8000
