"""States, perturbation theory, density matrices and selection of selected CI, against PySCF and brute force."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import as_set, fci_matrix, molecule, over_several_words, random_hamiltonian
from pyscf import fci

import jaxqc
from jaxqc.nnqs import (
    Hamiltonian,
    _perturbation,
    _sparse,
    all_configurations,
    aufbau,
    density_matrices,
    element,
    extrapolate,
    lowest,
    pt2,
    selected_ci,
    sparse_hamiltonian,
)
from jaxqc.nnqs._perturbation import _external_plain, external, term_thresholds
from jaxqc.nnqs._sparse import _product_plain, _sparse_plain, product, sparse_matrix
from jaxqc.nnqs._tables import tables_of

WATER = "O 0 0 0; H .2774 .8929 .2544; H .6068 -.2383 -.7169"


def energy_of(ham, dm1, dm2):
    return float(ham.constant + jnp.sum(ham.one * dm1) + 0.5 * jnp.sum(ham.two * dm2))


def part_of(whole, number, seed=0):
    """Some of all configurations, sorted, and their positions."""
    chosen = np.sort(np.random.default_rng(seed).choice(len(whole.keys), number, replace=False))
    return as_set(np.asarray(whole.keys)[chosen]), chosen


@pytest.mark.parametrize(("norb", "nalpha", "nbeta"), [(6, 3, 3), (5, 3, 1), (3, 1, 0), (3, 3, 3)])
def test_full_space_equals_fci(norb, nalpha, nbeta):
    ham = random_hamiltonian(norb, nalpha, nbeta, seed=3, scale=0.1)
    whole = all_configurations(norb, nalpha, nbeta)
    exact, vectors = np.linalg.eigh(fci_matrix(ham) + 0.5 * np.eye(len(whole.keys)))
    roots = min(3, len(exact))
    states = lowest(ham, whole, nroots=roots)
    np.testing.assert_allclose(states.energies, exact[:roots], atol=1e-10)
    assert float(jnp.max(states.residuals)) < 1e-8
    if nalpha < norb:
        # The spin of each vector from PySCF.
        shape = tuple(fci.cistring.num_strings(norb, n) for n in (nalpha, nbeta))
        spins = [fci.spin_op.spin_square(v.reshape(shape), norb, (nalpha, nbeta))[0] for v in vectors.T[:roots]]
        np.testing.assert_allclose(states.spin_squares, spins, atol=1e-8)


def test_davidson_on_water():
    ham = molecule(WATER)[2]
    whole = all_configurations(7, 5, 5)  # more than are diagonalised as a whole
    exact = np.linalg.eigvalsh(fci_matrix(ham)) + float(ham.constant)
    states = lowest(ham, whole, nroots=3)
    np.testing.assert_allclose(states.energies, exact[:3], atol=1e-9)
    assert float(jnp.max(states.residuals)) < 1e-7
    matrix = sparse_matrix(ham, *whole)
    for energy, vector, residual in zip(states.energies, states.vectors, states.residuals, strict=True):
        assert float(jnp.linalg.norm(product(matrix, vector) - energy * vector)) == pytest.approx(
            float(residual), abs=1e-9
        )


def test_stretched_nitrogen():
    """The singlet, triplet and quintet are close to each other, and of different symmetry (PySCF's FCI: see below)."""
    ham = molecule("N 0 0 0; N 0 0 2.10")[2]
    states = lowest(ham, all_configurations(10, 7, 7), nroots=3)
    # Singlet and quintet as pyscf.fci with <S^2> checked gives them.
    assert float(states.energies[0]) == pytest.approx(-107.4486324, abs=1e-6)
    assert float(states.energies[2]) == pytest.approx(-107.4304378, abs=1e-6)
    np.testing.assert_allclose(states.spin_squares, [0.0, 2.0, 6.0], atol=1e-6)
    assert float(states.spin_squares[0]) < 1e-3


def test_matrix_on_a_set():
    ham = random_hamiltonian(6, 3, 2, seed=1)
    chosen, at = part_of(all_configurations(6, 3, 2), 150)
    reference = (fci_matrix(ham) + 0.5 * np.eye(300))[np.ix_(at, at)]
    found = sparse_hamiltonian(ham, *chosen)
    dense = np.zeros((150, 150))
    dense[found.rows, found.columns] = found.values
    np.testing.assert_allclose(dense, reference, atol=1e-11)
    x = jnp.asarray(np.random.default_rng(0).normal(size=150))
    plain, total = _sparse_plain(ham, *chosen, capacity=20000)
    for matrix in (sparse_matrix(ham, *chosen), plain):
        np.testing.assert_allclose(product(matrix, x), reference @ x, atol=1e-10)
        np.testing.assert_allclose(_product_plain(matrix, x), reference @ x, atol=1e-10)
    assert int(total) == int(plain.row_start[-1])
    number: Any = np.int64(2)
    state = lowest(ham, chosen, number)
    np.testing.assert_allclose(state.energies, np.linalg.eigvalsh(reference)[:2], atol=1e-9)
    assert float(state.energies[0]) > np.linalg.eigvalsh(fci_matrix(ham))[0] + 0.5


def test_estimates_beyond_all_arrays_are_limited(monkeypatch):
    ham = random_hamiltonian(6, 3, 2, seed=1)
    chosen, at = part_of(all_configurations(6, 3, 2), 40)
    full = fci_matrix(ham)
    reference = full[np.ix_(at, at)] - np.diag(np.diag(full)[at])
    x = jnp.asarray(np.random.default_rng(0).normal(size=40))
    monkeypatch.setattr(_sparse, "coupled_number", lambda *_: 1e10)
    matrix = _sparse.sparse_in_batches(ham, *chosen, tables_of(ham), 0.0, memory=1 << 16)
    assert matrix.columns.shape[0] < 1 << 18
    np.testing.assert_allclose(product(matrix._replace(diagonal=jnp.zeros(40)), x), reference @ x, atol=1e-10)
    vector, limits = term_thresholds(x, chosen.count, 0.0)
    monkeypatch.setattr(_perturbation, "rows_of_terms", lambda terms: int(terms) >> 20)  # less than is needed
    monkeypatch.setattr(_perturbation, "estimate_terms", lambda *_: 1e11)
    monkeypatch.setattr(_perturbation, "_MOST_TERMS", 5e10)
    parts = list(external(ham, *chosen, vector, 0.0, memory=1 << 60))
    outside = np.setdiff1d(np.arange(300), at)
    sums = np.sort((full[np.ix_(outside, at)] @ x)[np.any(full[np.ix_(outside, at)] != 0, axis=1)])
    found = np.sort(np.concatenate([np.asarray(p.sums)[np.asarray(p.sums) != 0] for p in parts]))
    assert len(parts) == 2
    np.testing.assert_allclose(found, sums, atol=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_perturbation_against_brute_force(epsilon):
    ham = random_hamiltonian(6, 3, 2, seed=1)
    chosen, at = part_of(all_configurations(6, 3, 2), 40)
    full = fci_matrix(ham) + 0.5 * np.eye(300)
    vector = np.asarray(lowest(ham, chosen).vectors[0])
    energy = -300.0
    outside = np.setdiff1d(np.arange(300), at)
    terms = full[np.ix_(outside, at)] * vector
    terms[np.abs(terms) <= epsilon] = 0.0
    reference = np.sum(terms.sum(axis=1) ** 2 / (energy - np.diag(full)[outside]))
    assert pt2(ham, chosen, vector, energy, epsilon) == pytest.approx(reference, rel=1e-12)
    in_parts = pt2(ham, chosen, vector, energy, epsilon, memory=50_000)
    assert in_parts == pytest.approx(reference, rel=1e-12)
    used, thresholds = term_thresholds(jnp.asarray(vector), chosen.count, epsilon)
    plain = [_external_plain(ham, tables_of(ham), *chosen, used, thresholds, part, 3, 8000) for part in range(3)]
    again = sum(float(jnp.sum(p.sums**2 / (energy - p.energies))) for p, _ in plain)
    assert again == pytest.approx(reference, rel=1e-12)


def test_numbers_of_threads(monkeypatch):
    ham = random_hamiltonian(6, 3, 3)
    chosen, _ = part_of(all_configurations(6, 3, 3), 100)
    vector = lowest(ham, chosen).vectors[0]
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("JAXQC_NUM_THREADS", threads)
        results.append([*density_matrices(ham, chosen, vector), *next(external(ham, *chosen, vector, 1e-3))])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_density_matrices_of_the_full_space():
    ham = random_hamiltonian(5, 3, 2, seed=4)
    whole = all_configurations(5, 3, 2)
    states = lowest(ham, whole, nroots=2)
    bra, ket = (np.asarray(v).reshape(10, 10) for v in states.vectors)
    dm1, dm2 = density_matrices(ham, whole, states.vectors[0])
    reference = fci.direct_spin1.make_rdm12(bra, 5, (3, 2))
    np.testing.assert_allclose(dm1, reference[0], atol=1e-12)
    np.testing.assert_allclose(dm2, reference[1], atol=1e-12)
    assert energy_of(ham, dm1, dm2) == pytest.approx(float(states.energies[0]), abs=1e-9)
    between = density_matrices(ham, whole, *states.vectors)
    reference = fci.direct_spin1.trans_rdm12(bra, ket, 5, (3, 2))
    np.testing.assert_allclose(between[0], reference[0], atol=1e-12)
    np.testing.assert_allclose(between[1], reference[1], atol=1e-12)


def test_density_matrices_of_a_set():
    """They are the derivatives of the energy with respect to the integrals."""
    ham = random_hamiltonian(6, 3, 2, seed=6)
    chosen, _ = part_of(all_configurations(6, 3, 2), 60)
    state = lowest(ham, chosen)
    c = state.vectors[0]
    dm1, dm2 = density_matrices(ham, chosen, c)
    assert energy_of(ham, dm1, dm2) == pytest.approx(float(state.energies[0]), abs=1e-9)
    i, j = np.divmod(np.arange(3600), 60)

    def energy(one, two):
        return jnp.sum(c[i] * c[j] * element(replace(ham, one=one, two=two), chosen.keys[i], chosen.keys[j]))

    by_one, by_two = jax.grad(energy, argnums=(0, 1))(ham.one, ham.two)
    symmetric = 0.5 * (by_one + by_one.T)
    np.testing.assert_allclose(0.5 * (dm1 + dm1.T), symmetric, atol=1e-12)

    def fold(x):
        x = x + x.transpose(1, 0, 2, 3)
        x = x + x.transpose(0, 1, 3, 2)
        return np.asarray(x + x.transpose(2, 3, 0, 1)) / 8

    np.testing.assert_allclose(fold(0.5 * dm2), fold(by_two), atol=1e-12)


@pytest.mark.parametrize("norb", [34, 66])
def test_several_words(norb):
    small, larger, lift = over_several_words(norb)
    chosen, _ = part_of(all_configurations(5, 2, 3), 50)
    lifted = as_set(lift(chosen.keys)[0])
    ours, reference = lowest(larger, lifted), lowest(small, chosen)
    assert float(ours.energies[0]) == pytest.approx(float(reference.energies[0]), abs=1e-10)
    assert float(ours.spin_squares[0]) == pytest.approx(float(reference.spin_squares[0]), abs=1e-8)
    values = [
        pt2(h, s, r.vectors[0], r.energies[0]) for h, s, r in ((larger, lifted, ours), (small, chosen, reference))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-10)
    if norb < 64:
        dm1, dm2 = density_matrices(larger, lifted, ours.vectors[0])
        assert energy_of(larger, dm1, dm2) == pytest.approx(float(ours.energies[0]), abs=1e-9)


def test_selection_on_nitrogen():
    ham = molecule("N 0 0 0; N 0 0 1.0977")[2]
    points = []
    found = selected_ci(ham, 500, callback=points.append)
    exact = -107.6528287  # pyscf.fci
    assert tuple(points) == found.history
    energies = [point.e_ci for point in found.history]
    assert all(later < earlier for earlier, later in zip(energies, energies[1:], strict=False))
    assert exact < found.e_ci < exact + 2e-3
    assert abs(found.e_ci + found.e_pt2 - exact) < 1e-4
    assert abs(found.e_extrapolated - exact) < max(2e-4, found.error)
    assert found.spin_square < 1e-3 and not found.complete
    keys, count = found.configurations
    assert 500 <= int(count) < 510 and np.all(np.diff(np.asarray(keys[: int(count), 0]).astype(object)) > 0)
    again = selected_ci(ham, 500)
    assert again.history == found.history
    assert selected_ci(ham, 50, growth=1e308).history == selected_ci(ham, 50, growth=1e6).history


def test_stated_errors_count_what_the_threshold_leaves_out():
    ham = molecule("N 0 0 0; N 0 0 1.0977")[2]
    exact = -107.6528287  # pyscf.fci
    for epsilon, size in ((0.1, 7), (0.03, 50), (3e-3, 200), (1e-3, 200)):
        found = selected_ci(ham, size, epsilon=epsilon)
        assert abs(found.e_extrapolated - exact) <= found.error < 0.2
        left_out = pt2(ham, found.configurations, found.vector, found.e_ci, 0.0) - found.e_pt2
        assert abs(left_out) <= 1.1 * found.error


def test_selection_to_the_end():
    ham = molecule("Li 0 0 0; H 0 0 1.548")[2]
    found = selected_ci(ham)
    assert found.complete and found.e_pt2 == 0.0 and found.error == 0.0
    assert found.e_ci == found.e_extrapolated == pytest.approx(-7.882762, abs=1e-6)
    assert found.e_ci == pytest.approx(np.linalg.eigvalsh(fci_matrix(ham))[0] + float(ham.constant), abs=1e-9)


def test_one_electron_and_full_orbitals():
    ham = random_hamiltonian(5, 1, 0, seed=8)
    found = selected_ci(ham)
    assert found.e_ci == pytest.approx(np.linalg.eigvalsh(ham.one)[0] + 0.5, abs=1e-10)
    assert found.spin_square == pytest.approx(0.75, abs=1e-12)
    full = random_hamiltonian(3, 3, 3)
    found = selected_ci(full)
    assert found.complete and found.e_ci == pytest.approx(fci_matrix(full)[0, 0] + 0.5, abs=1e-10)
    assert found.spin_square == pytest.approx(0.0, abs=1e-12)


def test_natural_orbitals():
    mol = jaxqc.Molecule("Li 0 0 0; H 0 0 1.6", basis="sto-3g")
    plain, natural = (Hamiltonian.from_molecule(mol, natural=choice) for choice in (False, True))
    whole = all_configurations(6, 2, 2)
    states = [lowest(ham, whole) for ham in (plain, natural)]
    assert float(states[0].energies[0]) == pytest.approx(float(states[1].energies[0]), abs=1e-8)
    dm1 = np.asarray(density_matrices(natural, whole, states[1].vectors[0])[0])
    np.testing.assert_allclose(dm1, np.diag(np.diag(dm1)), atol=1e-4)
    assert np.all(np.diff(np.diag(dm1)) < 1e-4)


def test_extrapolation():
    pt2s = np.array([-0.1, -0.05, -0.02, -0.01])
    value, error = extrapolate(np.stack([-5.0 - 1.2 * pt2s, pt2s], axis=1))
    assert value == pytest.approx(-5.0, abs=1e-12) and error < 1e-3
    curved = np.stack([-5.0 - 1.2 * pt2s + pt2s**2, pt2s], axis=1)
    value, error = extrapolate(curved)
    assert abs(value + 5.0) < error < 3e-3
    # Where there is no line, or it leads below twice the correction, or a correction has the wrong sign.
    steep = np.stack([-5.0 - 3.0 * pt2s, pt2s], axis=1)
    for points in ([(-5.0, -0.1)], [*steep, (-5.0, -0.1)], [(-4.9, -0.2), (-4.95, -0.15), (-5.0, -0.1)]):
        value, error = extrapolate(points)
        assert -5.2 <= value <= -5.0 and abs(value + 5.1) <= 0.1 and error > 0
    assert extrapolate([(-5.0, -0.1)]) == (-5.1, 0.1) == extrapolate([(-4.9, -0.2), (-5.0, -0.1)])
    assert extrapolate(steep) == pytest.approx((steep[-1, 0] - 0.01, 0.01))
    assert extrapolate([*curved, (-5.0, 0.1)]) == (-4.9, 0.1)
    # Sets that differ by rounding, as where a network chooses the same again, tell no more than one.
    same = [(-5.0, -0.1), (-5.0 - 1e-15, -0.1), (-5.0, -0.1 - 1e-12), (-5.0 + 1e-9, -0.1 + 1e-9)]
    assert extrapolate(same) == pytest.approx((-5.1, 0.1), abs=1e-8) == extrapolate([(-4.9, -0.2), *same])


def test_arguments_that_are_wrong():
    ham = random_hamiltonian(5, 2, 2, seed=2)
    whole = all_configurations(5, 2, 2)
    empty = jnp.zeros((0, 1), jnp.uint64)
    assert pt2(ham, empty, jnp.zeros(0), -1.0) == 0.0
    cases: Any = (
        (lambda: lowest(ham, empty), "set is empty"),
        (lambda: lowest(ham, whole, nroots=101), "from 1 to the 100 configurations"),
        (lambda: lowest(ham, whole.keys[::-1]), "must be sorted"),
        (lambda: lowest(ham, jnp.concatenate([whole.keys[:2], whole.keys[:2]])), "must be sorted"),
        (lambda: pt2(ham, whole, jnp.zeros(7), -1.0), "one coefficient for each of the 100"),
        (lambda: pt2(ham, whole, jnp.zeros(100), -1.0, -1.0), "not negative"),
        (lambda: pt2(ham, whole, jnp.full(100, jnp.nan), -1.0), "vector .* not a number"),
        (lambda: pt2(ham, whole, jnp.zeros(100), 1e300), "energy .* finite number"),
        (lambda: selected_ci(ham, memory=1), "memory .* at least 16384"),
        (lambda: selected_ci(ham, nroots=0), "nroots .* at least 1"),
        (lambda: density_matrices(ham, whole, jnp.zeros(7)), "one coefficient for each of the 100"),
        (lambda: selected_ci(ham, 0), "whole number of at least 1"),
        (lambda: selected_ci(ham, growth=1.0), "above 1"),
        (lambda: selected_ci(ham, epsilon=np.inf), "epsilon .* finite number"),
        (lambda: selected_ci(ham, start=empty), "is empty"),
        (lambda: selected_ci(ham, start=aufbau(5, 3, 2)), "1 of the 1 configurations"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    wrong: Any = "H2"
    with pytest.raises(TypeError, match="must be a jaxqc.nnqs.Hamiltonian"):
        selected_ci(wrong)
    with pytest.raises(RuntimeError, match="did not converge in 2 cycles"):
        lowest(random_hamiltonian(7, 3, 2), all_configurations(7, 3, 2), max_cycles=2)
