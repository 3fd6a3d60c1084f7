"""Constant sparse linear maps along one axis of an array, as a linear JAX primitive."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@dataclasses.dataclass(frozen=True, eq=False)
class AxisMap:
    r"""A constant sparse linear map along one axis of an array.

    $y_i = \sum_t w_{ti} x_{k_{ti}}$. Entries that are not needed have weight 0.

    **Arguments:**

    - `indices`: the $k_{ti}$, integers, shape `(nterm, nout)`.
    - `weights`: the $w_{ti}$, shape `(nterm, nout)`.
    - `nin`: length of the axis the map acts on.
    """

    indices: np.ndarray
    weights: np.ndarray
    nin: int

    @property
    def nout(self) -> int:
        """Length of the axis after the map."""
        return self.indices.shape[1]

    @classmethod
    def take(cls, indices: np.ndarray, nin: int) -> "AxisMap":
        """The map with $y_i = x_{indices_i}$."""
        return cls(np.asarray(indices, np.int32)[None], np.ones((1, len(indices))), nin)

    @classmethod
    def from_entries(cls, out: np.ndarray, source: np.ndarray, weight: np.ndarray, nout: int, nin: int) -> "AxisMap":
        """The map with $y_{out} += weight x_{source}$ for each entry."""
        out, source, weight = np.asarray(out, int), np.asarray(source, int), np.asarray(weight, float)
        order = np.argsort(out, kind="stable")
        out, source, weight = out[order], source[order], weight[order]
        counts = np.bincount(out, minlength=nout)
        nterm = int(counts.max(initial=1))
        term = np.arange(len(out)) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = np.zeros((nterm, nout), np.int32)
        weights = np.zeros((nterm, nout))
        indices[term, out] = source
        weights[term, out] = weight
        return cls(indices, weights, nin)

    @functools.cached_property
    def transpose(self) -> "AxisMap":
        """The transposed map."""
        term, out = np.nonzero(self.weights)
        source = self.indices[term, out]
        return AxisMap.from_entries(source, out, self.weights[term, out], self.nin, self.nout)

    @functools.cached_property
    def is_identity(self) -> bool:
        """Whether the map changes nothing."""
        same = self.indices.shape == (1, self.nin) and np.array_equal(self.indices[0], np.arange(self.nin))
        return same and bool(np.all(self.weights == 1))

    def __call__(self, array: jax.Array, axis: int) -> jax.Array:
        """Applies the map along `axis`, of length `nin`, which gets the length `nout`."""
        if array.shape[axis] != self.nin:
            raise ValueError(
                f"Axis {axis} of an array of shape {array.shape} must have length {self.nin} to be mapped."
            )
        return array if self.is_identity else _primitive.bind(array, map=self, axis=axis % array.ndim)


_MAX_UNROLLED = 6

_primitive = Primitive("jaxqc_axis_map")


def _apply(array: jax.Array, *, map: AxisMap, axis: int) -> jax.Array:
    before = (slice(None),) * axis
    shape = (1,) * axis + (-1,) + (1,) * (array.ndim - axis - 1)
    if len(map.indices) > _MAX_UNROLLED:
        # One gather and one reduction compile faster than a long sum.
        terms = array.at[(*before, map.indices)].get(mode="promise_in_bounds")
        weights = map.weights.reshape((1,) * axis + map.weights.shape + (1,) * (array.ndim - axis - 1))
        return jnp.sum(terms * jnp.asarray(weights, array.dtype), axis=axis)
    terms = []
    for indices, weights in zip(map.indices, map.weights, strict=True):
        term = array.at[(*before, indices)].get(mode="promise_in_bounds")
        terms.append(term if np.all(weights == 1) else term * jnp.asarray(weights.reshape(shape), array.dtype))
    return functools.reduce(jnp.add, terms)


@functools.lru_cache(maxsize=256)
def _compiled(map: AxisMap, axis: int):
    return jax.jit(functools.partial(_apply, map=map, axis=axis))


@_primitive.def_impl
def _impl(array, *, map, axis):
    return _compiled(map, axis)(array)


@_primitive.def_abstract_eval
def _abstract(array, *, map, axis):
    return ShapedArray((*array.shape[:axis], map.nout, *array.shape[axis + 1 :]), array.dtype)


def _transpose(cotangent, array, *, map, axis):
    if type(cotangent) is ad.Zero:
        return [ad.Zero(array.aval)]
    return [map.transpose(cotangent, axis)]


def _batch(operands, axes, *, map, axis):
    (array,), (batch_axis,) = operands, axes
    return map(jnp.moveaxis(array, batch_axis, 0), axis + 1), 0


# Gathers only: JAX's own transpose of a gather is a scatter, which is slow on a CPU both to compile and to run.
mlir.register_lowering(_primitive, mlir.lower_fun(_apply, multiple_results=False))
ad.deflinear2(_primitive, _transpose)
batching.primitive_batchers[_primitive] = _batch
