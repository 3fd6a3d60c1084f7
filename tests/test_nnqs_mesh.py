"""Whole runs of neural selected CI over virtual devices and over processes: the same bits whatever their number."""

import numpy as np
import pytest
from nnqs_cases import molecule
from worker_processes import free_port, result, start

from jaxqc.nnqs import all_configurations, lowest, pt2, selected_ci
from jaxqc.nnqs._perturbation import ExactSum, exact_sum

pytest.importorskip("flax")
pytest.importorskip("optax")

WORKER = "nnqs_solve_worker.py"


@pytest.fixture(scope="module")
def over_devices():
    return result(start(WORKER, "devices", devices=8))


@pytest.mark.slow
def test_numbers_of_devices_and_budgets_do_not_change_a_bit(over_devices):
    for mode, found in over_devices.items():
        one_device = found.pop("one device")
        for name, outcome in found.items():
            assert outcome == found["1"], (mode, name)
        # Sums over the set are cut otherwise on one device; what the network does not decide is the same.
        assert one_device["size"] == found["1"]["size"]
        for a, b in zip(one_device["numbers"], found["1"]["numbers"], strict=True):
            assert float.fromhex(a) == pytest.approx(float.fromhex(b), rel=1e-5)


@pytest.mark.slow
def test_processes_compute_the_bits_of_devices(over_devices):
    port = free_port()
    processes = [start(WORKER, "processes", port, 2, index, devices=1) for index in range(2)]
    for found in map(result, processes):
        for mode, outcome in found.items():
            assert outcome == over_devices[mode]["2"]


def test_shares_of_a_network_of_one_layer():
    """Compilers must not see on how many devices they are: where each has one share, and where it has many."""
    found = result(start("nnqs_share_worker.py", devices=8))
    plain = found.pop("plain")
    for outcome in found.values():
        assert outcome == found["1"]
    for name, limit in (("outputs", 1e-5), ("gradient", 1e-4)):
        one, other = ([float.fromhex(x) for x in numbers[name]] for numbers in (found["1"], plain))
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


def test_budgets_do_not_change_a_bit_of_perturbation_theory():
    ham = molecule("H 0 0 0; H 0 0 1; H 0 1 2; H 1 0 3; H 2 2 0; H 3 1 1")[2]
    space = all_configurations(6, 3, 3)
    chosen = space._replace(keys=space.keys[:60], count=space.count * 0 + 60)
    state = lowest(ham, chosen)
    values = {
        pt2(ham, chosen, state.vectors[0], float(state.energies[0]), memory=m) for m in (1 << 14, 1 << 17, 1 << 30)
    }
    assert len(values) == 1
    runs = [selected_ci(ham, 200, memory=m) for m in (1 << 14, 1 << 30)]
    assert runs[0].history == runs[1].history
    np.testing.assert_array_equal(runs[0].configurations.keys, runs[1].configurations.keys)


def test_exact_sums():
    terms = np.random.default_rng(0).normal(size=1000) * 1e-3
    parts = ExactSum()
    for part in np.split(terms, 10):
        parts.add(exact_sum(part))
    whole = ExactSum()
    whole.add(exact_sum(terms[::-1]))
    assert float(parts) == float(whole) == pytest.approx(np.sum(terms), abs=1e-15)
    large = ExactSum()
    large.add(exact_sum(np.array([1.0, 1e6])))
    assert float(large) == 1e6 + 1
