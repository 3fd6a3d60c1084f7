"""Coupled configurations from the compiled library, against PySCF for all determinants and against plain JAX."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import fci_matrix, molecule, over_several_words, random_hamiltonian

import jaxqc
from jaxqc.nnqs import Configurations, all_configurations, aufbau, couple, deduplicate
from jaxqc.nnqs._bits import SENTINEL, search
from jaxqc.nnqs._coupling import couple_plain, round_capacity


def as_matrix(coupled, keys):
    """Elements at their places among sorted keys, each of which may come once only."""
    n, count = len(keys), int(coupled.count)
    column = np.asarray(search(jnp.asarray(keys), coupled.keys[:count]))
    np.testing.assert_array_equal(np.asarray(keys)[column], coupled.keys[:count])
    row = np.asarray(coupled.sources[:count])
    assert len(set(zip(row.tolist(), column.tolist(), strict=True))) == count
    result = np.zeros((n, n))
    result[row, column] = coupled.elements[:count]
    return result


@pytest.mark.parametrize(("norb", "nalpha", "nbeta"), [(5, 3, 2), (4, 0, 2), (1, 1, 0), (4, 4, 1)])
def test_all_determinants_of_random_integrals(norb, nalpha, nbeta):
    ham = random_hamiltonian(norb, nalpha, nbeta, seed=norb)
    keys = all_configurations(norb, nalpha, nbeta)
    reference = fci_matrix(ham)
    np.testing.assert_allclose(
        as_matrix(couple(ham, keys, epsilon=0.0), keys.keys), reference - np.diag(np.diag(reference)), atol=1e-12
    )
    plain = couple_plain(ham, *keys, jnp.zeros(len(keys.keys)), capacity=len(keys.keys) ** 2)
    np.testing.assert_allclose(as_matrix(plain, keys.keys), reference - np.diag(np.diag(reference)), atol=1e-12)


@pytest.mark.parametrize("epsilon", [1e-10, 0.03])
def test_all_determinants_of_water(epsilon):
    ham = molecule("O 0 0 0; H .2774 .8929 .2544; H .6068 -.2383 -.7169")[2]
    keys = all_configurations(7, 5, 5)
    reference = fci_matrix(ham)
    np.fill_diagonal(reference, 0.0)
    np.testing.assert_allclose(
        as_matrix(couple(ham, keys, epsilon), keys.keys),
        np.where(np.abs(reference) > epsilon, reference, 0.0),
        atol=1e-12,
    )


@pytest.mark.parametrize("norb", [34, 66])
def test_several_words(norb):
    small, larger, lift = over_several_words(norb)
    keys = all_configurations(5, 2, 3).keys
    lifted, phase = lift(keys)
    found = couple(larger, jnp.asarray(lifted), epsilon=1e-12)
    reference = fci_matrix(small)
    np.fill_diagonal(reference, 0.0)
    reference[np.abs(reference) <= 1e-12] = 0.0
    assert np.all(np.diff(found.sources[: int(found.count)]) >= 0)
    np.testing.assert_allclose(as_matrix(found, lifted) * phase[:, None] * phase, reference, atol=1e-12)


def test_capacity_is_never_exceeded_silently():
    ham = random_hamiltonian(6, 3, 3)
    keys = all_configurations(6, 3, 3)
    whole = couple(ham, keys)
    again = couple(ham, keys, capacity=3)
    count = int(whole.count)
    for a, b in zip(whole[:3], again[:3], strict=True):
        np.testing.assert_array_equal(a[:count], b[:count])
    assert np.all(np.asarray(again.keys[count:]) == SENTINEL) and not np.any(again.elements[count:])
    assert [round_capacity(n) for n in (0, 16, 17, 100, 2**31 - 1)] == [16, 16, 20, 112, 2**31 - 1]
    with pytest.raises(MemoryError, match="larger epsilon"):
        round_capacity(2**31)


def test_only_counted_sources():
    ham = random_hamiltonian(5, 2, 2)
    keys = all_configurations(5, 2, 2).keys
    padded = jnp.concatenate([keys[:7], jnp.full((3, 1), SENTINEL)])
    unique = deduplicate(padded, inverse=True)
    for given in (padded, unique, Configurations(padded, jnp.int32(7)), Configurations(keys, jnp.int32(7))):
        found = couple(ham, given, epsilon=0)
        assert int(found.count) == int(couple(ham, keys[:7], epsilon=0.0).count)
        assert int(found.sources[: int(found.count)].max()) == 6


def test_number_of_threads(monkeypatch):
    ham = random_hamiltonian(6, 3, 3)
    keys = all_configurations(6, 3, 3)
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("JAXQC_NUM_THREADS", threads)
        results.append(couple(ham, keys))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_to_couple():
    ham = random_hamiltonian(5, 2, 2)
    assert int(couple(ham, jnp.zeros((0, 1), jnp.uint64)).count) == 0
    full = random_hamiltonian(3, 3, 3)
    assert int(couple(full, aufbau(3, 3, 3)).count) == 0


def test_arguments_that_are_wrong():
    ham = random_hamiltonian(5, 2, 2)
    good: Any = aufbau(5, 2, 2)
    cases: Any = (
        ((3, good), {}, "jaxqc.nnqs.Hamiltonian"),
        ((ham, good.astype(jnp.int64)), {}, "must be uint64"),
        ((ham, good[0]), {}, "must be \\(n, 1\\)"),
        ((ham, aufbau(5, 3, 2)), {}, "1 of the 1 configurations"),
        ((ham, Configurations(good, jnp.int32(2))), {}, "is 2, but there are 1 keys"),
        ((ham, good), {"epsilon": -1.0}, "not negative"),
        ((ham, good), {"epsilon": float("nan")}, "not negative"),
    )
    for arguments, options, message in cases:
        with pytest.raises((TypeError, ValueError), match=message):
            couple(*arguments, **options)
    assert jaxqc.nnqs.couple is couple
