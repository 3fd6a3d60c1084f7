"""Shares of space of atoms on an NVIDIA GPU: the kernels behind `_grid_partition`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, Unit, call, int32, int64, operand, result
from jaxqc.gpu._launch import architecture
from jaxqc.xc._cuda_units import shared_limit
from jaxqc.xc._grid_becke import PARTITIONS, reference_fractions

_BATCH, _STAGE, _NEAR = 16, 8, 16  # see grid_partition.cu
_WARPS = 4  # of a block
_CHUNK = 1 << 24  # points times pairs of atoms at a time where the kernel does not take so many atoms


def _bytes(natm: int, warps: int, reverse: bool) -> int:
    of_warp = ((3 if reverse else 2) * 32 + 2 * _STAGE + 3) * _BATCH + _NEAR + (5 * natm + 3) // 4
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
    defines = (("SCHEME", PARTITIONS.index(partition)), ("REVERSE", int(reverse)), ("BLOCKS", 3 if reverse else 5))
    return Unit("grid_partition.cu", ("grid_partition",), defines)


def _call(coords, points, owner, radii, cotangent, partition, shapes, results, zeroed):
    natm, n = coords.shape[0], points.shape[0]
    reverse = len(shapes) == 2
    unit = unit_of(partition, reverse)
    warps = _warps(natm, reverse)
    arguments = (*map(operand, range(6)), *results, int32(natm), int64(n))
    step = Step(unit, "grid_partition", 32 * warps, arguments, shared=_bytes(natm, warps, reverse))
    operands = (coords, points, owner, _pairs(coords, radii), cotangent, jnp.mean(jnp.abs(cotangent)))
    return call("jaxqc_grid_partition", [step], shapes, *operands, zeroed=zeroed)


def _struct(x):
    return jax.ShapeDtypeStruct(x.shape, np.float64)


def grid_fractions(coords, points, owner, radii, *, partition):
    """`jaxqc_grid_fractions`."""
    if not points.shape[0] or not _warps(len(coords), False):
        return reference_fractions(coords, points, owner, radii, partition=partition, chunk=_CHUNK)
    null = int64(0)
    return _call(coords, points, owner, radii, coords, partition, [_struct(owner)], (result(0), null, null), ())[0]


def grid_pullbacks(coords, points, owner, radii, cotangent, *, partition):
    """`jaxqc_grid_pullbacks`."""
    if not points.shape[0] or not _warps(len(coords), True):
        plain = functools.partial(reference_fractions, owner=owner, radii=radii, partition=partition, chunk=_CHUNK)
        return list(jax.vjp(lambda c, p: plain(c, p), coords, points)[1](cotangent))
    results = (int64(0), result(0), result(1))
    shapes = [_struct(coords), _struct(points)]
    return _call(coords, points, owner, radii, cotangent, partition, shapes, results, (0, 1))
