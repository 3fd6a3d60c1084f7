"""Sorted unique configurations, against NumPy, on one device and over virtual ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import random_hamiltonian

from jaxqc.nnqs import all_configurations, couple, deduplicate
from jaxqc.nnqs._bits import SENTINEL

WORKER = Path(__file__).with_name("nnqs_mesh_worker.py")


@pytest.mark.parametrize("words", [1, 2, 4])
def test_one_device(words):
    rng = np.random.default_rng(words)
    keys = rng.integers(0, 9, (2000, words)).astype(np.uint64) << np.uint64(60)
    keys[rng.random(2000) < 0.1] = SENTINEL
    used = np.any(keys != SENTINEL, axis=1)
    reference, inverse = np.unique(keys[used], axis=0, return_inverse=True)
    plain, found = deduplicate(jnp.asarray(keys)), deduplicate(jnp.asarray(keys), inverse=True)
    for out in (plain, found):
        assert int(out.count) == len(reference)
        np.testing.assert_array_equal(out.keys[: len(reference)], reference)
        assert np.all(np.asarray(out.keys[len(reference) :]) == SENTINEL)
    np.testing.assert_array_equal(found.inverse[used], inverse.ravel())
    assert np.all(np.asarray(found.inverse)[~used] == len(reference))


def test_coupled_configurations():
    ham = random_hamiltonian(6, 3, 3)
    whole = all_configurations(6, 3, 3)
    found = deduplicate(couple(ham, whole).keys)
    np.testing.assert_array_equal(found.keys[: int(found.count)], whole.keys)


def test_nothing():
    empty = jnp.zeros((0, 2), jnp.uint64)
    assert int(deduplicate(empty).count) == 0
    assert deduplicate(empty, inverse=True).inverse.shape == (0,)
    assert int(deduplicate(jnp.full((4, 1), SENTINEL)).count) == 0


def test_arguments_that_are_wrong():
    keys: Any = jnp.zeros((3, 1), jnp.int64)
    with pytest.raises(TypeError, match="uint64 array of the shape"):
        deduplicate(keys)
    mesh: Any = "mesh"
    with pytest.raises(ValueError, match="mesh of one axis"):
        deduplicate(keys.astype(jnp.uint64), mesh)


@pytest.mark.parametrize("exchange", ["padded", "ragged"])
def test_over_devices(exchange):
    """The same bits on 1, 2, 4 and 8 devices, in shares that differ by 5 % at most."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8",
    }
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(WORKER.parent.parent)])
    command = [sys.executable, "-W", "error", str(WORKER), exchange]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr
    for name, found in json.loads(lines[-1].removeprefix("RESULT ")).items():
        if found["count"] > 1000:
            assert max(found["balance"]) <= 1.05, name
