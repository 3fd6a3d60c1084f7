"""Sorted unique configurations, on one device or over a mesh by regular sampling.

Over a mesh each device sorts its own keys, splitters from evenly spaced samples deal them out, each device merges what
it receives (equal keys always meet), and a last exchange makes the shares equal. Messages have the length of what is
sent on GPUs, and are padded to equal lengths where the platform has no such exchange. The result does not depend on
that, nor on the number of devices. Source: Shi and Schaeffer, J. Parallel Distrib. Comput. 14, 361 (1992),
doi:10.1016/0743-7315(92)90075-X.
"""

import functools
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxqc.elements import shorten
from jaxqc.nnqs._bits import SENTINEL, Configurations, search
from jaxqc.nnqs._coupling import round_capacity

_SAMPLES = 64  # a device and splitter


class Unique(NamedTuple):
    """Sorted unique keys and where each given key went, a JAX pytree.

    Attributes:
        keys: (capacity, words) uint64, the first `count` rows rising, then sentinels.
        count: () int32.
        inverse: (n,) int32 row of each given key; `count` for sentinels.
    """

    keys: jax.Array
    count: jax.Array
    inverse: jax.Array


def deduplicate(keys, mesh: Mesh | None = None, *, inverse: bool = False) -> Any:
    """Sorts keys and keeps one of each; sentinels are dropped.

    Args:
        keys: (n, words) uint64 in any order; over a mesh of several processes, sharded along the first axis.
        mesh: one-dimensional mesh over which to work; None for one device.
        inverse: also find the row of each given key.

    Returns:
        `Configurations` (keys, count), or `Unique` (keys, count, inverse). Over a mesh, rows are sharded in equal
        shares, of which only the last ones are padded.

    Raises:
        TypeError, ValueError: an argument is not what it must be.

    Example:
        >>> import jax.numpy as jnp, jaxqc
        >>> keys, count = jaxqc.nnqs.deduplicate(jnp.array([[3], [1], [3]], jnp.uint64))
        >>> keys[:int(count), 0].tolist()
        [1, 3]
    """
    dtype, shape = getattr(keys, "dtype", type(keys).__name__), getattr(keys, "shape", ())
    if dtype != jnp.uint64 or len(shape) != 2 or shape[1] == 0:
        raise TypeError(
            "Argument keys of jaxqc.nnqs.deduplicate must be a uint64 array of the shape (n, words), but it has the "
            f"type {dtype} and the shape {shape}."
        )
    if mesh is None:
        if shape[0] == 0:
            empty = jnp.zeros(shape, jnp.uint64), jnp.int32(0)
            return Unique(*empty, jnp.zeros(0, jnp.int32)) if inverse else Configurations(*empty)
        return _unique_with_inverse(jnp.asarray(keys)) if inverse else _unique(jnp.asarray(keys))
    if not isinstance(mesh, Mesh) or len(mesh.axis_names) != 1:
        raise ValueError(
            f"Argument mesh of jaxqc.nnqs.deduplicate must be a mesh of one axis, but it is {shorten(mesh)}; make one "
            "with jaxqc.nnqs.make_mesh()."
        )
    with jax.set_mesh(None):  # whatever mesh the caller works in
        mesh = Mesh(mesh.devices, mesh.axis_names)
        return _over_mesh(keys, mesh, inverse)


def sort_keys(keys) -> tuple[jax.Array, jax.Array]:
    """Sorted keys (n, words) and the order (n,) int32 that sorts them, stable.

    One pass for each word, from the least significant one: sorts of one word with a payload are radix sorts on GPUs.
    """
    order = jnp.arange(keys.shape[0], dtype=jnp.int32)
    for w in range(keys.shape[1] - 1, -1, -1):
        _, order = jax.lax.sort((keys[order, w], order), num_keys=1, is_stable=True)
    return keys[order], order


def _sorted(keys):
    if keys.shape[1] == 1:
        return jax.lax.sort(keys[:, 0])[:, None]  # along the last axis, as radix sorts on GPUs need
    return sort_keys(keys)[0]


def _positions(keys):
    """Of sorted keys: which rows are the first of their kind, and how many kinds there are up to each row, less one."""
    differs = jnp.any(keys[1:] != keys[:-1], axis=1)
    first = jnp.concatenate([jnp.ones(min(1, keys.shape[0]), bool), differs]) & jnp.any(keys != SENTINEL, axis=1)
    return first, jnp.cumsum(first, dtype=jnp.int32) - 1


def _compact(keys, first, place):
    rows = keys.shape[0]
    out = jnp.full(keys.shape, SENTINEL).at[jnp.where(first, place, rows)].set(keys, mode="drop")
    return out, jnp.sum(first, dtype=jnp.int32)


@jax.jit
def _unique(keys):
    keys = _sorted(keys)
    return Configurations(*_compact(keys, *_positions(keys)))


@jax.jit
def _unique_with_inverse(keys):
    used = jnp.any(keys != SENTINEL, axis=1)
    ordered, order = sort_keys(keys)
    first, place = _positions(ordered)
    unique, count = _compact(ordered, first, place)
    inverse = jnp.zeros(keys.shape[0], jnp.int32).at[order].set(place, unique_indices=True)
    return Unique(unique, count, jnp.where(used, inverse, count))


def _over_mesh(keys, mesh, inverse, ragged=None):
    """`ragged` says whether messages have lengths of their own: always, never, or, by default, where equal ones are too
    short and the platform has such an exchange."""
    size, (axis,) = mesh.devices.size, mesh.axis_names
    rows, sharding = keys.shape[0], NamedSharding(mesh, P(axis))
    padded = round_capacity(-(-rows // size)) * size
    if not (isinstance(keys, jax.Array) and keys.sharding == sharding and rows == padded):
        keys = jnp.pad(jnp.asarray(keys), ((0, padded - rows), (0, 0)), constant_values=SENTINEL)
        keys = jax.device_put(keys, sharding)
    local, own = padded // size, bool(ragged)
    # Rows that a device has room for: of all messages, or of each one.
    room = min(padded if own else local, round_capacity(local * 5 // (4 if own else 4 * size)))
    while True:
        merged, counts, needed = _exchange(keys, mesh=mesh, room=room, ragged=own)
        if int(needed) <= room:
            break
        own, before = own or (ragged is None and _has_ragged(mesh)), own
        wanted = round_capacity(int(needed)) if own == before else round_capacity(local * 5 // 4)
        room = min(padded if own else local, wanted)
    total = int(np.sum(counts))
    share = max(1, -(-total // size))
    step = max(1, share // (32 * size))  # so that few different shares occur: 3 % of the last one at most
    share = -(-share // step) * step
    block, own = min(share, round_capacity(share // 4)), bool(ragged)
    while not own:
        out, needed = _balance(merged, counts, mesh=mesh, share=share, block=block)
        if int(needed) <= block:
            return _numbered(out, keys, total, mesh, rows, inverse)
        own, block = ragged is None and _has_ragged(mesh), min(share, round_capacity(int(needed)))
    return _numbered(_balance_ragged(merged, counts, mesh=mesh, share=share), keys, total, mesh, rows, inverse)


def _numbered(out, keys, total, mesh, rows, inverse):
    """What `deduplicate` returns, of the sorted unique keys."""
    count = jnp.int32(total)
    if not inverse:
        return Configurations(out, count)
    return Unique(out, count, _inverse(out, keys, count, mesh=mesh)[:rows])


def _has_ragged(mesh):
    """Whether the devices exchange messages of any length."""
    return mesh.devices.size > 1 and mesh.devices.flat[0].platform in ("gpu", "cuda") and _passes_ragged(mesh)


@functools.cache
def _passes_ragged(mesh):
    """Whether they pass a test of it, once for each mesh."""
    keys = (np.arange(1000, dtype=np.uint64) ** 2 % 613)[:, None]
    try:
        found, expected = (_over_mesh(keys, mesh, False, ragged)[0] for ragged in (True, False))
        if found.shape == expected.shape and bool(_equal(found, expected)):
            return True
        reason = "the result was wrong"
    except RuntimeError as error:
        reason = str(error)
    warnings.warn(
        f"Messages between GPUs are padded, which takes more memory, because those of any length failed: {reason}",
        stacklevel=2,
    )
    return False


@jax.jit
def _equal(a, b):
    return jnp.all(a == b)


@partial(jax.jit, static_argnames=("mesh", "room", "ragged"))
def _exchange(keys, *, mesh, room, ragged):
    """Deals keys out by range: sorted unique shares of each device, their counts, and the room that is needed."""
    (axis,), size = mesh.axis_names, mesh.devices.size

    def local(keys):
        own, count = _unique(keys)
        starts = _splits(own, count, axis, size)
        received, needed = (_sent_ragged if ragged else _sent)(own, starts, axis, room)
        merged, found = _unique(received)
        return merged, jax.lax.all_gather(found, axis), needed

    return _mapped(local, mesh, (P(axis),), (P(axis), P(), P()))(keys)


def _splits(own, count, axis, size):
    """(size + 1,) bounds in the sorted `own` of what goes to each device, from weighted regular samples."""
    number = _SAMPLES * size
    middle = (np.arange(number) + 0.5) / number
    at = (middle * count.astype(jnp.float64)).astype(jnp.int32)
    samples = jnp.where(count > 0, own[jnp.minimum(at, own.shape[0] - 1)], SENTINEL)
    samples = jax.lax.all_gather(samples, axis, tiled=True)
    weights = jnp.repeat(jax.lax.all_gather(count.astype(jnp.float64) / number, axis), number)
    samples, order = sort_keys(samples)
    reached = jnp.cumsum(weights[order])
    wanted = reached[-1] * (np.arange(1, size) / size)
    splitters = samples[jnp.minimum(jnp.searchsorted(reached, wanted), samples.shape[0] - 1)]
    inner = jnp.minimum(search(own, splitters), count)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), inner, count[None]])


def _sent(own, starts, axis, block):
    """own[starts[d]:starts[d + 1]] goes to device d, in messages of `block` rows: what came, the longest message."""
    blocks, longest = _blocks(own, starts, block)
    received = jax.lax.all_to_all(blocks, axis, 0, 0, tiled=True)
    return received.reshape(-1, own.shape[1]), jax.lax.pmax(longest, axis)


def _sent_ragged(own, starts, axis, room):
    """The same in messages of their own lengths, to `room` rows; nothing if there is too little of it."""
    me = jax.lax.axis_index(axis)
    sizes = jax.lax.all_gather(starts[1:] - starts[:-1], axis)  # from, to
    needed = jnp.max(jnp.sum(sizes, axis=0))
    sizes = jnp.where(needed <= room, sizes, 0)
    places = jnp.cumsum(sizes, axis=0, dtype=jnp.int32) - sizes
    nothing = jnp.full((room, own.shape[1]), SENTINEL)
    received = jax.lax.ragged_all_to_all(own, nothing, starts[:-1], sizes[me], places[me], sizes[:, me], axis_name=axis)
    return received, needed


def _blocks(own, starts, block):
    """(size, block, words) messages own[starts[d]:starts[d + 1]], and the length of the longest one."""
    at = starts[:-1, None] + jnp.arange(block, dtype=jnp.int32)
    rows = own[jnp.minimum(at, own.shape[0] - 1)]
    return jnp.where((at < starts[1:, None])[..., None], rows, SENTINEL), jnp.max(starts[1:] - starts[:-1])


@partial(jax.jit, static_argnames=("mesh", "share", "block"))
def _balance(merged, counts, *, mesh, share, block):
    """Moves rows so that device d has those from d * share on: (size * share, words), the longest message."""
    (axis,), size = mesh.axis_names, mesh.devices.size

    def local(own, counts):
        me = jax.lax.axis_index(axis).astype(jnp.int32)
        ends = jnp.cumsum(counts, dtype=jnp.int32)
        begin, count = ends[me] - counts[me], counts[me]
        bounds = jnp.arange(size + 1, dtype=jnp.int32) * share
        starts = jnp.clip(bounds - begin, 0, count)
        lengths = jnp.where(jnp.arange(size, dtype=jnp.int32) == me, 0, starts[1:] - starts[:-1])
        blocks, _ = _blocks(own, starts, block)
        received = jax.lax.all_to_all(blocks, axis, 0, 0, tiled=True)
        # What came from device d begins at its first row within this share.
        first = jnp.clip(jnp.maximum(ends - counts, me * share) - me * share, 0, share)
        arrived = jnp.clip(jnp.minimum(ends, (me + 1) * share) - jnp.maximum(ends - counts, me * share), 0, block)
        offset = jnp.arange(block, dtype=jnp.int32)
        foreign = (offset < arrived[:, None]) & (jnp.arange(size, dtype=jnp.int32) != me)[:, None]
        place = jnp.where(foreign, first[:, None] + offset, share)
        out = jnp.full((share, own.shape[1]), SENTINEL)
        out = out.at[place.reshape(-1)].set(received.reshape(size * block, own.shape[1]), mode="drop")
        # What stays is not sent.
        at = me * share + jnp.arange(share, dtype=jnp.int32) - begin
        mine = own[jnp.clip(at, 0, own.shape[0] - 1)]
        out = jnp.where(((at >= 0) & (at < count))[:, None], mine, out)
        return out, jax.lax.pmax(jnp.max(lengths), axis)

    return _mapped(local, mesh, (P(axis), P()), (P(axis), P()))(merged, counts)


@partial(jax.jit, static_argnames=("mesh", "share"))
def _balance_ragged(merged, counts, *, mesh, share):
    """As `_balance`, in messages of their own lengths, straight to their places."""
    (axis,), size = mesh.axis_names, mesh.devices.size

    def local(own, counts):
        me = jax.lax.axis_index(axis)
        ends = jnp.cumsum(counts, dtype=jnp.int32)
        begins, bounds = ends - counts, jnp.arange(size, dtype=jnp.int32) * share
        starts = jnp.clip(bounds - begins[:, None], 0, counts[:, None])  # from, to
        sizes = jnp.clip(bounds + share - begins[:, None], 0, counts[:, None]) - starts
        places = jnp.clip(begins[:, None] - bounds, 0, share)
        nothing = jnp.full((share, own.shape[1]), SENTINEL)
        return jax.lax.ragged_all_to_all(own, nothing, starts[me], sizes[me], places[me], sizes[:, me], axis_name=axis)

    return _mapped(local, mesh, (P(axis), P()), P(axis))(merged, counts)


@partial(jax.jit, static_argnames="mesh")
def _inverse(unique, keys, count, *, mesh):
    """Rows of keys in the unique set, which every device holds for the search."""
    (axis,) = mesh.axis_names

    def local(unique, keys, count):
        everything = jax.lax.all_gather(unique, axis, tiled=True)
        return jnp.minimum(search(everything, keys), count)

    return _mapped(local, mesh, (P(axis), P(axis), P()), P(axis))(unique, keys, count)


def _mapped(local, mesh, in_specs, out_specs):
    # Gathered values are equal everywhere, which JAX does not know.
    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
