"""Order of points along a Hilbert curve: points next to each other in memory are next to each other in space."""

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from jaxqc.xc._grid_primitive import compiled, define_primitive

_BITS = 16


def hilbert_keys(cells: jax.Array, bits: int = _BITS) -> jax.Array:
    """Positions along the Hilbert curve of cells in a cube of side 2^bits.

    J. Skilling, AIP Conf. Proc. 707, 381 (2004), doi:10.1063/1.1751381.

    Args:
        cells: (n, 3) uint32, each below 2^bits.
        bits: bits an axis, at most 21.

    Returns:
        (n,) uint64; different cells have different keys.
    """
    one = jnp.uint32(1)  # all loops unrolled: one pass over the cells instead of one for each bit

    def descend(k, x):
        high = one << (jnp.uint32(bits - 1) - k.astype(jnp.uint32))
        low = high - one
        a, b, c = x
        flip = (a & high) != 0
        a = jnp.where(flip, a ^ low, a)
        swap = jnp.where((b & high) != 0, jnp.uint32(0), (a ^ b) & low)
        a, b = jnp.where((b & high) != 0, a ^ low, a ^ swap), b ^ swap
        swap = jnp.where((c & high) != 0, jnp.uint32(0), (a ^ c) & low)
        a, c = jnp.where((c & high) != 0, a ^ low, a ^ swap), c ^ swap
        return a, b, c

    a, b, c = jax.lax.fori_loop(0, bits - 1, descend, (cells[:, 0], cells[:, 1], cells[:, 2]), unroll=True)
    b = b ^ a
    c = c ^ b

    def gray(k, t):
        high = one << (jnp.uint32(bits - 1) - k.astype(jnp.uint32))
        return jnp.where((c & high) != 0, t ^ (high - one), t)

    t = jax.lax.fori_loop(0, bits - 1, gray, jnp.zeros_like(c), unroll=True)
    a, b, c = a ^ t, b ^ t, c ^ t

    def weave(k, key):
        shift = jnp.uint32(bits - 1) - k.astype(jnp.uint32)
        digit = ((a >> shift) & one) << 2 | ((b >> shift) & one) << 1 | ((c >> shift) & one)
        return key << 3 | digit.astype(jnp.uint64)

    return jax.lax.fori_loop(0, bits, weave, jnp.zeros(c.shape, jnp.uint64), unroll=True)


def reference_order(points: jax.Array) -> jax.Array:
    """`hilbert_order` in plain JAX."""
    low = points.min(axis=0)
    extent = jnp.maximum((points.max(axis=0) - low).max(), 1e-300)
    most = 2.0**_BITS - 1
    cells = jnp.minimum((points - low) * (most / extent), most).astype(jnp.uint32)
    index = jnp.arange(len(points), dtype=jnp.int32)
    return jax.lax.sort((hilbert_keys(cells), index), num_keys=1)[1]


def hilbert_order(points: jax.Array) -> jax.Array:
    """The permutation (n,) int32 of points (n, 3) into the order of a Hilbert curve through their bounding cube.

    Not differentiable: the order changes in jumps.
    """
    return _order.bind(jax.lax.stop_gradient(points))


_order = define_primitive(
    "jaxqc_grid_order",
    cpu=lambda points: compiled("jaxqc_grid_order", jax.ShapeDtypeStruct(points.shape[:1], jnp.int32))(points),
    elsewhere=reference_order,
    shapes=lambda points: ShapedArray(points.shape[:1], jnp.int32),
)
