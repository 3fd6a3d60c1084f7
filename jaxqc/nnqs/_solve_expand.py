"""Growing a set of configurations: candidates in batches of sources, and the choice among them.

Couplings are generated again where they are needed, not stored: memory is that of one batch and of the unique set.
"""

import math
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import SENTINEL, Configurations, aufbau, padded_keys, search
from jaxqc.nnqs._coupling import couple_fixed, round_capacity
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
    return _expanded(ham, configurations, epsilon, memory)[0]


_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _known_of(ham, epsilon):
    """A threshold on the device, and rows that were needed with it before, by numbers of sources."""
    known = _known.setdefault(ham, {})
    if epsilon not in known:
        known[epsilon] = jax.device_put(np.float64(epsilon)), {}
    return known[epsilon]


def _expanded(ham, configurations, epsilon, memory):
    """`candidates`, and the couplings in batches of sources: the position of the first one, and `Coupled`.

    GPUs wait for every number that is brought to them or back. So arrays are as long as they had to be for as many
    sources before, and one look at the end of a batch tells whether that is right.
    """
    total, size = int(configurations.count), sources_in_batch(ham, memory)
    limit, rooms = _known_of(ham, float(epsilon))
    couple = partial(_couple, ham, tables_of(ham), *configurations, limit)
    single = {"start": None, "rows": configurations.keys.shape[0]}  # the set as it is
    union, count, capacity, made = configurations.keys, configurations.count, 0, []
    for start in range(0, max(total, 1), size):
        part = single if total <= size else {"start": np.int32(start), "rows": size}
        capacity, room = rooms.get((total, size, start)) or (capacity or _estimated(couple, total, size), 0)
        while True:
            coupled = couple(**part, capacity=capacity)
            everything, count = _merged(union, coupled)
            keys = _resized(everything, size=room) if room else everything
            if int(count) >= 0:
                break
            capacity = round_capacity(int(coupled.count))
        room = round_capacity(int(count))
        union = keys if keys.shape[0] == room else _resized(everything, size=room)
        rooms[total, size, start] = capacity, room
        made.append((start, {**part, "capacity": capacity}))
    again = ((start, couple(**part)) for start, part in made)
    # Within the budget they are made once.
    return Configurations(union, count), [(0, coupled)] if total <= size else again


def _estimated(couple, total, size):
    """Rows for the couplings of the first `size` of `total` sources, from a few of them."""
    few = 64
    number = int(couple(start=np.int32(0), rows=few, capacity=1).count)
    return round_capacity(math.ceil(1.1 * number * min(size, total) / max(min(few, total), 1)))


@partial(jax.jit, static_argnames=("capacity", "rows"))
def _couple(ham, tables, keys, count, epsilon, start, *, capacity, rows):
    """Couplings of so many rows of a set."""
    if rows < keys.shape[0]:
        keys = keys.at[start + jnp.arange(rows, dtype=jnp.int32)].get(mode="fill", fill_value=SENTINEL)
        count = jnp.clip(count - start, 0, rows)
    return couple_fixed(ham, tables, keys, count, jnp.broadcast_to(epsilon, keys.shape[0]), capacity=capacity)


@jax.jit
def _merged(keys, coupled):
    """Sorted unique keys of both, and their number; -1 where couplings are incomplete."""
    keys, count = deduplicate(jnp.concatenate([keys, coupled.keys]))
    return keys, jnp.where(coupled.count <= coupled.keys.shape[0], count, -1)


@partial(jax.jit, static_argnames="size")
def _resized(keys, *, size):
    return keys[:size] if size <= keys.shape[0] else padded_keys(keys, size)


def connected_links(ham, configurations, epsilon: float, memory: int) -> tuple[jax.Array, Links]:
    """Keys of a set and of all that is coupled to it, and the `Links` of the energy `connected`."""
    (union, _), couplings = _expanded(ham, configurations, epsilon, memory)
    own, entries = _own(ham, union, *configurations)
    pieces = [entries, *(_located(union, own, coupled, np.int32(start)) for start, coupled in couplings)]
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
    size, electrons = min(size, int(union.count)), (ham.norb, ham.nalpha, ham.nbeta)
    return _best(*union, log_amplitude, electrons=electrons, size=size)


@partial(jax.jit, static_argnames=("electrons", "size"))
def _best(keys, count, log_amplitude, *, electrons, size):
    """The `size` best of a set, sorted; scores that agree to six decimals are ties, and the lower key wins."""
    n, rows = keys.shape[0], round_capacity(size)
    log_score = jnp.where(jnp.all(keys == aufbau(*electrons), axis=1), jnp.inf, log_amplitude)
    # Whole numbers, which GPUs sort faster than others.
    steps = jnp.clip(jnp.round(-log_score * 1e6), -(2.0**62), 2.0**62).astype(jnp.int64)
    rank = jnp.where(jnp.arange(n, dtype=jnp.int32) < count, (steps + 2**62).astype(jnp.uint64), SENTINEL)
    _, order = jax.lax.sort((rank, jnp.arange(n, dtype=jnp.int32)), num_keys=1, is_stable=True)
    return Configurations(padded_keys(keys[jnp.sort(order[:size])], rows), jnp.minimum(size, count))
