"""Growing a set of configurations: candidates in batches of sources, and the choice among them.

Couplings are generated again where they are needed, not stored: memory is that of one batch and of the unique set.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import SENTINEL, Configurations, aufbau, batches, padded_keys, search
from jaxqc.nnqs._coupling import couple, round_capacity
from jaxqc.nnqs._deduplicate import deduplicate
from jaxqc.nnqs._energy import Links
from jaxqc.nnqs._selected import padded_set
from jaxqc.nnqs._slater_condon import diagonal


def sources_in_batch(ham, memory: int) -> int:
    """How many configurations are coupled at once within a budget of memory in bytes, a power of two, at least 16."""
    bound = sum(
        n * (ham.norb - n) * (1 + (n - 1) * (ham.norb - n - 1) // 4 + other * (ham.norb - other) // 2)
        for n, other in ((ham.nalpha, ham.nbeta), (ham.nbeta, ham.nalpha))
    )
    return max(1 << (int(memory) // (64 * max(bound, 1))).bit_length() >> 1, 16)


def candidates(ham, configurations, epsilon: float, memory: int) -> Configurations:
    """A set and everything that is coupled to it, sorted and unique, padded to one of few sizes."""
    union = configurations
    for _, part in batches(configurations, sources_in_batch(ham, memory)):
        coupled = couple(ham, part, epsilon=epsilon)
        keys, count = deduplicate(jnp.concatenate([union.keys, coupled.keys]))
        size = round_capacity(int(count))
        union = Configurations(keys[:size] if size <= keys.shape[0] else padded_keys(keys, size), count)
    return union


def connected_links(ham, configurations, epsilon: float, memory: int) -> tuple[jax.Array, Links]:
    """Keys of a set and of all that is coupled to it, and the `Links` of the energy `connected`."""
    union = candidates(ham, configurations, epsilon, memory)
    size = union.keys.shape[0]
    own = search(union.keys, configurations.keys[: int(configurations.count)])
    rows, columns, values = [own], [own], [diagonal(ham, union.keys[own])]
    for start, part in batches(configurations, sources_in_batch(ham, memory)):
        coupled = couple(ham, part, epsilon=epsilon)
        # Unused rows have the element 0 and may point anywhere.
        rows.append(own[jnp.minimum(start + coupled.sources, own.shape[0] - 1)])
        columns.append(jnp.minimum(search(union.keys, coupled.keys), size - 1))
        values.append(coupled.elements)
    members = jnp.zeros(size, bool).at[own].set(True)
    all_rows = jnp.concatenate(rows)
    place = jnp.arange(all_rows.shape[0], dtype=jnp.int32)
    _, order = jax.lax.sort((all_rows, place), num_keys=1, is_stable=True)
    return union.keys, Links(all_rows[order], jnp.concatenate(columns)[order], jnp.concatenate(values)[order], members)


def joined(configurations: Configurations, joining) -> Configurations:
    """A set and keys (n, words) that are not in it."""
    keys = np.concatenate([np.asarray(configurations.keys[: int(configurations.count)]), joining])
    return padded_set(keys[np.lexsort(keys.T[::-1])])


def by_amplitude(ham, union: Configurations, log_amplitude, size: int) -> Configurations:
    """The `size` candidates of largest |psi|, the lowest configuration always among them (arXiv:2604.15768)."""
    pinned = jnp.all(union.keys == aufbau(ham.norb, ham.nalpha, ham.nbeta), axis=1)
    return _best(union, jnp.where(pinned, jnp.inf, log_amplitude), size)


def _best(union, log_score, size):
    """The `size` best of a set, sorted; scores that agree to six decimals are ties, and the lower key wins."""
    count = int(union.count)
    used = jnp.arange(union.keys.shape[0]) < count
    # Whole numbers, which GPUs sort faster than others.
    steps = jnp.clip(jnp.round(-log_score * 1e6), -(2.0**62), 2.0**62).astype(jnp.int64)
    rank = jnp.where(used, (steps + 2**62).astype(jnp.uint64), SENTINEL)
    _, order = jax.lax.sort((rank, jnp.arange(rank.shape[0], dtype=jnp.int32)), num_keys=1, is_stable=True)
    return padded_set(np.asarray(union.keys[jnp.sort(order[: min(size, count)])]))
