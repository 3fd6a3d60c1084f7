"""Growing a set of configurations: candidates in batches of sources, and the choice among them.

Couplings are generated again where they are needed, not stored: memory is that of one batch and of the unique set.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import SENTINEL, Configurations, aufbau, batches, padded_keys, search
from jaxqc.nnqs._coupling import couple_fixed, round_capacity, with_room
from jaxqc.nnqs._deduplicate import deduplicate
from jaxqc.nnqs._energy import Links
from jaxqc.nnqs._selected import padded_set
from jaxqc.nnqs._slater_condon import diagonal
from jaxqc.nnqs._tables import tables_of


def sources_in_batch(ham, memory: int) -> int:
    """How many configurations are coupled at once within a budget of memory in bytes, a power of two, at least 16."""
    bound = sum(
        n * (ham.norb - n) * (1 + (n - 1) * (ham.norb - n - 1) // 4 + other * (ham.norb - other) // 2)
        for n, other in ((ham.nalpha, ham.nbeta), (ham.nbeta, ham.nalpha))
    )
    return max(1 << (int(memory) // (64 * max(bound, 1))).bit_length() >> 1, 16)


def candidates(ham, configurations, epsilon: float, memory: int) -> Configurations:
    """A set and everything that is coupled to it, sorted and unique, padded to one of few sizes."""
    return _united(configurations, _couplings(ham, configurations, epsilon, memory))


def _united(union, couplings) -> Configurations:
    for _, coupled in couplings:
        keys, count = _merged(union.keys, coupled.keys)
        union = Configurations(_resized(keys, size=round_capacity(int(count))), count)
    return union


def _couplings(ham, configurations, epsilon, memory):
    """Couplings of a set in batches of sources: the position of the first one, and `Coupled`."""
    tables, epsilon, few = tables_of(ham), jnp.asarray(epsilon, jnp.float64), 64
    number, capacity = int(_couple(ham, tables, *configurations, epsilon, capacity=1, rows=few).count), 0
    total, size = int(configurations.count), sources_in_batch(ham, memory)
    # A single batch is the set as it is: GPUs wait for every number that is brought to them or back.
    for start, (keys, count) in batches(configurations, size) if total > size else [(0, configurations)]:
        wanted = max(capacity, math.ceil(1.1 * number * min(size, total - start) / max(min(few, total), 1)))
        call = partial(_couple, ham, tables, keys, count, epsilon)
        coupled = with_room(lambda size, call=call: call(capacity=size), wanted, lambda out: int(out.count))
        capacity = coupled.keys.shape[0]
        yield start, coupled


@partial(jax.jit, static_argnames=("capacity", "rows"))
def _couple(ham, tables, keys, count, epsilon, *, capacity, rows=None):
    keys = keys[:rows]
    count = jnp.minimum(count, jnp.int32(keys.shape[0]))
    return couple_fixed(ham, tables, keys, count, jnp.broadcast_to(epsilon, keys.shape[0]), capacity=capacity)


@jax.jit
def _merged(a, b):
    return deduplicate(jnp.concatenate([a, b]))


@partial(jax.jit, static_argnames="size")
def _resized(keys, *, size):
    return keys[:size] if size <= keys.shape[0] else padded_keys(keys, size)


def connected_links(ham, configurations, epsilon: float, memory: int) -> tuple[jax.Array, Links]:
    """Keys of a set and of all that is coupled to it, and the `Links` of the energy `connected`."""
    fresh = partial(_couplings, ham, configurations, epsilon, memory)
    # Within the budget they are made once.
    kept = list(fresh()) if int(configurations.count) <= sources_in_batch(ham, memory) else None
    union = _united(configurations, kept or fresh()).keys
    own, entries = _own(ham, union, *configurations)
    pieces = [entries]
    for start, coupled in kept or fresh():
        pieces.append(_located(union, own, coupled, np.int32(start)))
    return union, _links(own, pieces, n=union.shape[0])


@jax.jit
def _own(ham, union, keys, count):
    """Places of a set's configurations in `union`, its length for unused rows, and entries of the diagonal."""
    n = jnp.int32(union.shape[0])
    own = jnp.where(jnp.arange(keys.shape[0], dtype=jnp.int32) < count, search(union, keys), n)
    column = jnp.minimum(own, n - 1)
    return own, (own, column, jnp.where(own < n, diagonal(ham, union[column]), 0.0))


@jax.jit
def _located(union, own, coupled, start):
    """Entries of couplings: rows, columns and elements; unused ones have the row n and the element 0."""
    n = jnp.int32(union.shape[0])
    used = jnp.arange(coupled.keys.shape[0], dtype=jnp.int32) < coupled.count.astype(jnp.int32)
    row = jnp.where(used, own[jnp.minimum(start + coupled.sources, own.shape[0] - 1)], n)
    return row, jnp.minimum(search(union, coupled.keys), n - 1), coupled.elements


@partial(jax.jit, static_argnames="n")
def _links(own, pieces, *, n):
    rows, columns, values = (jnp.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    rows, order = jax.lax.sort((rows, jnp.arange(rows.shape[0], dtype=jnp.int32)), num_keys=1, is_stable=True)
    members = jnp.zeros(n, bool).at[own].set(True, mode="drop")
    # Unused entries come last, whatever the batches were: sums of rows do not depend on them.
    return Links(rows, columns[order], values[order], members)


def joined(configurations: Configurations, joining) -> Configurations:
    """A set and keys (n, words) that are not in it."""
    keys = np.concatenate([np.asarray(configurations.keys[: int(configurations.count)]), joining])
    return padded_set(keys[np.lexsort(keys.T[::-1])])


def by_amplitude(ham, union: Configurations, log_amplitude, size: int) -> Configurations:
    """The `size` candidates of largest |psi|, the lowest configuration always among them (arXiv:2604.15768)."""
    size = min(size, int(union.count))
    lowest = aufbau(ham.norb, ham.nalpha, ham.nbeta)
    rows = min(round_capacity(size), union.keys.shape[0])
    keys = _best(*union, lowest, log_amplitude, np.int32(size), rows=rows)
    return Configurations(_resized(keys, size=round_capacity(size)), jnp.int32(size))


@partial(jax.jit, static_argnames="rows")
def _best(keys, count, lowest, log_amplitude, size, *, rows):
    """The `size` best of a set, sorted; scores that agree to six decimals are ties, and the lower key wins."""
    n = keys.shape[0]
    log_score = jnp.where(jnp.all(keys == lowest, axis=1), jnp.inf, log_amplitude)
    # Whole numbers, which GPUs sort faster than others.
    steps = jnp.clip(jnp.round(-log_score * 1e6), -(2.0**62), 2.0**62).astype(jnp.int64)
    rank = jnp.where(jnp.arange(n, dtype=jnp.int32) < count, (steps + 2**62).astype(jnp.uint64), SENTINEL)
    _, order = jax.lax.sort((rank, jnp.arange(n, dtype=jnp.int32)), num_keys=1, is_stable=True)
    chosen = jnp.sort(jnp.where(jnp.arange(rows, dtype=jnp.int32) < size, order[:rows], n))
    return jnp.where((chosen < n)[:, None], keys[jnp.minimum(chosen, n - 1)], SENTINEL)
