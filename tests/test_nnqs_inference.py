"""The fused kernel of the transformer's probabilities, run thread by thread on the CPU, against plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_emulation import Emulator, available

from jaxqc.gpu import build, nvrtc
from jaxqc.nnqs import _cuda_network, _network
from jaxqc.nnqs._cuda_network import network_unit, random_weights
from jaxqc.nnqs._network import Shape, log_probability, plain

needs_compiler = pytest.mark.skipif(not available(), reason="needs g++")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def on_gpu(emulator, monkeypatch):
    """Switches to the emulated kernel."""
    monkeypatch.setattr(_cuda_network, "call", emulator.call)
    monkeypatch.setattr(_cuda_network, "architecture", lambda: 90)
    monkeypatch.setattr(_cuda_network, "_THREADS", {False: 64, True: 64})
    monkeypatch.setattr(_network, "on_gpu", lambda: True)
    jax.clear_caches()
    yield
    jax.clear_caches()


def _some(norb, nalpha, nbeta, number, seed=0):
    random = np.random.default_rng(seed)
    orbitals = random.permuted(np.tile(np.arange(norb), (number, 2, 1)), axis=-1)
    return jnp.asarray(orbitals < np.array([[nalpha], [nbeta]]))


def _exact(weights, occupations, shape):
    return plain(jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), weights), occupations, shape)


@needs_compiler
@pytest.mark.parametrize(
    "norb, nalpha, nbeta, layers, number",
    [
        (7, 3, 4, 2, 9),
        (20, 5, 0, 1, 3),
        pytest.param(42, 24, 24, 4, 3, marks=pytest.mark.slow),
        pytest.param(64, 30, 34, 1, 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("inference, bound", [("float32", 3e-7), ("float16", 1e-3)])
def test_probabilities_are_those_of_plain_jax(norb, nalpha, nbeta, layers, number, inference, bound, on_gpu):
    weights = jax.tree.map(jnp.asarray, random_weights(norb, layers))
    occupations = _some(norb, nalpha, nbeta, number)
    shape = Shape(4, nalpha, nbeta, inference)
    found = np.asarray(log_probability(weights, occupations, shape))
    expected = _exact(weights, occupations, shape)
    np.testing.assert_allclose(found, expected, atol=bound * norb)
    assert np.max(np.abs(found - expected)) > 0
    plainly = np.asarray(plain(weights, occupations, shape))
    assert inference == "float16" or np.any(found != plainly)


def test_kernels_stay_within_their_resources(tmp_path, monkeypatch):
    try:
        nvrtc()
    except ImportError as error:
        pytest.skip(f"needs NVRTC: {error}")
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(tmp_path))
    units = [network_unit(42, 4, split) for split in (False, True)]
    for unit, built in zip(units, build(units, 90), strict=True):
        used = built.resources()["nnqs_log_probability"]
        assert used["registers"] <= 256 and used["spill"] == 0, (unit.name, used)
