"""The systems that benchmarks are made of: compositions, bonds, distances."""

import numpy as np
import pytest

from jaxqc import Molecule, systems


def distances(symbols, coords, first, second):
    table = np.linalg.norm(coords[:, None] - coords[None], axis=-1) + 100 * np.eye(len(symbols))
    symbols = np.array(symbols)
    return table[np.ix_(symbols == first, symbols == second)]


@pytest.mark.parametrize("n", [1, 2, 5, 8, 10, 27, 30])
def test_water_clusters(n):
    symbols, coords = systems.water_cluster(n)
    mol = Molecule((symbols, coords), "sto-3g")
    assert mol.symbols == ("O", "H", "H") * n and mol.nao == 7 * n
    bonds = np.sort(distances(symbols, coords, "O", "H"), axis=1)
    np.testing.assert_allclose(bonds[:, :2], 0.9572, rtol=1e-12)
    np.testing.assert_allclose(coords[1::3][0] @ coords[2::3][0] / 0.9572**2, np.cos(np.deg2rad(104.52)), rtol=1e-12)
    if n > 1:
        assert distances(symbols, coords, "O", "O").min() == pytest.approx(2.95)
        assert bonds[:, 2].min() > 1.9  # hydrogen bonds
        assert np.sort(distances(symbols, coords, "H", "H"), axis=1)[:, 1].min() > 1.9
    if n in (8, 64):
        dipole = sum(
            (2 * o - a - b for o, a, b in zip(coords[::3], coords[1::3], coords[2::3], strict=True)), np.zeros(3)
        )
        np.testing.assert_allclose(dipole, 0.0, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_polyglycine(n):
    symbols, coords = systems.polyglycine(n)
    assert Molecule((symbols, coords), "sto-3g").nelec == 30 * n + 10
    counts = {symbol: symbols.count(symbol) for symbol in "CHNO"}
    assert counts == {"C": 2 * n, "H": 3 * n + 2, "N": n, "O": n + 1}
    all_bonds = np.linalg.norm(coords[:, None] - coords[None], axis=-1)[np.triu_indices(len(symbols), 1)]
    assert np.sum(all_bonds < 1.6) == len(symbols) - 1  # without rings there is one bond less than atoms
    assert distances(symbols, coords, "N", "C").min() == pytest.approx(1.458 if n == 1 else 1.329)
    assert distances(symbols, coords, "C", "O").min() == pytest.approx(1.231)
    assert distances(symbols, coords, "H", "H").min() > 1.6


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 3), (2, 2), (3, 4)])
def test_boron_nitride(rows, columns):
    symbols, coords = systems.boron_nitride(rows, columns)
    heavy = 2 * (rows + 1) * (columns + 1) - 2
    assert symbols.count("B") == symbols.count("N") == heavy // 2
    assert Molecule((symbols, coords), "sto-3g").nelec == 6 * heavy + symbols.count("H")
    bonds = distances(symbols, coords, "B", "N") < 1.5
    assert bonds.sum() == heavy + rows * columns - 1  # Euler: bonds = atoms + rings - 1
    closed = [(distances(symbols, coords, a, b) < 1.25).sum(axis=1) for a, b in ("BH", "NH")]
    np.testing.assert_array_equal(bonds.sum(axis=1) + closed[0], 3)
    np.testing.assert_array_equal(bonds.sum(axis=0) + closed[1], 3)


def test_builders_are_deterministic():
    for build in (
        lambda: systems.water_cluster(7),
        lambda: systems.polyglycine(2),
        lambda: systems.boron_nitride(2, 1),
    ):
        (symbols, coords), (again, once_more) = build(), build()
        assert symbols == again
        np.testing.assert_array_equal(coords, once_more)


@pytest.mark.parametrize(
    "value, error", [(0, ValueError), (-3, ValueError), (1.5, TypeError), ("2", TypeError), (True, TypeError)]
)
def test_builders_refuse_counts_without_meaning(value, error):
    for build in (systems.water_cluster, systems.polyglycine, lambda n: systems.boron_nitride(n, 1)):
        with pytest.raises(error, match="positive integer"):
            build(value)
