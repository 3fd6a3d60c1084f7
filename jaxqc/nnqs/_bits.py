"""Configurations as packed words: a key holds the occupations of alpha and beta orbitals.

Up to 32 orbitals a key is one uint64, alpha << norb | beta. Beyond, it is ceil(norb / 64) words of alpha and as many
of beta, most significant word first. Keys are ordered as numbers; unused rows of an array are the sentinel, all ones,
which comes last.
"""

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import on_gpu

SENTINEL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Configurations(NamedTuple):
    """A set of configurations of fixed size with padding, a JAX pytree.

    Attributes:
        keys: (capacity, words) uint64; the first `count` rows are configurations, rising where the set is sorted; the
            others are the sentinel.
        count: () int32, how many rows are configurations.
    """

    keys: jax.Array
    count: jax.Array


def word_count(norb: int) -> int:
    """Number of uint64 words in a key of `norb` orbitals."""
    return 1 if norb <= 32 else 2 * ((norb + 63) // 64)


def _places(norb):
    """Word and bit of each orbital of both spins, (2, norb) each."""
    orbital = np.arange(norb)
    if norb <= 32:
        return np.zeros((2, norb), int), np.stack([orbital + norb, orbital])
    half = word_count(norb) // 2
    alpha = half - 1 - orbital // 64
    return np.stack([alpha, alpha + half]), np.stack([orbital % 64, orbital % 64])


def unpack(keys, norb: int) -> jax.Array:
    """Occupations of keys.

    Args:
        keys: (..., words) uint64.
        norb: number of orbitals.

    Returns:
        (..., 2, norb) bool: alpha, then beta.
    """
    word, bit = _places(norb)
    words = jnp.asarray(keys)[..., word]
    return (words >> jnp.broadcast_to(jnp.asarray(bit, jnp.uint64), words.shape)) & jnp.uint64(1) != 0


def pack(occupations) -> jax.Array:
    """Keys of occupations.

    Args:
        occupations: (..., 2, norb) bool or 0 and 1: alpha, then beta.

    Returns:
        (..., words) uint64.
    """
    return _pack(jnp.asarray(occupations))


@jax.jit
def _pack(occupations):
    norb = occupations.shape[-1]
    word, bit = _places(norb)
    word, bit = (jnp.broadcast_to(jnp.asarray(x, jnp.uint64), occupations.shape) for x in (word, bit))
    bits = occupations.astype(bool).astype(jnp.uint64) << bit
    words = [jnp.sum(jnp.where(word == w, bits, jnp.uint64(0)), axis=(-2, -1)) for w in range(word_count(norb))]
    return jnp.stack(words, axis=-1)


def aufbau(norb: int, nalpha: int, nbeta: int) -> jax.Array:
    """The key with the lowest orbitals occupied, (1, words)."""
    orbital = np.arange(norb)
    return pack(np.stack([orbital < nalpha, orbital < nbeta])[None])


def all_configurations(norb: int, nalpha: int, nbeta: int) -> Configurations:
    """All configurations of `nalpha` and `nbeta` electrons in `norb` orbitals, sorted.

    Raises:
        ValueError: there are more than 2^31 - 1 of them.
    """
    total = comb(norb, nalpha) * comb(norb, nbeta)
    if total >= 2**31:
        raise ValueError(
            f"The full space of {nalpha} alpha and {nbeta} beta electrons in {norb} orbitals has {total} "
            "configurations, more than the 2^31 - 1 that a set can have; use jaxqc.nnqs.selected_ci instead."
        )

    def strings(count):
        occupied = np.array(list(combinations(range(norb), count)), int).reshape(comb(norb, count), count)
        table = np.zeros((len(occupied), norb), bool)
        np.put_along_axis(table, occupied, True, axis=1)
        return table

    alpha, beta = strings(nalpha), strings(nbeta)
    occupations = np.zeros((len(alpha), len(beta), 2, norb), bool)
    occupations[:, :, 0] = alpha[:, None]
    occupations[:, :, 1] = beta[None]
    keys = np.asarray(pack(occupations.reshape(-1, 2, norb)))
    order = np.lexsort(keys.T[::-1])
    return Configurations(jnp.asarray(keys[order]), jnp.int32(total))


def batches(configurations: Configurations, size: int) -> Iterator[tuple[int, Configurations]]:
    """The first rows of a set in batches: the position of the first row, and a set of at most `size` rows."""
    count = int(configurations.count)
    for start in range(0, count, size):
        keys = configurations.keys[start : start + size]
        if keys.shape[0] < size < count:  # the last one in the shape of the others
            keys = padded_keys(keys, size)
        yield start, Configurations(keys, jnp.int32(min(size, count - start)))


def padded_keys(keys, size: int) -> jax.Array:
    """Keys with sentinels after them, (size, words)."""
    return jnp.pad(keys, ((0, size - keys.shape[0]), (0, 0)), constant_values=SENTINEL)


def less(a, b) -> jax.Array:
    """Whether keys `a` come before keys `b`, (..., words) each."""
    result = jnp.zeros(jnp.broadcast_shapes(a.shape, b.shape)[:-1], bool)
    for w in range(a.shape[-1] - 1, -1, -1):
        result = (a[..., w] < b[..., w]) | ((a[..., w] == b[..., w]) & result)
    return result


def search(keys, queries) -> jax.Array:
    """First position of sorted `keys` that is not before each query, as `searchsorted(side="left")`.

    Args:
        keys: (n, words), sorted, sentinels last.
        queries: (m, words).

    Returns:
        (m,) int32, from 0 to n.
    """
    size = keys.shape[0]
    if keys.shape[-1] == 1:
        return sorted_positions(keys[:, 0], queries[:, 0])
    low = jnp.zeros(queries.shape[0], jnp.int32)
    high = jnp.full(queries.shape[0], size, jnp.int32)

    def step(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        before = less(keys[jnp.minimum(middle, size - 1)], queries) & (low < high)
        return jnp.where(before, middle + 1, low), jnp.where(before, high, middle)

    steps = max(size, 1).bit_length()
    return jax.lax.fori_loop(0, steps, step, (low, high), unroll=on_gpu())[0] if size else low


def sorted_positions(numbers, queries) -> jax.Array:
    """`jax.numpy.searchsorted` of numbers, int32, without a loop on GPUs, which would copy its variables each time."""
    return jnp.searchsorted(numbers, queries, method="scan_unrolled" if on_gpu() else "scan").astype(jnp.int32)
