r"""One-electron integrals as one JAX primitive, closed under differentiation.

The primitive takes two shell lists $A$, $B$ (or one list for both) and the parameters of an operator, and gives

- `multipole` (origin $O$): $(a | (x-O_x)^i (y-O_y)^j (z-O_z)^k | b)$, $i + j + k$ = order; shape `(ncomp, nA, nB)`;
- `kinetic` (no parameters): $(a | -\nabla^2/2 | b)$; shape `(nA, nB)`;
- `nuclear` (points $C$, weights $w$): $\sum_{Cn} w_{Cn} (a | \partial_C^n |r-C|^{-1} | b)$; shape `(nA, nB)`;
- `weights` (points $C$, matrix $G$): $\sum_{ab} G_{ab} (a | \partial_C^n |r-C|^{-1} | b)$; shape `(npoint, ncomp)`;

with $n$ running over the `ncomp` Cartesian components of a static order. All functions are Cartesian.
Derivatives with respect to shells use derivative shells (`_derivative_shells`), with respect to the points the next
order of the same operator; `nuclear` and `weights` are each other's transposes. So every derivative is made of the same
four kinds.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from jaxqc._platform import lower_on_cuda
from jaxqc._primitive import install, zero_tangent
from jaxqc.integrals._axis_map import AxisMap
from jaxqc.integrals._derivative_shells import shell_tangents
from jaxqc.integrals._library import cpu_handler
from jaxqc.integrals._shells import (
    ShellList,
    cartesian_index,
    cartesian_powers,
    cartesian_size,
)

MAX_DEGREE = 40  # kBoysMaxOrder of the kernels: sum of the angular momenta and of the order of the operator

_HANDLERS = {
    "multipole": "jaxqc_multipole",
    "kinetic": "jaxqc_kinetic",
    "nuclear": "jaxqc_nuclear",
    "weights": "jaxqc_nuclear_weights",
}

_primitive = Primitive("jaxqc_one_electron")

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # ls, nprims


def integrals(kind: str, order: int, first: ShellList, second: ShellList | None, *parameters: jax.Array) -> jax.Array:
    """Integrals of one kind and order over two shell lists; `second` None means the first list again.

    **Arguments:** see the table of the module; `parameters` are the operator's.

    **Raises:** `ValueError` when the angular momenta are too high for the kernels.
    """
    other = first if second is None else second
    if kind in ("nuclear", "weights") and max(first.ls) + max(other.ls) + order > MAX_DEGREE:
        raise ValueError(
            f"Nuclear attraction integrals need l_a + l_b + derivative order <= {MAX_DEGREE}, but "
            f"l_a = {max(first.ls)}, l_b = {max(other.ls)}, order = {order}. Use a lower derivative or a smaller basis."
        )
    operands = [first.centers, first.exponents, first.coefficients]
    if second is not None:
        operands += [second.centers, second.exponents, second.coefficients]
    layout = None if second is None else (second.ls, second.nprims)
    return _primitive.bind(
        *operands, *parameters, kind=kind, order=order, first=(first.ls, first.nprims), second=layout
    )


def _split(operands, first: Layout, second: Layout | None):
    """The flat operands as first list, second list (or None), operator parameters."""
    a = ShellList(*first, *operands[:3])
    if second is None:
        return a, None, tuple(operands[3:])
    return a, ShellList(*second, *operands[3:6]), tuple(operands[6:])


def _shape(operands, kind: str, order: int, first: Layout, second: Layout | None) -> tuple[int, ...]:
    na = sum(cartesian_size(l) for l in first[0])
    nb = na if second is None else sum(cartesian_size(l) for l in second[0])
    if kind == "multipole":
        return (cartesian_size(order), na, nb)
    if kind == "weights":
        points = operands[3 if second is None else 6]
        return (points.shape[0], cartesian_size(order))
    return (na, nb)


def _call(*operands, kind, order, first, second):
    symmetric = second is None
    lists = (*operands[:3], *operands[:3]) if symmetric else operands[:6]
    parameters = operands[3:] if symmetric else operands[6:]
    shape = _shape(operands, kind, order, first, second)
    other = first if symmetric else second
    attributes: dict[str, Any] = {
        "a_ls": np.asarray(first[0], np.int32),
        "a_nprims": np.asarray(first[1], np.int32),
        "b_ls": np.asarray(other[0], np.int32),
        "b_nprims": np.asarray(other[1], np.int32),
        "symmetric": symmetric,
    }
    if kind != "kinetic":
        attributes["order"] = np.int64(order)
    call = jax.ffi.ffi_call(
        cpu_handler(_HANDLERS[kind]), jax.ShapeDtypeStruct(shape, jnp.float64), vmap_method="sequential"
    )
    return call(*lists, *parameters, **attributes)


install(_primitive, _call, lambda *operands, **parameters: [_shape(operands, **parameters)])
lower_on_cuda(_primitive, "jaxqc.integrals._cuda_one_electron", "one_electron")


@functools.cache
def _raise_map(order: int) -> AxisMap:
    """From components (n, x) of a product, n of `order`, to the components n + e_x of `order + 1`."""
    out, source = [], []
    for n, powers in enumerate(cartesian_powers(order)):
        for axis in range(3):
            raised = list(powers)
            raised[axis] += 1
            out.append(cartesian_index((raised[0], raised[1], raised[2])))
            source.append(3 * n + axis)
    nin = 3 * cartesian_size(order)
    return AxisMap.from_entries(np.array(out), np.array(source), np.ones(nin), cartesian_size(order + 1), nin)


@functools.cache
def _lower_map(order: int) -> AxisMap:
    """From monomials of `order - 1` to the derivatives of those of `order`, ordered as (n, x)."""
    out, source, weight = [], [], []
    for n, powers in enumerate(cartesian_powers(order)):
        for axis in range(3):
            if powers[axis]:
                lowered = list(powers)
                lowered[axis] -= 1
                out.append(3 * n + axis)
                source.append(cartesian_index((lowered[0], lowered[1], lowered[2])))
                weight.append(powers[axis])
    return AxisMap.from_entries(
        np.array(out), np.array(source), np.array(weight), 3 * cartesian_size(order), cartesian_size(order - 1)
    )


def _shell_terms(kind, order, a, b, parameters, changes_a, changes_b):
    """The parts of the tangent that come from changes of the shells."""
    if kind == "weights":
        points, matrix = parameters
        if b is None:
            matrix = matrix + matrix.T
        for change in shell_tangents(a, *changes_a):
            yield integrals(kind, order, change.shells, a if b is None else b, points, change.expand(matrix, 0))
        if b is not None:
            for change in shell_tangents(b, *changes_b):
                yield integrals(kind, order, a, change.shells, points, change.expand(matrix, 1))
        return
    for change in shell_tangents(a, *changes_a):
        part = change.contract(integrals(kind, order, change.shells, a if b is None else b, *parameters), -2)
        yield part + jnp.swapaxes(part, -1, -2) if b is None else part
    if b is not None:
        for change in shell_tangents(b, *changes_b):
            yield change.contract(integrals(kind, order, a, change.shells, *parameters), -1)


def _operator_terms(kind, order, a, b, parameters, changes):
    """The parts of the tangent that come from changes of the operator's parameters."""
    if kind == "multipole" and changes[0] is not None and order > 0:
        lower = _lower_map(order)(integrals(kind, order - 1, a, b, *parameters), 0)
        lower = lower.reshape(-1, 3, *lower.shape[1:])
        yield -jnp.einsum("nxab,x->nab", lower, changes[0])
    if kind not in ("nuclear", "weights"):
        return
    points, operand = parameters
    if changes[0] is not None:
        if kind == "nuclear":
            product = operand[:, :, None] * changes[0][:, None, :]
            raised = _raise_map(order)(product.reshape(len(points), -1), 1)
            yield integrals(kind, order + 1, a, b, points, raised)
        else:
            higher = integrals(kind, order + 1, a, b, points, operand)
            parts = _raise_map(order).transpose(higher, 1).reshape(len(points), -1, 3)
            yield jnp.einsum("cnx,cx->cn", parts, changes[0])
    if changes[1] is not None:
        yield integrals(kind, order, a, b, points, changes[1])


def _jvp(primals, tangents, *, kind, order, first, second):
    value = _primitive.bind(*primals, kind=kind, order=order, first=first, second=second)
    a, b, parameters = _split(primals, first, second)
    changes = [None if type(t) is ad.Zero else t for t in tangents]
    changes_b = changes[3:6] if b is not None else None
    operator_changes = changes[3:] if b is None else changes[6:]
    terms = [
        *_shell_terms(kind, order, a, b, parameters, changes[:3], changes_b),
        *_operator_terms(kind, order, a, b, parameters, operator_changes),
    ]
    if not terms:
        return value, zero_tangent(value)
    return value, functools.reduce(jnp.add, terms)


ad.primitive_jvps[_primitive] = _jvp


def _transpose(cotangent, *operands, kind, order, first, second):
    """`nuclear` is linear in its weights, `weights` in its matrix; each is the other's transpose."""
    *known, last = operands
    if kind not in ("nuclear", "weights") or any(ad.is_undefined_primal(x) for x in known):
        raise NotImplementedError(f"Integrals of kind {kind!r} are linear only in the last parameter of the operator.")
    assert ad.is_undefined_primal(last)
    if type(cotangent) is ad.Zero:
        return [None] * len(known) + [ad.Zero(last.aval)]
    a, b, (points,) = _split(known, first, second)
    other = "weights" if kind == "nuclear" else "nuclear"
    return [None] * len(known) + [integrals(other, order, a, b, points, cotangent)]


ad.primitive_transposes[_primitive] = _transpose
