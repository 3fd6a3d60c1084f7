"""Work shared by the devices of a mesh: each computes a part from what all of them have, and results are added."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def checked_mesh(mesh, function: str) -> Mesh | None:
    """A mesh with axes of the type Auto, or None.

    Arrays over axes of the type Explicit, the default of `jax.make_mesh`, cannot meet others outside such a context.

    **Raises:** `TypeError` for something else.
    """
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"The argument mesh of {function} must be a jax.sharding.Mesh or None, but is a {type(mesh).__name__}. "
            'Make one with jax.make_mesh((jax.device_count(),), ("devices",)).'
        )
    return mesh if jax.sharding.get_abstract_mesh().axis_names else Mesh(mesh.devices, mesh.axis_names)


def replicated(tree, mesh: Mesh | None):
    """The arrays of a pytree on all devices of a mesh; as they are where they are traced, or without a mesh."""

    def put(x):
        if mesh is None or isinstance(x, Tracer):
            return x
        value = np.asarray(x)
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, P()), lambda index: value[index])

    return jax.tree.map(put, tree)


def sum_of_parts(local, mesh: Mesh | None, *operands):
    """The sum over devices of `local(part, parts, *operands)`, once for all of them.

    **Arguments:** `local`: a function of the number of a part, int32 of shape `(1,)`, of how many parts there are, and
    of the operands; `mesh`: the devices, or None for one part here.
    """
    if mesh is None:
        return local(jnp.zeros(1, jnp.int32), 1, *operands)

    def on_device(*arrays):
        part = jax.lax.axis_index(mesh.axis_names).astype(jnp.int32)[None]
        return jax.lax.psum(local(part, mesh.size, *arrays), mesh.axis_names)

    # The kernels do not say along which axes their results vary, so the check of that is off.
    return jax.shard_map(on_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(*operands)
