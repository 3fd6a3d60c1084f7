r"""Fractions of the weights of grid points that the partition of space leaves to their atoms, compiled.

Primitives, each the derivative or the transpose of another:

- `fractions`: f(R, r), as `reference_fractions` defines it;
- `rates`: $\dot f = (\partial f/\partial R) \dot R + (\partial f/\partial r) \dot r$, linear in the rates;
- `pullbacks`: the transpose of `rates`, from cotangents of f to those of R and r.

Where f is to be differentiated, `fractions_kept` computes it, and what it keeps of the way there saves `pullbacks` on
GPUs half of their time; nothing is kept elsewhere.

On the CPU each is one call of a threaded kernel that looks at near atoms only (NVIDIA GPUs: `_cuda_partition`);
elsewhere, and for second and higher derivatives, they are what JAX makes of `reference_fractions`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad

from jaxqc.xc import _cuda_rules
from jaxqc.xc._cuda_rules import lower_on_cuda
from jaxqc.xc._grid_becke import CHUNK, PARTITIONS, reference_fractions
from jaxqc.xc._grid_primitive import compiled, define_primitive

_CHUNK_ELSEWHERE = 16 * CHUNK  # GPUs are wide


def partition_fractions(coords, points, owner, radii, *, partition: str) -> jax.Array:
    """Fractions of the weights; arguments and result as of `reference_fractions`.

    Fast where points next to each other in memory are next to each other in space. Differentiable with respect to
    `coords` and `points`; atoms and steps that are left out change a fraction by less than 1e-15 of itself (1e-11 on
    NVIDIA GPUs), and fractions below 1e-20 are 0.
    """
    return _fractions.bind(coords, points, owner, radii, partition=partition)


def partition_work(coords, points, owner, radii, *, partition: str) -> int:
    """How many steps s(t) the compiled kernel evaluates: a measure of the cost that does not depend on the machine."""
    call = _ffi("jaxqc_grid_partition", [jax.ShapeDtypeStruct(owner.shape, jnp.float64), _WORK], partition)
    return int(jax.jit(call)(coords, points, owner, radii)[1])


_WORK = jax.ShapeDtypeStruct((), jnp.int64)


def _ffi(name, results, partition):
    return functools.partial(compiled(name, results), scheme=np.int64(PARTITIONS.index(partition)))


def _struct(x):
    return jax.ShapeDtypeStruct(x.shape, jnp.float64)


def _fractions_cpu(coords, points, owner, radii, *, partition):
    call = _ffi("jaxqc_grid_partition", [_struct(owner), _WORK], partition)
    return call(coords, points, owner, radii)[0]


def _kept(points):
    """What `fractions_kept` leaves behind."""
    if not _cuda_rules.on_gpu():
        return ShapedArray((0,), jnp.float64)
    from jaxqc.xc._cuda_partition import kept_size

    return ShapedArray((kept_size(points.shape[0]),), jnp.float64)


def _keeping(fractions, coords, points, owner, radii, *, partition, **how):
    """`fractions` as `fractions_kept`, where nothing is kept."""
    return [fractions(coords, points, owner, radii, partition=partition, **how), jnp.zeros(_kept(points).shape)]


def _rates_cpu(coords, points, owner, radii, kept, coords_rate, points_rate, *, partition):
    call = _ffi("jaxqc_grid_partition_forward", _struct(owner), partition)
    return call(coords, points, owner, radii, coords_rate, points_rate)


def _pullbacks_cpu(coords, points, owner, radii, kept, cotangent, *, partition):
    call = _ffi("jaxqc_grid_partition_reverse", [_struct(coords), _struct(points)], partition)
    return call(coords, points, owner, radii, cotangent)


def _reference(owner, radii, partition, chunk):
    """The definition as a function of coordinates and points."""
    return lambda coords, points: reference_fractions(coords, points, owner, radii, partition=partition, chunk=chunk)


def _rates_reference(coords, points, owner, radii, kept, coords_rate, points_rate, *, partition, chunk=CHUNK):
    return jax.jvp(_reference(owner, radii, partition, chunk), (coords, points), (coords_rate, points_rate))[1]


def _pullbacks_reference(coords, points, owner, radii, kept, cotangent, *, partition, chunk=CHUNK):
    return list(jax.vjp(_reference(owner, radii, partition, chunk), coords, points)[1](cotangent))


def _vector(x: Any):
    return ShapedArray(x.shape, jnp.float64)


_fractions = define_primitive(
    "jaxqc_grid_fractions",
    cpu=_fractions_cpu,
    elsewhere=functools.partial(reference_fractions, chunk=_CHUNK_ELSEWHERE),
    shapes=lambda coords, points, owner, radii: _vector(owner),
)
_fractions_kept = define_primitive(
    "jaxqc_grid_fractions_kept",
    cpu=functools.partial(_keeping, _fractions_cpu),
    elsewhere=functools.partial(_keeping, reference_fractions, chunk=_CHUNK_ELSEWHERE),
    shapes=lambda coords, points, owner, radii: [_vector(owner), _kept(points)],
    multiple_results=True,
)
_rates = define_primitive(
    "jaxqc_grid_rates",
    cpu=_rates_cpu,
    elsewhere=functools.partial(_rates_reference, chunk=_CHUNK_ELSEWHERE),
    shapes=lambda coords, points, owner, *rest: _vector(owner),
)
_pullbacks = define_primitive(
    "jaxqc_grid_pullbacks",
    cpu=_pullbacks_cpu,
    elsewhere=functools.partial(_pullbacks_reference, chunk=_CHUNK_ELSEWHERE),
    shapes=lambda coords, points, *rest: [_vector(coords), _vector(points)],
    multiple_results=True,
)
lower_on_cuda(_fractions, "_cuda_partition")
lower_on_cuda(_fractions_kept, "_cuda_partition")
lower_on_cuda(_pullbacks, "_cuda_partition")


def _dense(tangent):
    return ad.instantiate_zeros(tangent)


def _still(tangents):
    return all(type(t) is ad.Zero for t in tangents)


def _check_constants(owner, radii):
    if type(radii) is not ad.Zero:
        raise NotImplementedError("A grid cannot be differentiated with respect to the radii of its atoms.")


def _fractions_jvp(primals, tangents, *, partition):
    _check_constants(*tangents[2:])
    if _still(tangents[:2]):
        value = _fractions.bind(*primals, partition=partition)
        return value, ad.Zero(_vector(value))
    value, kept = _fractions_kept.bind(*primals, partition=partition)
    return value, _rates.bind(*primals, kept, *map(_dense, tangents[:2]), partition=partition)


def _fractions_kept_jvp(primals, tangents, *, partition):
    value, kept = _fractions_kept.bind(*primals, partition=partition)
    _check_constants(*tangents[2:])
    rates = _rates.bind(*primals, kept, *map(_dense, tangents[:2]), partition=partition)
    return [value, kept], [rates, ad.Zero(kept.aval)]  # no derivative depends on what is kept


def _rates_jvp(primals, tangents, *, partition):
    places, (owner, radii), rates = primals[:2], primals[2:4], primals[5:]
    _check_constants(*tangents[2:4])
    value = _rates.bind(*primals, partition=partition)
    change = jnp.zeros_like(value)
    if not _still(tangents[:2]):
        moved = functools.partial(_rates_of, owner, radii, rates, partition)
        change = change + jax.jvp(moved, tuple(places), tuple(map(_dense, tangents[:2])))[1]
    if not _still(tangents[5:]):
        change = change + _rates.bind(*primals[:5], *map(_dense, tangents[5:]), partition=partition)
    return value, change


def _rates_of(owner, radii, rates, partition, coords, points):
    return _rates_reference(coords, points, owner, radii, None, *rates, partition=partition)


def _rates_transpose(cotangent, coords, points, owner, radii, kept, coords_rate, points_rate, *, partition):
    known = (coords, points, owner, radii, kept)
    assert not any(ad.is_undefined_primal(x) for x in known)
    rates = (coords_rate, points_rate)
    if type(cotangent) is ad.Zero:
        bars = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in rates]
    else:
        bars = _pullbacks.bind(*known, cotangent, partition=partition)
        bars = [bar if ad.is_undefined_primal(x) else None for bar, x in zip(bars, rates, strict=True)]
    return [None] * 5 + bars


def _pullbacks_jvp(primals, tangents, *, partition):
    places, (owner, radii), cotangent = primals[:2], primals[2:4], primals[5]
    _check_constants(*tangents[2:4])
    values = _pullbacks.bind(*primals, partition=partition)
    changes = [jnp.zeros_like(value) for value in values]
    if not _still(tangents[:2]):
        moved = functools.partial(_pullbacks_of, owner, radii, cotangent, partition)
        parts = jax.jvp(moved, tuple(places), tuple(map(_dense, tangents[:2])))[1]
        changes = [change + part for change, part in zip(changes, parts, strict=True)]
    if not _still(tangents[5:]):
        parts = _pullbacks.bind(*primals[:5], _dense(tangents[5]), partition=partition)
        changes = [change + part for change, part in zip(changes, parts, strict=True)]
    return values, changes


def _pullbacks_of(owner, radii, cotangent, partition, coords, points):
    return _pullbacks_reference(coords, points, owner, radii, None, cotangent, partition=partition)


def _pullbacks_transpose(cotangents, coords, points, owner, radii, kept, cotangent, *, partition):
    known = (coords, points, owner, radii, kept)
    assert not any(ad.is_undefined_primal(x) for x in known) and ad.is_undefined_primal(cotangent)
    rates = [_dense(c) for c in cotangents]
    return [None] * 5 + [_rates.bind(*known, *rates, partition=partition)]


ad.primitive_jvps[_fractions] = _fractions_jvp
ad.primitive_jvps[_fractions_kept] = _fractions_kept_jvp
ad.primitive_jvps[_rates] = _rates_jvp
ad.primitive_jvps[_pullbacks] = _pullbacks_jvp
ad.primitive_transposes[_rates] = _rates_transpose
ad.primitive_transposes[_pullbacks] = _pullbacks_transpose
