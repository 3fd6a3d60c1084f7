"""The CUDA kernels of selected CI, run thread by thread on the CPU, against the compiled CPU library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import molecule, over_several_words, random_hamiltonian

from jaxqc.gpu import build
from jaxqc.nnqs import (
    _coupling,
    _cuda_coupling,
    _energy,
    _perturbation,
    _selected,
    _sparse,
    all_configurations,
    aufbau,
    couple,
    lowest,
    pt2,
    selected_ci,
)
from jaxqc.nnqs._bits import Configurations
from jaxqc.nnqs._coupling import couple_fixed
from jaxqc.nnqs._energy import row_sums
from jaxqc.nnqs._selected import best_external
from jaxqc.nnqs._tables import tables_of


@pytest.fixture
def on_gpu(emulator, monkeypatch):
    """A function that switches to the emulated kernels."""

    def switch():
        monkeypatch.setattr(_cuda_coupling, "call", emulator.call)
        monkeypatch.setattr(_cuda_coupling, "_BLOCK", 64)
        monkeypatch.setattr(_coupling, "_LEAST_ON_GPUS", 16)
        for module in (_coupling, _energy, _perturbation, _selected, _sparse):
            monkeypatch.setattr(module, "on_gpu", lambda: True)
        jax.clear_caches()

    yield switch
    jax.clear_caches()


def _some(ham, number, seed=0):
    """A sorted set of configurations, with unused rows."""
    keys = np.asarray(all_configurations(ham.norb, ham.nalpha, ham.nbeta).keys)
    chosen = np.sort(np.random.default_rng(seed).choice(len(keys), min(number, len(keys)), replace=False))
    padded = np.concatenate([keys[chosen], np.full((3, keys.shape[1]), np.uint64(2**64 - 1))])
    return Configurations(jnp.asarray(padded), jnp.int32(len(chosen)))


def _lifted(norb):
    small, larger, lift = over_several_words(norb)
    keys, _ = lift(all_configurations(5, 2, 3).keys[::9])
    keys = keys[np.lexsort(keys.T[::-1])]
    return larger, Configurations(jnp.asarray(keys), jnp.int32(len(keys)))


CASES = {
    "one word": lambda: (lambda h: (h, _some(h, 12)))(random_hamiltonian(6, 3, 2)),
    "no beta": lambda: (lambda h: (h, _some(h, 4)))(random_hamiltonian(4, 2, 0)),
    "full": lambda: (lambda h: (h, _some(h, 4)))(random_hamiltonian(4, 4, 1)),
    "nothing to couple": lambda: (random_hamiltonian(3, 3, 3), Configurations(aufbau(3, 3, 3), jnp.int32(1))),
    "two words": lambda: _lifted(34),
    "four words": lambda: _lifted(66),
    "six words": lambda: _lifted(130),
}
SLOW = {"no beta", "full", "six words"}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in CASES])
def test_coupled_configurations_are_those_of_the_cpu(case, on_gpu):
    ham, configurations = CASES[case]()
    n, tables = configurations.keys.shape[0], tables_of(ham)
    limits = jnp.asarray(np.random.default_rng(1).choice([0.0, 0.3, 2.0, np.inf], n))

    def runs():
        count = int(couple_fixed(ham, tables, *configurations, limits, capacity=1).count)
        return [couple_fixed(ham, tables, *configurations, limits, capacity=c) for c in (count + 7, max(count - 1, 1))]

    expected = runs()
    on_gpu()
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(runs()), strict=True):
        np.testing.assert_array_equal(a, b)  # the order, too


def test_parts_are_disjoint_and_complete(on_gpu):
    ham = random_hamiltonian(6, 2, 2)
    configurations = _some(ham, 6)
    on_gpu()
    operands = tables_of(ham), *configurations, jnp.zeros(configurations.keys.shape[0])
    whole = couple(ham, configurations, epsilon=0.0)
    found = []
    for part in range(3):
        keys, *_, count = _cuda_coupling.couple(*operands, electrons=(2, 2), capacity=1000, part=part, parts=3)
        found.append(np.asarray(keys)[: int(count), 0])
        assert 0.2 < len(found[-1]) / int(whole.count) < 0.5
    np.testing.assert_array_equal(
        np.sort(np.concatenate(found)), np.sort(np.asarray(whole.keys)[: int(whole.count), 0])
    )
    for a in range(3):
        assert not np.intersect1d(found[a], found[a - 1]).size


@pytest.mark.parametrize("case", ["one word", pytest.param("two words", marks=pytest.mark.slow)])
def test_perturbation_theory_and_selection_are_those_of_the_cpu(case, on_gpu):
    ham, configurations = CASES[case]()
    state = lowest(ham, configurations)
    vector, e_ci = state.vectors[0], float(state.energies[0])
    expected = pt2(ham, configurations, vector, e_ci)
    best = best_external(ham, configurations, vector, e_ci, 1e-8, 1 << 20, 9)
    on_gpu()
    again = lowest(ham, configurations)
    np.testing.assert_allclose(again.energies, state.energies, rtol=1e-12)
    for memory in (1 << 20, 1 << 14):  # in one part and in many
        assert pt2(ham, configurations, vector, e_ci, memory=memory) == pytest.approx(expected, rel=1e-12)
        found = best_external(ham, configurations, vector, e_ci, 1e-8, memory, 9)
        assert found[0] == pytest.approx(best[0], rel=1e-12)
        assert {tuple(k) for k in found[1].tolist()} == {tuple(k) for k in best[1].tolist()}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in CASES])
def test_elements_from_pairs_are_those_of_the_cpu(case, on_gpu):
    ham, configurations = CASES[case]()
    expected = _sparse.sparse_matrix(ham, *configurations)
    every = _sparse.sparse_in_batches(ham, *configurations, tables_of(ham, complete=True), -1.0)
    on_gpu()
    for matrix, complete in ((expected, False), (every, True)):
        tables, threshold = tables_of(ham, complete), -1.0 if complete else 0.0
        found = _sparse.sparse_from_pairs(ham, *configurations, tables, threshold)
        np.testing.assert_array_equal(found.row_start, matrix.row_start)
        (columns, elements), (wanted, values) = (_by_column(m) for m in (found, matrix))
        np.testing.assert_array_equal(columns, wanted)
        np.testing.assert_allclose(elements, values, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(found.diagonal, matrix.diagonal, rtol=1e-12)


def _by_column(matrix):
    """Columns and elements of a matrix, by rising columns within each row."""
    start = np.asarray(matrix.row_start)
    columns, elements = (np.asarray(x)[: start[-1]] for x in (matrix.columns, matrix.elements))
    order = np.lexsort((columns, np.repeat(np.arange(len(start) - 1), np.diff(start))))
    return columns[order], elements[order]


def test_large_sets_are_not_compared_in_pairs(on_gpu, monkeypatch):
    ham, configurations = CASES["two words"]()
    on_gpu()
    pairs = _sparse.sparse_matrix(ham, *configurations)
    monkeypatch.setattr(_sparse, "_PAIRS", 0)
    looked_up = _sparse.sparse_matrix(ham, *configurations)
    x = jnp.asarray(np.random.default_rng(0).normal(size=configurations.keys.shape[0]))
    np.testing.assert_allclose(_sparse.product(pairs, x), _sparse.product(looked_up, x), rtol=1e-12, atol=1e-12)


def test_sparse_matrix_and_product(on_gpu):
    ham = molecule("H 0 0 0; H 0 0 1; H 0 1 2; H 1 0 3")[2]
    configurations = all_configurations(4, 2, 2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=36))
    matrix = _sparse.sparse_matrix(ham, *configurations)
    expected = _sparse.product(matrix, x)
    on_gpu()
    again = _sparse.sparse_matrix(ham, *configurations)
    np.testing.assert_array_equal(again.row_start, matrix.row_start)
    assert again.columns.shape[0] >= int(matrix.row_start[-1])
    np.testing.assert_allclose(_sparse.product(again, x), expected, rtol=1e-12)


@pytest.mark.slow
def test_sets_that_grow_are_those_of_the_cpu(on_gpu):
    ham = random_hamiltonian(7, 2, 2, seed=3, scale=0.05)
    expected = selected_ci(ham, 430, epsilon=0.0)
    on_gpu()
    found = selected_ci(ham, 430, epsilon=0.0)
    np.testing.assert_array_equal(found.configurations.keys[:430], expected.configurations.keys[:430])
    for a, b in zip(found.history, expected.history, strict=True):
        assert a[:4] == pytest.approx(b[:4], abs=1e-10)


def test_row_sums_and_their_derivatives(on_gpu):
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice([0, 1, 1, 1, 4, 5, 7, 8], 100)).astype(np.int32)
    terms = jnp.asarray(rng.normal(size=100))
    weights = jnp.asarray(rng.normal(size=7))
    expected = np.bincount(rows, terms, minlength=7)[:7]  # the others are no rows
    np.testing.assert_allclose(row_sums(terms, jnp.asarray(rows), 7), expected, rtol=1e-13)
    on_gpu()

    def loss(terms):
        return jnp.sum(weights * row_sums(terms, jnp.asarray(rows), 7) ** 2)

    np.testing.assert_allclose(row_sums(terms, jnp.asarray(rows), 7), expected, rtol=1e-13)
    np.testing.assert_allclose(jax.grad(loss)(terms), np.append(2 * weights * expected, [0.0, 0.0])[rows], rtol=1e-12)
    assert jnp.all(jnp.isnan(row_sums(terms, jnp.asarray(rows[::-1]), 7)))


def test_kernels_stay_within_their_resources(fresh_kernels):
    kinds = (_cuda_coupling.couple_unit, 64), (_cuda_coupling.sums_unit, 64), (_cuda_coupling.pairs_unit, 128)
    units = [(make(norb), most) for norb in (28, 42, 70) for make, most in kinds]
    for (unit, most), built in zip(units, build([unit for unit, _ in units], 90), strict=True):
        resources = built.resources()
        assert set(resources) == set(unit.kernels)
        for used in resources.values():
            assert used["registers"] <= most and used["spill"] == 0, (unit.name, used)
