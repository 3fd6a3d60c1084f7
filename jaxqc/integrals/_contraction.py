r"""Contractions of electron-repulsion integrals over four shell lists: the general form, closed under differentiation.

| kind  | value                                          | operand X        | shape of the result |
|-------|------------------------------------------------|------------------|---------------------|
| `j`   | $J_{ab} = \sum_{cd} (ab\vert cd) X_{cd}$        | `(n, nC, nD)`    | `(n, nA, nB)`       |
| `k`   | $K_{ac} = \sum_{bd} (ab\vert cd) X_{bd}$        | `(n, nB, nD)`    | `(n, nA, nC)`       |
| `eri` | $(ab\vert cd)$                                  | empty            | `(nA, nB, nC, nD)`  |

The lists are independent and Cartesian. The value is linear in each list and in X, so a derivative with respect to a
parameter of a list is the same contraction over derivative shells (`_derivative_shells`), to every order. This is the
slow path behind the symmetric J/K kernels of `_jk`; it runs on the CPU also where JAX computes on a GPU.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from jaxqc._primitive import install, on_host, zero_tangent
from jaxqc.integrals._derivative_shells import shell_tangents
from jaxqc.integrals._library import cpu_handler
from jaxqc.integrals._shells import ShellList

MAX_SHELL = 9  # kMaxL of the kernels

_KINDS = {"j": 0, "k": 1, "eri": 2}
# Axis of the result or of X that each list runs along: (in the result?, axis).
_AXES = {
    "j": ((True, -2), (True, -1), (False, -2), (False, -1)),
    "k": ((True, -2), (False, -2), (True, -1), (False, -1)),
    "eri": ((True, 0), (True, 1), (True, 2), (True, 3)),
}

_primitive = Primitive("jaxqc_contract")


def contract(kind: str, lists: tuple[ShellList, ...], x: jax.Array, omega: float, threshold: float) -> jax.Array:
    """The contraction `kind` over four lists; see the table of the module.

    **Raises:** `ValueError` when a derivative needs shells beyond the kernels' highest angular momentum.
    """
    highest = max(max(shells.ls) for shells in lists)
    if highest > MAX_SHELL:
        raise ValueError(
            f"This derivative needs shells with l = {highest}, but the two-electron kernels go up to l = {MAX_SHELL}. "
            "Use a lower derivative or a basis without its highest functions."
        )
    operands = [array for shells in lists for array in (shells.centers, shells.exponents, shells.coefficients)]
    layouts = tuple((shells.ls, shells.nprims) for shells in lists)
    return _primitive.bind(*operands, x, kind=kind, layouts=layouts, omega=omega, threshold=threshold)


def _lists(operands, layouts) -> tuple[ShellList, ...]:
    return tuple(ShellList(*layout, *operands[3 * k : 3 * k + 3]) for k, layout in enumerate(layouts))


def _shape(kind, layouts, x) -> tuple[int, ...]:
    sizes = [sum((l + 1) * (l + 2) // 2 for l in ls) for ls, _ in layouts]
    if kind == "eri":
        return tuple(sizes)
    return (x.shape[0], *(n for n, (result, _) in zip(sizes, _AXES[kind], strict=True) if result))


def _call(*operands, kind, layouts, omega, threshold):
    attributes = {}
    for name, (ls, nprims) in zip("abcd", layouts, strict=True):
        attributes[f"{name}_ls"] = np.asarray(ls, np.int32)
        attributes[f"{name}_nprims"] = np.asarray(nprims, np.int32)
    call = jax.ffi.ffi_call(
        cpu_handler("jaxqc_contract"),
        jax.ShapeDtypeStruct(_shape(kind, layouts, operands[-1]), jnp.float64),
        vmap_method="sequential",
    )
    return call(
        *operands, kind=np.int64(_KINDS[kind]), omega=np.float64(omega), threshold=np.float64(threshold), **attributes
    )


def _shapes(*operands, kind, layouts, **_):
    return [_shape(kind, layouts, operands[-1])]


install(_primitive, _call, _shapes, elsewhere=on_host(_primitive, _shapes))


def _jvp(primals, tangents, *, kind, layouts, omega, threshold):
    value = _primitive.bind(*primals, kind=kind, layouts=layouts, omega=omega, threshold=threshold)
    lists, x = _lists(primals, layouts), primals[-1]
    changes = [None if type(t) is ad.Zero else t for t in tangents]
    terms = []
    for k, (in_result, axis) in enumerate(_AXES[kind]):
        for change in shell_tangents(lists[k], *changes[3 * k : 3 * k + 3]):
            replaced = (*lists[:k], change.shells, *lists[k + 1 :])
            if in_result:
                terms.append(change.contract(contract(kind, replaced, x, omega, threshold), axis))
            else:
                terms.append(contract(kind, replaced, change.expand(x, axis), omega, threshold))
    if kind != "eri" and changes[-1] is not None:
        terms.append(contract(kind, lists, changes[-1], omega, threshold))
    if not terms:
        return value, zero_tangent(value)
    return value, functools.reduce(jnp.add, terms)


ad.primitive_jvps[_primitive] = _jvp


def _transpose(cotangent, *operands, kind, layouts, omega, threshold):
    """Linear in X: j transposes to j with bra and ket exchanged, k to k with the functions of each pair exchanged."""
    *known, x = operands
    if kind == "eri" or any(ad.is_undefined_primal(operand) for operand in known):
        raise NotImplementedError("A contraction of integrals is transposed with respect to its density only.")
    nones = [None] * len(known)
    if type(cotangent) is ad.Zero:
        return [*nones, ad.Zero(x.aval)]
    a, b, c, d = _lists(known, layouts)
    lists = (c, d, a, b) if kind == "j" else (b, a, d, c)
    return [*nones, contract(kind, lists, cotangent, omega, threshold)]


ad.primitive_transposes[_primitive] = _transpose
