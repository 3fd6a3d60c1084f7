"""Configurations, Hamiltonians and matrix elements of selected CI, against PySCF for all determinants."""

import bisect
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import (
    fci_energy,
    fci_matrix,
    molecule,
    over_several_words,
    random_hamiltonian,
    random_integrals,
    symmetric_integrals,
)
from pyscf import fci, mcscf
from pyscf.tools import fcidump as pyscf_fcidump

import jaxqc
from jaxqc.nnqs import Hamiltonian, _bits, all_configurations, aufbau, diagonal, element, pack, unpack
from jaxqc.nnqs._bits import word_count

N2 = "N 0 0 0; N 0 0 1.0977"


def matrix(ham, keys):
    keys = jnp.asarray(keys)
    n = len(keys)
    i, j = np.divmod(np.arange(n * n), n)
    return np.asarray(element(ham, keys[i], keys[j])).reshape(n, n)


@pytest.mark.parametrize("norb", [7, 32, 33, 65, 128])
def test_pack_and_unpack(norb):
    occupied = np.random.default_rng(norb).random((50, 2, norb)) < 0.5
    keys = pack(occupied)
    assert keys.shape == (50, word_count(norb)) and keys.dtype == jnp.uint64
    np.testing.assert_array_equal(unpack(keys, norb), occupied)
    # Keys are ordered as the numbers whose bits are alpha, then beta, highest orbital first.
    numbers = ["".join("01"[int(x)] for x in row[:, ::-1].ravel()) for row in occupied]
    by_key = np.lexsort(np.asarray(keys).T[::-1])
    assert [numbers[k] for k in by_key] == sorted(numbers)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("words", [1, 2])
def test_search(words, on_gpu, monkeypatch):
    monkeypatch.setattr(_bits, "on_gpu", lambda: on_gpu)  # without a loop there
    random = np.random.default_rng(words).integers(0, 6, (40, words), np.uint64)
    keys = random[np.lexsort(random.T[::-1])]
    queries = [*itertools.product(range(7), repeat=words), (int(_bits.SENTINEL),) * words]
    expected = [bisect.bisect_left([tuple(key) for key in keys.tolist()], query) for query in queries]
    found = _bits.search(jnp.asarray(keys), jnp.asarray(np.array(queries, np.uint64)))
    assert found.dtype == jnp.int32 and found.tolist() == expected
    assert _bits.search(jnp.asarray(keys[:0]), jnp.asarray(keys)).tolist() == [0] * 40


def test_all_configurations():
    ham = random_hamiltonian(5, 3, 2)
    found = all_configurations(5, 3, 2)
    strings = fci.cistring.make_strings(range(5), 3)[:, None] << 5 | fci.cistring.make_strings(range(5), 2)[None]
    np.testing.assert_array_equal(found.keys[:, 0], strings.ravel().astype(np.uint64))
    assert int(found.count) == 100
    np.testing.assert_array_equal(aufbau(5, 3, 2), found.keys[:1])
    with pytest.raises(ValueError, match="more than the 2\\^31"):
        all_configurations(40, 20, 20)
    assert ham.norb == 5


@pytest.mark.parametrize(("norb", "nalpha", "nbeta"), [(5, 3, 2), (5, 1, 3), (3, 1, 0), (4, 4, 1)])
def test_every_element_of_random_integrals(norb, nalpha, nbeta):
    ham = random_hamiltonian(norb, nalpha, nbeta, seed=norb)
    keys = all_configurations(norb, nalpha, nbeta).keys
    ours, reference = matrix(ham, keys), fci_matrix(ham)
    np.testing.assert_allclose(ours - 0.5 * np.eye(len(keys)), reference, atol=1e-12)
    np.testing.assert_allclose(diagonal(ham, keys), np.diag(ours), atol=1e-12)


def test_every_element_of_water():
    ham = molecule("O 0 0 0; H .2774 .8929 .2544; H .6068 -.2383 -.7169")[2]
    keys = all_configurations(7, 5, 5).keys
    ours = matrix(ham, keys)
    np.testing.assert_allclose(ours - float(ham.constant) * np.eye(441), fci_matrix(ham), atol=1e-11)
    assert np.linalg.eigvalsh(ours)[0] == pytest.approx(-75.015530, abs=1e-6)  # Choo et al. 2020


@pytest.mark.parametrize("norb", [34, 66])
def test_elements_over_several_words(norb):
    small, larger, lift = over_several_words(norb)
    keys = all_configurations(5, 2, 3).keys
    lifted, phase = lift(keys)
    np.testing.assert_allclose(matrix(larger, lifted) * phase[:, None] * phase, matrix(small, keys), atol=1e-12)


def test_molecule_orbitals(tmp_path):
    mole, mf, reference = molecule(N2)
    mol = jaxqc.Molecule.from_pyscf(mole)
    ham = Hamiltonian.from_molecule(mol)
    assert (ham.norb, ham.nalpha, ham.nbeta) == (10, 7, 7)
    assert float(diagonal(ham, aufbau(10, 7, 7))[0]) == pytest.approx(mf.e_tot, abs=1e-9)
    # Orbitals agree but for signs and turns of degenerate pairs: spectra of pair matrices do not see those.
    pairs = [np.asarray(h.two).transpose(0, 2, 1, 3).reshape(100, 100) for h in (ham, reference)]
    ours, theirs = (np.linalg.eigvalsh(x) for x in pairs)
    np.testing.assert_allclose(ours, theirs, atol=1e-8)

    cas: Any = mcscf.CASCI(mf, 6, 6)
    core = Hamiltonian.from_molecule(mol, frozen=4, active=6)
    assert (core.norb, core.nalpha, core.nbeta) == (6, 3, 3)
    assert fci_energy(core) == pytest.approx(cas.kernel()[0], abs=1e-8)


def test_open_shell_molecule():
    mole, mf, _ = molecule("O 0 0 0; H 0 0 1", spin=1)
    ham = Hamiltonian.from_molecule(jaxqc.Molecule.from_pyscf(mole))
    assert (ham.nalpha, ham.nbeta) == (5, 4)
    assert float(diagonal(ham, aufbau(6, 5, 4))[0]) == pytest.approx(mf.e_tot, abs=1e-9)


def test_molecule_arguments():
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
    cases: Any = (
        ({"frozen": 2}, "from 0 to the 1 electron pairs"),
        ({"active": 3}, "from 1 to the 2 orbitals"),
        ({"frozen": True}, "must be a whole number"),
        ({"result": 3}, "must be a jaxqc.scf.Result"),
        ({"result": jaxqc.scf(mol, restricted=False)}, "one set"),
    )
    for arguments, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            Hamiltonian.from_molecule(mol, **arguments)
    with pytest.raises(TypeError, match="must be a jaxqc.Molecule"):
        Hamiltonian.from_molecule("H2")


def test_rotation_keeps_energies():
    ham = random_hamiltonian(4, 2, 1)
    u = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
    keys = all_configurations(4, 2, 1).keys
    before, after = (np.linalg.eigvalsh(matrix(h, keys)) for h in (ham, ham.rotate(u)))
    np.testing.assert_allclose(before, after, atol=1e-11)


def test_fcidump(tmp_path):
    ham = Hamiltonian.from_integrals(*symmetric_integrals((0, 1, 1, 5), 7), 3, 1, -2.25, irreps=(0, 1, 1, 5))
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ham.to_fcidump(ours)
    again = Hamiltonian.from_fcidump(ours)
    for name in ("one", "two", "constant"):
        np.testing.assert_array_equal(getattr(again, name), getattr(ham, name))
    assert (again.nalpha, again.nbeta, again.irreps) == (3, 1, (0, 1, 1, 5))
    read = pyscf_fcidump.read(str(ours), verbose=False)
    assert (read["NORB"], read["NELEC"], read["MS2"], read["ORBSYM"]) == (4, 4, 2, [1, 2, 2, 6])
    np.testing.assert_allclose(read["H1"], ham.one, atol=1e-14)

    writer: Any = pyscf_fcidump.from_integrals
    writer(str(theirs), np.asarray(ham.one), np.asarray(ham.two), 4, 4, nuc=-2.25, ms=2, float_format=" %.17g")
    other = Hamiltonian.from_fcidump(theirs)
    np.testing.assert_allclose(other.two, ham.two, atol=1e-14)
    np.testing.assert_allclose(other.one, ham.one, atol=1e-14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a FCIDUMP"),
        ("&FCI NORB=2,NELEC=2,MS2=0,\n 0.5 1 1 1 1\n", "is not a FCIDUMP"),
        ("&FCI NELEC=2,\n&END\n", "lacks NORB"),
        ("&FCI NORB=2,NELEC=5,MS2=1,\n&END\n", "contradicts itself"),
        ("&FCI NORB=2,NELEC=2,MS2=1,\n&END\n", "contradicts itself"),
        ("&FCI NORB=2,NELEC=x,MS2=0,\n&END\n", "not a whole number"),
        ("&FCI NORB=2,NELEC=2,MS2=0,ORBSYM=1,1,1,\n&END\n", "3 labels in ORBSYM"),
        ("&FCI NORB=2,NELEC=2,MS2=0,IUHF=1,\n&END\n", "spin-unrestricted"),
        ("&FCI NORB=2,NELEC=2,MS2=0,\n&END\n 0.5 1 1 3 1\n", "from 0 to NORB=2"),
        ("&FCI NORB=2,NELEC=2,MS2=0,\n&END\n 0.5 1 1 1\n", "cut short"),
        ("&FCI NORB=2,NELEC=2,MS2=0,\n&END\n 0.5 1 0 1 1\n", "mean nothing"),
        ("&FCI NORB=2,NELEC=2,MS2=0,\n&END\n what 1 1 1 1\n", "'what' among its integrals"),
        ("&FCI NORB=2,NELEC=2,MS2=0,\n&END\n nan 1 1 1 1\n", "not a number"),
    ],
)
def test_fcidump_that_is_wrong(tmp_path, text, message):
    path = tmp_path / "FCIDUMP"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Hamiltonian.from_fcidump(path)


def test_fcidump_styles(tmp_path):
    path = tmp_path / "FCIDUMP"
    header = "$FCI\n norb = 2, nelec= 2, MS2=0\n ORBSYM=1,1\n /\n"
    path.write_text(header + " 0.5D+0 1 1 1 1\n-.1d1 1 1 0 0\n-3 1 0 0 0\n7 0 0 0 0")
    ham = Hamiltonian.from_fcidump(path)
    assert (float(ham.two[0, 0, 0, 0]), float(ham.one[0, 0]), float(ham.constant)) == (0.5, -1.0, 7.0)


def test_integrals_that_are_wrong():
    one, two = random_integrals(3)
    bad_one, bad_two = one.copy(), two.copy()
    bad_one[0, 1] += 1.0
    bad_two[0, 1, 2, 2] += 1.0
    nan = two.copy()
    nan[0, 0, 0, 0] = np.nan
    cases: Any = (
        ((bad_one, two, 1, 1), "h_pq and h_qp"),
        ((one, bad_two, 1, 1), "symmetry of real orbitals"),
        ((one, two.transpose(0, 2, 1, 3), 1, 1), "chemists' order"),
        ((one, nan, 1, 1), "not a number"),
        ((one, two[:2], 1, 1), "must be \\(norb, norb\\)"),
        ((one.astype(complex), two, 1, 1), "real array"),
        ((one, two, 4, 1), "0 to 3 electrons"),
        ((one, two, 0, 0), "no electrons"),
        ((one, two, 1, -1), "nbeta"),
    )
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            Hamiltonian.from_integrals(*arguments)
    fraction: Any = 1.5
    with pytest.raises(TypeError, match="whole number"):
        Hamiltonian.from_integrals(one, two, fraction, 1)
    full = np.zeros((32, 32))
    with pytest.raises(ValueError, match="orbitals are full"):
        Hamiltonian.from_integrals(full, np.zeros((32,) * 4), 32, 32)
