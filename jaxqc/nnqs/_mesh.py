"""Arrays over the devices of a mesh, of one process or several, for `solve`.

Work is cut into shares whose number does not depend on the number of devices, and sums over shares are made in their
order: 1, 2, 4 or 8 devices compute the same bits.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxqc.elements import shorten

_SHARES = 8


def make_mesh(number: int | None = None) -> Mesh:
    """A mesh for argument `mesh` of `solve` and `deduplicate`: one axis over JAX's devices, those of all processes.

    Call it after `jax.distributed.initialize`, where there are several processes.

    Args:
        number: how many devices, from the first one on; None for all of them.

    Raises:
        ValueError: there are not so many.
    """
    devices = jax.devices()
    if number is not None and not 1 <= number <= len(devices):
        raise ValueError(
            f"Argument number of jaxqc.nnqs.make_mesh is {shorten(number)}, but JAX has {len(devices)} devices here."
        )
    return Mesh(np.array(devices[:number]), ("devices",))


def check_mesh(mesh, name: str) -> Mesh:
    """A mesh of one axis.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(mesh, Mesh) or len(mesh.axis_names) != 1:
        raise ValueError(
            f"Argument mesh of {name} must be a mesh of one axis, but it is {shorten(mesh)}; make one with "
            "jaxqc.nnqs.make_mesh()."
        )
    return Mesh(mesh.devices, mesh.axis_names)


def shares_of(mesh: Mesh) -> int:
    """Into how many shares work is cut: a multiple of the number of devices, 8 where that is a divisor of it."""
    return math.lcm(_SHARES, mesh.devices.size)


def put(mesh: Mesh, tree, spec: P):
    """Arrays that every process has as a whole, over the mesh, dealt along their first axis or copied.

    What is on a device goes to the others from there, not through the host.
    """
    sharding = NamedSharding(mesh, spec)

    def one(leaf):
        if not isinstance(leaf, jax.Array) or len(leaf.devices()) != 1:
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
        rows = sharding.shard_shape(leaf.shape)[:1]
        pieces = [
            jax.device_put(leaf if rows == leaf.shape[:1] else _rows(leaf, place[0].start or 0, *rows), device)
            for device, place in sharding.addressable_devices_indices_map(leaf.shape).items()
            if place is not None
        ]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, pieces)

    return jax.tree.map(one, tree)


@partial(jax.jit, static_argnames="number")
def _rows(array, start, number):
    return jax.lax.dynamic_slice_in_dim(array, start, number)


def fetch(tree):
    """Arrays that are the same on all devices, by way of the host, for work on any device of this process."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf.addressable_data(0))), tree)


def first_copy(tree):
    """Arrays that are the same on all devices, as they are on the first device of this process."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def over_mesh(function: Callable, mesh: Mesh, in_specs, out_specs) -> Callable:
    """`function` of each device's shares, compiled. What is gathered is equal everywhere, which JAX does not know."""
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def share_by_share(function: Callable, items, keys, rows: int):
    """`function` of each item along the first axis of `items`, whose keys are `keys`, one after the other.

    `rows`, of all devices together, is the length of the arrays in the loop: it is the same program on any number of
    devices. With a single item its work would not depend on the counter, and the compiler would move it out of the
    loop and fuse it otherwise.
    """
    length = jax.tree.leaves(items)[0].shape[0]
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], items))
    items = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype).at[:length].set(x), items)
    out = jax.tree.map(lambda s: jnp.zeros((rows, *s.shape), s.dtype), shapes)

    def one(k, out):
        item = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, k, keepdims=False), items)
        return jax.tree.map(lambda o, r: o.at[k].set(r), out, function(item))

    return jax.tree.map(lambda o: o[:length], jax.lax.fori_loop(0, _rounds(length, keys), one, out))


def share_sum(parts, keys):
    """The sum of `parts` along their first axis, from the first one on."""
    length = jax.tree.leaves(parts)[0].shape[0]

    def add(k, total):
        return jax.tree.map(lambda t, p: t + jax.lax.dynamic_index_in_dim(p, k, keepdims=False), total, parts)

    return jax.lax.fori_loop(1, _rounds(length, keys), add, jax.tree.map(lambda p: p[0], parts))


def _rounds(length, keys):
    """`length`, as a number that the compiler does not know: it must not unroll short loops and fuse them with what is
    around them, which would change bits with the number of devices. Keys of configurations are never all zero."""
    return jnp.int32(length) - jnp.all(keys == 0).astype(jnp.int32)


def gathered(x, axis: str) -> jax.Array:
    """The rows of all devices, one after the other, on each of them."""
    # Barriers: what is computed before and after must not be fused, which would change bits with the number of devices.
    return jax.lax.optimization_barrier(jax.lax.all_gather(jax.lax.optimization_barrier(x), axis, tiled=True))
