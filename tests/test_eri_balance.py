"""How the quartets of J and K are dealt to devices: the counting script of experiments/, and that shares are even."""

import sys
from pathlib import Path

import numpy as np
import pytest
from pyscf import scf

import jaxqc
from jaxqc import systems

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))
import eri_gpu_balance as balance  # noqa: E402  # pyright: ignore[reportMissingImports]


@pytest.fixture(scope="module")
def water():
    mol = jaxqc.Molecule(list(zip(*systems.water_cluster(4), strict=True)), basis="6-31g")
    return mol, balance.counted(mol)


def test_quartets_are_counted(water):
    """All quartets of shells at once, from PySCF's integrals."""
    mol, found = water
    mole = mol.to_pyscf()
    first = mole.ao_loc_nr()
    nshell, density = mole.nbas, np.abs(scf.hf.init_guess_by_minao(mole))
    with np.errstate(divide="ignore"):
        block = np.log([[density[a:b, c:d].max() for c, d in _runs(first)] for a, b in _runs(first)])
        diagonal = np.abs(np.einsum("ijij->ij", mole.intor("int2e")))
        bound = 0.5 * np.log([[diagonal[a:b, c:d].max() for c, d in _runs(first)] for a, b in _runs(first)])
    i, j = np.tril_indices(nshell)
    largest = np.maximum(block[i, j][:, None], block[i, j]) + np.log(4)
    for a, b in ((i, i), (i, j), (j, i), (j, j)):
        largest = np.maximum(largest, block[a[:, None], b])
    wanted = np.tril(bound[i, j][:, None] + bound[i, j] + largest > np.log(1e-13))
    assert sum(q.sum() for q, _ in found.values()) == pytest.approx(wanted.sum(), rel=1e-4)  # float32 bounds
    assert 0.5 < wanted.mean() / 0.5 < 0.99  # some are left out


def _runs(first):
    return list(zip(first[:-1], first[1:], strict=True))


def test_devices_have_equal_shares(water):
    found = balance.work(water[1])
    for devices in (2, 4):
        shares = balance.shares(found, devices)
        assert len(shares) == devices and np.mean(shares) == pytest.approx(1.0) and np.max(shares) < 1.05
