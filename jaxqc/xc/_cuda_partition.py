"""Shares of space of atoms on an NVIDIA GPU: the kernels behind `_grid_partition`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, Unit, call, int32, int64, operand, result
from jaxqc.gpu._launch import architecture
from jaxqc.xc._cuda_units import shared_limit
from jaxqc.xc._grid_becke import PARTITIONS, reference_fractions

_BATCH, _STAGE, _NEAR, _HEADER = 16, 8, 16, 40  # see grid_patch.cuh
_COLUMNS = 10  # of a warp, on average, that there is place for; chains, clusters and drugs leave 8 or 9 behind
_WARPS = 4  # of a block
_CHUNK = 1 << 24  # points times pairs of atoms at a time where the kernel does not take so many atoms


def _bytes(natm: int, warps: int, reverse: bool) -> int:
    columns = (3 if reverse else 2) * 32 + 2 * _STAGE + (3 if reverse else 0)
    of_warp = columns * _BATCH + 32 * _STAGE + (48 if reverse else 0) + _BATCH // 2 + _NEAR + (3 * natm + 3) // 4
    return 8 * warps * (of_warp + of_warp % 2)


def _warps(natm: int, reverse: bool) -> int:
    """Warps of a block: as many as shared memory allows, 0 where not even one fits."""
    for warps in (_WARPS, _WARPS // 2, 1):
        if _bytes(natm, warps, reverse) <= shared_limit(architecture()):
            return warps
    return 0


def _pairs(coords, radii):
    """1 / distance (0 for one place) and shift of each pair of atoms, (natm, natm, 2); 0 and -1 on the diagonal."""
    square = jnp.sum((coords[:, None] - coords[None]) ** 2, axis=-1)
    apart = square > 0
    inverse = jnp.where(apart, 1.0 / jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)
    ratio = radii[:, None] / radii[None]
    shift = jnp.where(jnp.eye(len(coords), dtype=bool), -1.0, jnp.clip(0.25 * (ratio.T - ratio), -0.5, 0.5))
    return jnp.stack([inverse, shift], axis=-1)


def unit_of(partition: str, reverse: bool) -> Unit:
    """The kernel of a partition, for shares or for their transposed derivative."""
    defines = (("SCHEME", PARTITIONS.index(partition)), ("REVERSE", int(reverse)), ("BLOCKS", 3 if reverse else 4))
    headers = ("grid_steps.cuh", "grid_patch.cuh", "grid_products.cuh", "grid_pullback.cuh")
    return Unit("grid_partition.cu", ("grid_partition",), defines, headers)


def _groups(n: int) -> int:
    return -(-n // 32)


def kept_size(n: int) -> int:
    """How many numbers `grid_fractions_kept` leaves behind of `n` points."""
    return _groups(n) * (_HEADER + 32 * _COLUMNS)


_NULL = int64(0)


def _call(coords, points, owner, radii, others, buffers, partition, shapes, zeroed):
    """`others`: operands after the first four; `buffers`: the arguments of the kernel after these."""
    natm, n = coords.shape[0], points.shape[0]
    reverse = len(others) > 0
    warps = _warps(natm, reverse)
    sizes = (int32(natm), int64(n), int64(_COLUMNS * _groups(n)))
    arguments = (*map(operand, range(4)), *buffers, *sizes)
    shared = _bytes(natm, warps, reverse)
    grid = -(-_groups(n) // warps)  # groups of points cost very different times: the device deals them out
    step = Step(unit_of(partition, reverse), "grid_partition", 32 * warps, arguments, grid=grid, shared=shared)
    operands = (coords, points, owner, _pairs(coords, radii), *others)
    return call("jaxqc_grid_partition", [step], shapes, *operands, zeroed=zeroed)


def _struct(x):
    return jax.ShapeDtypeStruct(x.shape, np.float64)


def grid_fractions(coords, points, owner, radii, *, partition):
    """`jaxqc_grid_fractions`."""
    if not points.shape[0] or not _warps(len(coords), False):
        return reference_fractions(coords, points, owner, radii, partition=partition, chunk=_CHUNK)
    buffers = (*[_NULL] * 5, result(0), _NULL, _NULL)
    return _call(coords, points, owner, radii, (), buffers, partition, [_struct(owner)], ())[0]


def grid_fractions_kept(coords, points, owner, radii, *, partition):
    """`jaxqc_grid_fractions_kept`."""
    size = kept_size(len(points))
    if not size or not _warps(len(coords), True):
        return [grid_fractions(coords, points, owner, radii, partition=partition), jnp.zeros(size)]
    columns = result(1, 8 * _HEADER * _groups(len(points)))
    buffers = (_NULL, _NULL, result(1), columns, result(2), result(0), _NULL, _NULL)
    shapes = [_struct(owner), jax.ShapeDtypeStruct((size,), np.float64), jax.ShapeDtypeStruct((1,), np.int64)]
    return _call(coords, points, owner, radii, (), buffers, partition, shapes, (2,))[:2]


def grid_pullbacks(coords, points, owner, radii, kept, cotangent, *, partition):
    """`jaxqc_grid_pullbacks`."""
    if not points.shape[0] or not _warps(len(coords), True):
        plain = functools.partial(reference_fractions, owner=owner, radii=radii, partition=partition, chunk=_CHUNK)
        return list(jax.vjp(lambda c, p: plain(c, p), coords, points)[1](cotangent))
    columns = operand(6, 8 * _HEADER * _groups(len(points)))
    buffers = (operand(4), operand(5), operand(6), columns, _NULL, _NULL, result(0), result(1))
    others = (cotangent, jnp.mean(jnp.abs(cotangent)), kept)
    return _call(coords, points, owner, radii, others, buffers, partition, [_struct(coords), _struct(points)], (0, 1))
