"""The fused kernel of the transformer's probabilities, run thread by thread on the CPU, against plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxqc.gpu import build
from jaxqc.nnqs import _cuda_network, _network, all_configurations, evaluate, unpack
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._cuda_network import network_unit, random_weights
from jaxqc.nnqs._network import Shape, log_probability, plain
from jaxqc.nnqs._train import Sector


@pytest.fixture
def on_gpu(emulator, monkeypatch):
    """Switches to the emulated kernel."""
    monkeypatch.setattr(_cuda_network, "call", emulator.call)
    monkeypatch.setattr(_cuda_network, "architecture", lambda: 90)
    monkeypatch.setattr(_cuda_network, "_THREADS", {False: 64, True: 64})
    monkeypatch.setattr(_network, "on_gpu", lambda: True)
    for forget in (jax.clear_caches, _cuda_network.usable.cache_clear):
        forget()
    yield
    for forget in (jax.clear_caches, _cuda_network.usable.cache_clear):
        forget()


def _some(norb, nalpha, nbeta, number, seed=0):
    random = np.random.default_rng(seed)
    orbitals = random.permuted(np.tile(np.arange(norb), (number, 2, 1)), axis=-1)
    return jnp.asarray(orbitals < np.array([[nalpha], [nbeta]]))


def _shape(norb, nalpha=1, nbeta=1, layers=1, inference="float32", width=32, heads=4, dtype="float32"):
    return Shape(norb, nalpha, nbeta, width, layers, heads, dtype, inference)


def _exact(weights, occupations, shape):
    return plain(jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), weights), occupations, shape)


@pytest.mark.parametrize(
    "norb, nalpha, nbeta, layers, number",
    [
        (20, 9, 4, 2, 2),
        pytest.param(7, 3, 4, 2, 9, marks=pytest.mark.slow),
        pytest.param(20, 5, 0, 1, 3, marks=pytest.mark.slow),
        pytest.param(42, 24, 24, 4, 3, marks=pytest.mark.slow),
        pytest.param(64, 30, 34, 1, 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("inference, bound", [("float32", 1e-6), ("float16", 1e-3)])
def test_probabilities_are_those_of_plain_jax(norb, nalpha, nbeta, layers, number, inference, bound, on_gpu):
    weights = jax.tree.map(jnp.asarray, random_weights(norb, layers))
    occupations = _some(norb, nalpha, nbeta, number)
    shape = _shape(norb, nalpha, nbeta, layers, inference)
    found = np.asarray(jax.jit(log_probability, static_argnums=2)(weights, occupations, shape))
    expected = _exact(weights, occupations, shape)
    np.testing.assert_allclose(found, expected, atol=bound * norb)
    assert np.any(found != plain(weights, occupations, shape))  # that it was the kernel


def test_amplitudes_of_a_network_come_from_the_kernel_and_derivatives_from_plain_jax(on_gpu):
    pytest.importorskip("flax")
    from jaxqc.nnqs._ansatz import Transformer

    occupations = _some(5, 2, 2, 2)
    first = Transformer(5, 2, 2, layers=1, phase_layers=(4,))
    modules = [first, first.clone(inference="plain")]
    parameters = jax.jit(modules[0].init)(jax.random.key(0), occupations)
    found, expected = (np.asarray(jax.jit(m.apply)(parameters, occupations)) for m in modules)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.any(found[0] != expected[0])
    slopes = [jax.jit(jax.grad(lambda p, m=m: jnp.sum(m.apply(p, occupations)[0])))(parameters) for m in modules]
    jax.tree.map(np.testing.assert_array_equal, *slopes)
    one = jax.jit(jax.vmap(lambda o: modules[0].apply(parameters, o[None])))(occupations)
    np.testing.assert_array_equal(one[0][:, 0], found[0])  # whatever else is in the batch


def test_other_sizes_and_types_have_no_kernel(on_gpu):
    def fits(*sizes, **options):
        return _shape(*sizes, **options).has_kernel()

    assert fits(64, layers=4) and fits(1) and fits(42, layers=8, inference="float16") and fits(42, dtype="bfloat16")
    assert not (fits(65) or fits(42, layers=5) or fits(42, heads=8) or fits(42, width=64) or fits(42, dtype="float64"))
    assert not fits(42, inference="plain")


def test_a_kernel_that_fails_is_not_used(on_gpu, monkeypatch):
    def refused(*_, **__):
        raise RuntimeError("the kernel failed its test")

    monkeypatch.setattr(_cuda_network, "call", refused)
    weights, occupations, shape = random_weights(5, 1), _some(5, 2, 2, 2), _shape(5, 2, 2)
    with pytest.warns(UserWarning, match="by plain JAX, which is slower: the kernel failed its test"):
        found = log_probability(weights, occupations, shape)
    np.testing.assert_array_equal(found, plain(weights, occupations, shape))
    assert not shape.has_kernel()  # warned once


def test_products_are_precise_on_matrix_units(monkeypatch):
    multiply, ends = jax.lax.dot_general, (((1,), (0,)), ((), ()))

    def unit(left, right, dimension_numbers, **options):
        """As GPUs make products in single precision."""
        left, right = (jax.lax.reduce_precision(x, 8, 10) for x in (left, right))
        return multiply(left, right, dimension_numbers, **options)

    random = np.random.default_rng(0)
    left, right, weight = (random.normal(size=s) for s in ((50, 300), (300, 40), (50, 40)))
    single = [jnp.asarray(x, jnp.float32) for x in (left, right, weight)]
    left, right, weight = (np.asarray(x, np.float64) for x in single)
    monkeypatch.setattr(_network, "on_gpu", lambda: True)
    monkeypatch.setattr(jax.lax, "dot_general", unit)
    assert np.max(np.abs(np.asarray(unit(single[0], single[1], ends)) - left @ right)) > 1e-3
    found, pullback = jax.vjp(lambda a, b: _network.precise_dot_general(a, b, ends), single[0], single[1])
    np.testing.assert_allclose(np.asarray(found), left @ right, atol=5e-5)
    for slope, exact in zip(pullback(single[2]), (weight @ right.T, left.T @ weight), strict=True):
        np.testing.assert_allclose(np.asarray(slope), exact, atol=1e-2)


def test_networks_may_ask_for_larger_batches():
    class Network:
        inference_batch = 8

        def apply(self, _, occupations):
            size = jnp.full(occupations.shape[0], float(occupations.shape[0]))
            return size, size

    keys = all_configurations(4, 2, 2).keys[:20]
    assert np.all(evaluate(Network().apply, None, keys, Sector(4, 2, 2), batch=4)[0] == 8)
    assert np.all(evaluate(lambda *a: Network().apply(*a), None, keys, Sector(4, 2, 2), batch=4)[0] == 4)


def test_batches_of_unused_rows_do_not_pass_the_network():
    keys = all_configurations(4, 2, 2).keys
    padded = jnp.concatenate([keys[:10], jnp.full((10, 1), SENTINEL)])
    seen = []

    def apply(_, occupations):
        jax.debug.callback(lambda x: seen.append(np.asarray(x).tolist()), occupations[:, 0, 0])
        size = jnp.where(occupations[:, 0], 2.0 ** np.arange(4), 0.0).sum(axis=1)
        return size, -size

    found = np.asarray(evaluate(apply, None, padded, Sector(4, 2, 2), batch=4))
    jax.effects_barrier()
    occupied = np.asarray(unpack(keys[:10], 4))[:, 0]
    np.testing.assert_array_equal(found[0, :10], occupied @ 2.0 ** np.arange(4))
    np.testing.assert_array_equal(found[1], np.where(np.arange(20) < 12, -found[0], 0))
    assert len(seen) == 3 and np.all(found[0, 12:] == -1e30)


def test_fresh_kernels_are_compared_with_plain_jax(on_gpu, monkeypatch):
    monkeypatch.setattr(_cuda_network, "_TESTED", 3)
    _cuda_network._check(_shape(5, 2, 3))
    monkeypatch.setattr(_cuda_network, "plain", lambda *a: plain(*a) + 1e-3)
    with pytest.raises(RuntimeError, match='5 orbitals and 1 layers failed its test.*inference="plain"'):
        _cuda_network._check(_shape(5, 2, 3))


def test_kernels_stay_within_their_resources(fresh_kernels):
    units = [network_unit(_shape(42, layers=4, inference=i)) for i in ("float16", "float32")]
    for unit, built in zip(units, build(units, 90), strict=True):
        used = built.resources()["nnqs_log_probability"]
        assert used["registers"] <= 256 and used["spill"] == 0, (unit.name, used)
