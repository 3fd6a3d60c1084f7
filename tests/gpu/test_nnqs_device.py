"""Selected CI on an NVIDIA GPU against the compiled CPU library and against itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import over_several_words, random_hamiltonian

from jaxqc.nnqs import (
    Configurations,
    Hamiltonian,
    all_configurations,
    connected_links,
    couple,
    deduplicate,
    density_matrices,
    lowest,
    make_mesh,
    pt2,
    selected_ci,
    solve,
)
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._cuda_network import random_weights
from jaxqc.nnqs._energy import local_products
from jaxqc.nnqs._network import Shape, log_probability, plain
from jaxqc.nnqs._solve_expand import by_amplitude, candidates
from jaxqc.nnqs._sparse import product, sparse_from_pairs, sparse_in_batches
from jaxqc.nnqs._tables import tables_of

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


def on_cpu(function):
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(np.asarray, function())


def cases(words):
    if words == 1:
        ham = random_hamiltonian(8, 4, 3)
        keys = np.asarray(all_configurations(8, 4, 3).keys)[::7]
    else:
        small, ham, lift = over_several_words({2: 34, 4: 66, 6: 130}[words])
        keys = lift(all_configurations(5, 2, 3).keys[::3])[0]
    keys = keys[np.lexsort(keys.T[::-1])]
    integrals = np.asarray(ham.one), np.asarray(ham.two), ham.nalpha, ham.nbeta, float(ham.constant)
    padded = np.concatenate([keys, np.full((3, keys.shape[1]), SENTINEL)])

    def make():
        return Hamiltonian.from_integrals(*integrals), Configurations(jnp.asarray(padded), jnp.int32(len(keys)))

    return make


@pytest.mark.parametrize("words", [1, 2, 4, 6])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_coupled_configurations_are_those_of_the_cpu(words, epsilon):
    make = cases(words)
    expected = on_cpu(lambda: couple(*make(), epsilon=epsilon, capacity=10))
    found = couple(*make(), epsilon=epsilon, capacity=10)
    count = int(found.count)
    assert count == expected.count > 0
    for a, b in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(a[:count], b[:count])
    assert np.all(np.asarray(found.keys[count:]) == SENTINEL)


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("memory", [1 << 14, 1 << 30])  # batches of 16 sources, and one
def test_links_and_choices_are_those_of_the_cpu(words, memory):
    make = cases(words)

    def found():
        ham, configurations = make()
        runs = []
        for _ in range(2):  # the second time sizes of arrays are known
            union, links = connected_links(ham, configurations, 1e-10, memory)
            log_amplitude = -0.1 * jnp.arange(union.shape[0], dtype=jnp.float64) % 1.7
            chosen = by_amplitude(ham, candidates(ham, configurations, 1e-10, memory), log_amplitude, 25)
            runs.append((union, *chosen, links.members, local_products(log_amplitude, log_amplitude, links)))
        return runs

    expected = on_cpu(found)
    for run in found():
        for a, b in zip(run[:4], expected[0][:4], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(run[4], expected[0][4], atol=1e-12)


@pytest.mark.parametrize("words", [1, 2])
def test_states_and_perturbation_theory_are_those_of_the_cpu(words):
    make = cases(words)

    def numbers(memory=1 << 30):
        ham, configurations = make()
        state = lowest(ham, configurations, tolerance=1e-11)
        energy = float(state.energies[0])
        # Far below, so that no denominator is small and the sum is one in whole numbers.
        correction = pt2(ham, configurations, state.vectors[0], energy - 200, memory=memory)
        one, two = density_matrices(ham, configurations, state.vectors[0])
        return energy, correction, one, two

    expected, found = on_cpu(numbers), numbers()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-9)
    assert numbers()[1] == found[1]  # in the same bits
    assert numbers(1 << 14)[1] == found[1]


@pytest.mark.parametrize("words", [1, 2, 4])
def test_elements_from_pairs_are_those_that_are_looked_up(words):
    ham, (keys, count) = cases(words)()
    size = int(count)
    x = jnp.asarray(np.random.default_rng(0).normal(size=keys.shape[0]))
    pairs, looked_up = (make(ham, keys, count, tables_of(ham), 0.0) for make in (sparse_from_pairs, sparse_in_batches))
    np.testing.assert_array_equal(pairs.row_start, looked_up.row_start)
    np.testing.assert_allclose(product(pairs, x)[:size], product(looked_up, x)[:size], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("words", [1, 2])
def test_many_keys_are_deduplicated(words):
    keys = np.random.default_rng(0).integers(0, 1 << 10, (1 << 18, words)).astype(np.uint64)
    found = deduplicate(jnp.asarray(keys))
    expected = np.unique(keys, axis=0)
    np.testing.assert_array_equal(found.keys[: int(found.count)], expected)


@pytest.mark.parametrize("words", [1, 2])
def test_keys_are_deduplicated_over_all_gpus(words):
    if jax.device_count() < 2:
        pytest.skip("needs two GPUs")
    random = np.random.default_rng(0)
    keys = random.integers(0, 1 << 10, (1 << 18, words)).astype(np.uint64) ** 2  # more small ones than large ones
    found = deduplicate(jnp.asarray(keys), make_mesh(), inverse=True)
    np.testing.assert_array_equal(np.asarray(found.keys)[: int(found.count)], np.unique(keys, axis=0))
    np.testing.assert_array_equal(np.asarray(found.keys)[np.asarray(found.inverse)], keys)


def test_selected_ci_is_that_of_the_cpu():
    integrals = random_hamiltonian(8, 4, 4, scale=0.05)
    arrays = np.asarray(integrals.one), np.asarray(integrals.two)

    def numbers():
        found = selected_ci(Hamiltonian.from_integrals(*arrays, 4, 4), 900)
        return np.array([found.e_ci, found.e_pt2, int(found.configurations.count)])

    np.testing.assert_allclose(numbers(), on_cpu(numbers), rtol=1e-8)


@pytest.mark.parametrize("norb, layers", [(1, 1), (28, 4), (64, 2)])
@pytest.mark.parametrize("inference, bound", [("float32", 3e-6), ("float16", 2e-3)])
def test_probabilities_of_the_fused_kernel_are_those_of_plain_jax(norb, layers, inference, bound):
    weights = random_weights(norb, layers)
    shape = Shape(norb, norb // 2, (norb + 1) // 2, 32, layers, 4, "float32", inference)
    orbitals = np.random.default_rng(0).permuted(np.tile(np.arange(norb), (500, 2, 1)), axis=-1)
    occupations = orbitals < np.array([[shape.nalpha], [shape.nbeta]])
    assert shape.has_kernel()
    found = np.asarray(jax.jit(log_probability, static_argnums=2)(weights, occupations, shape))
    double = jax.tree.map(lambda x: x.astype(np.float64), weights)
    exact = on_cpu(lambda: jax.jit(plain, static_argnums=2)(double, occupations, shape))
    np.testing.assert_allclose(found, exact, atol=bound * norb)


def test_amplitudes_come_from_the_kernel_in_single_precision():
    pytest.importorskip("flax")
    from jaxqc.nnqs import Transformer

    module = Transformer(12, 5, 6)
    assert module._shape.has_kernel()
    orbitals = np.random.default_rng(0).permuted(np.tile(np.arange(12), (500, 2, 1)), axis=-1)
    occupations = orbitals < np.array([[5], [6]])
    parameters = jax.jit(module.init)(jax.random.key(0), occupations)
    found = np.asarray(jax.jit(module.apply)(parameters, occupations))
    double = jax.tree.map(lambda x: np.asarray(x, np.float64), parameters)
    exact = on_cpu(
        lambda: np.asarray(jax.jit(module.clone(dtype=jnp.float64, inference="plain").apply)(double, occupations))
    )
    np.testing.assert_allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("mode", ["projected", "connected"])
def test_runs_repeat_to_the_bit(mode):
    pytest.importorskip("flax")
    pytest.importorskip("optax")
    ham = random_hamiltonian(6, 3, 3, scale=0.05)
    select = "amplitude" if mode == "connected" else "importance"
    mesh = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1])
    for over in (None, mesh):
        runs = [solve(ham, steps=30, target_size=150, refresh=10, energy=mode, select=select, mesh=over) for _ in "ab"]
        assert runs[0].energy == runs[1].energy and runs[0].e_pt2 == runs[1].e_pt2
        for a, b in zip(*(jax.tree.leaves(r.parameters) for r in runs), strict=True):
            np.testing.assert_array_equal(a, b)
