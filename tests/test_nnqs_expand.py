"""Candidates of a set, links of the energy `connected` and the choice by amplitude, against plain loops."""

import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import over_several_words, random_hamiltonian

from jaxqc.nnqs import Configurations, all_configurations, aufbau, connected_links, couple, diagonal
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._coupling import round_capacity
from jaxqc.nnqs._energy import local_products
from jaxqc.nnqs._solve_expand import by_amplitude, candidates


def case(words):
    """A Hamiltonian, sorted keys of a set, and the set with unused rows."""
    if words == 1:
        ham = random_hamiltonian(7, 3, 3)
        keys = np.asarray(all_configurations(7, 3, 3).keys)[::29]
    else:
        _, ham, lift = over_several_words(34)
        keys = lift(all_configurations(5, 2, 3).keys[::3])[0]
        keys = keys[np.lexsort(keys.T[::-1])]
    padded = np.concatenate([keys, np.full((5, words), SENTINEL)])
    return ham, keys, Configurations(jnp.asarray(padded), jnp.int32(len(keys)))


@pytest.mark.parametrize("words", [1, 2])
def test_links_are_all_couplings_whatever_the_budget(words):
    ham, keys, configurations = case(words)
    coupled = couple(ham, configurations)
    number = int(coupled.count)
    found, elements, sources = (np.asarray(x)[:number] for x in coupled[:3])
    expected = np.unique(np.concatenate([keys, found]), axis=0)
    place = {tuple(key): k for k, key in enumerate(expected.tolist())}
    random, images = np.random.default_rng(0), []
    log_amplitude = random.normal(size=1 << 14)
    for memory in (1 << 14, 1 << 30):  # batches of 16 sources, and one
        union, links = connected_links(ham, configurations, 1e-10, memory)
        n = union.shape[0]
        np.testing.assert_array_equal(union[: len(expected)], expected)
        assert np.all(np.asarray(union)[len(expected) :] == SENTINEL)
        np.testing.assert_array_equal(np.asarray(union)[np.asarray(links.members)], keys)
        assert np.all(np.diff(np.asarray(links.rows)) >= 0)
        image = local_products(jnp.asarray(log_amplitude[:n]), jnp.zeros(n), links)[1]
        images.append(np.asarray(image)[0])
    np.testing.assert_array_equal(*images)
    scale = np.max(log_amplitude[[place[tuple(key)] for key in keys.tolist()]])
    psi, exact = np.exp(log_amplitude - scale), np.zeros(n)
    own = [place[tuple(key)] for key in keys.tolist()]
    exact[own] = np.asarray(diagonal(ham, jnp.asarray(keys))) * psi[own]
    for target, element, source in zip(found.tolist(), elements, sources, strict=True):
        exact[own[source]] += element * psi[place[tuple(target)]]
    np.testing.assert_allclose(images[0], exact, atol=1e-11)


@pytest.mark.parametrize("memory", [1 << 14, 1 << 30])
def test_results_do_not_depend_on_sets_before(memory):
    space, epsilon, number = np.asarray(all_configurations(7, 3, 3).keys), 4.0, 30
    ham = random_hamiltonian(7, 3, 3)
    coupled = couple(ham, space, epsilon)
    sources, targets = (np.asarray(x)[: int(coupled.count)] for x in (coupled.sources, coupled.keys))
    order = np.argsort(np.bincount(sources, minlength=len(space)), kind="stable")
    few, many, close, spread = order[:number], order[-number:], np.arange(number), np.arange(number) * 40

    def image(ham, configurations):
        union, links = connected_links(ham, configurations, epsilon, memory)
        n = union.shape[0]
        return np.asarray(local_products(jnp.linspace(-1, 0, n), jnp.zeros(n), links)[1]), union

    for rows in (few, many, few, close, spread, close):  # more couplings and configurations than before, and fewer
        configurations = Configurations(jnp.asarray(space[np.sort(rows)]), jnp.int32(number))
        expected = np.unique(np.concatenate([space[rows], targets[np.isin(sources, rows)]]), axis=0)
        found = candidates(ham, configurations, epsilon, memory)
        assert int(found.count) == len(expected) and found.keys.shape[0] == round_capacity(len(expected))
        np.testing.assert_array_equal(found.keys[: len(expected)], expected)
        assert np.all(np.asarray(found.keys)[len(expected) :] == SENTINEL)
        (own, union), (fresh, _) = image(ham, configurations), image(random_hamiltonian(7, 3, 3), configurations)
        np.testing.assert_array_equal(union, found.keys)
        np.testing.assert_array_equal(own, fresh)


@pytest.mark.parametrize("words", [1, 2])
def test_the_largest_amplitudes_are_chosen(words):
    ham, _, configurations = case(words)
    union = candidates(ham, configurations, 1e-10, 1 << 14)
    keys = np.asarray(union.keys)[: int(union.count)]
    # Many that are equal to six decimals.
    amplitude = np.round(np.random.default_rng(1).normal(size=union.keys.shape[0]), 1)
    lowest = np.all(keys == np.asarray(aufbau(ham.norb, ham.nalpha, ham.nbeta)), axis=1)
    score = np.where(lowest, np.inf, amplitude[: len(keys)])
    for size in (3, 20, 10**6):
        found = by_amplitude(ham, union, jnp.asarray(amplitude), size)
        best = keys[np.sort(np.argsort(-score, kind="stable")[:size])]
        assert int(found.count) == len(best)
        np.testing.assert_array_equal(found.keys[: len(best)], best)
        assert np.all(np.asarray(found.keys)[len(best) :] == SENTINEL)
