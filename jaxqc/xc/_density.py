r"""Density, its gradient and the kinetic energy density on a grid, linear in the density matrix, and the transpose.

With geometry $G$ (shells, points, row lists), symmetric matrices $D$ and cotangents $c$ of the features:

- `density`: $R_G D = (\rho, \nabla\rho, \tau)$, shape `(nset, ncomp, n)`;
- `potential`: $R_G^T c$, symmetric matrices;
- `gradient`: $\partial_G \langle c, R_G D \rangle$ with respect to the centres of the shells and to the points;
- `move`, `potential_move`: the changes of `density` and `potential` along a change of centres and points.

All are compiled kernels on the CPU, the first three on GPUs; derivatives with respect to exponents and coefficients, or
twice with respect to $G$, run through plain JAX (`_oracle`). Every primitive is linear in each of $D$, $c$ and the
change, and each transposes to another of them, so that every mode of differentiation stays on compiled kernels.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxqc._primitive import install, sequential_batch, zero_tangent
from jaxqc.integrals._jk import nao_of
from jaxqc.integrals._library import handler
from jaxqc.integrals._shells import ShellList
from jaxqc.molecule import Molecule
from jaxqc.xc import _oracle
from jaxqc.xc._cells import Layout, layout_key, shells_of
from jaxqc.xc._cuda_rules import lower_on_cuda
from jaxqc.xc._features_type import COMPONENTS

_density = Primitive("jaxqc_xc_density")
_potential = Primitive("jaxqc_xc_potential")
_move = Primitive("jaxqc_xc_move")
_potential_move = Primitive("jaxqc_xc_potential_move")
_gradient = Primitive("jaxqc_xc_gradient")
_gradient.multiple_results = True

# Operands: centres, exponents, coefficients, points, weights, the six arrays of the `RowLists` for densities and the
# six of those for potentials (the same on the CPU); then the linear ones.
_GEOMETRY = 17
_DENSITY_LISTS, _POTENTIAL_LISTS = slice(5, 11), slice(11, 17)
_CENTERS, _POINTS = 0, 3
_DIFFERENTIABLE = (0, 1, 2, 3)


def density_features(
    mol: Molecule | ShellList, layout: Layout, density: jax.Array, kind: str, *, cart: bool | None = None
) -> jax.Array:
    r"""Density, its gradient and the kinetic energy density at the points of a layout.

    $\rho = \sum \phi_\mu D_{\mu\nu} \phi_\nu$, $\nabla\rho$, $\tau = \frac12 \sum_k \partial_k\phi D \partial_k\phi$
    with the symmetric part of each density matrix. Linear in `density`; differentiable in it, in the molecule and in
    the points of the layout. Rows of points whose weights are all 0 give 0.

    **Arguments:**

    - `mol`: the molecule, or a `ShellList` with `cart`.
    - `layout`: from `build_layout`, for this molecule.
    - `density`: shape `(nset, nao, nao)`; electrons.
    - `kind`: "lda" (rho), "gga" (rho and its gradient) or "mgga" (these and tau).

    **Returns:** shape `(nset, ncomp, n)` with `ncomp` 1, 4 or 5, in the order of `layout.points`; electrons/Bohr³,
    electrons/Bohr⁴, Hartree/Bohr³.
    """
    shells, cart = shells_of(mol, cart)
    parameters = _parameters(shells, cart, layout, COMPONENTS[kind])
    return _density.bind(*_geometry(shells, layout), _symmetric(density), **parameters)


def potential_matrix(
    mol: Molecule | ShellList, layout: Layout, cotangent: jax.Array, *, cart: bool | None = None
) -> jax.Array:
    r"""The transpose of `density_features`: $V$ with $\langle V, D \rangle = \langle c, R D \rangle$.

    **Arguments:** as of `density_features`; `cotangent`: shape `(nset, ncomp, n)`, weights included.

    **Returns:** symmetric, shape `(nset, nao, nao)`.
    """
    shells, cart = shells_of(mol, cart)
    parameters = _parameters(shells, cart, layout, cotangent.shape[1])
    return _potential.bind(*_geometry(shells, layout), cotangent, **parameters)


def _geometry(shells: ShellList, layout: Layout):
    arrays = (layout.weights, *layout.density.arrays, *layout.potential.arrays)
    fixed = jax.tree.map(jax.lax.stop_gradient, arrays)
    return (shells.centers, shells.exponents, shells.coefficients, layout.points, *fixed)


def _parameters(shells, cart, layout, ncomp):
    if layout.shells != layout_key(shells, cart):
        raise ValueError(
            "The Layout was built for other shells than those of this molecule: another basis set, other atoms, or "
            "another order of them. Build it with jaxqc.xc.build_layout for this molecule."
        )
    return {
        "layout": (shells.ls, shells.nprims),
        "cart": cart,
        "row": layout.density.row,
        "epsilon": layout.epsilon,
        "ncomp": ncomp,
    }


def _symmetric(matrix):
    return 0.5 * (matrix + jnp.swapaxes(matrix, 1, 2))


def _feature_shape(operands, matrix, ncomp):
    return (matrix.shape[0], ncomp, operands[_POINTS].shape[0])


def _matrix_shape(features, layout, cart):
    nao = nao_of(layout[0], cart)
    return (features.shape[0], nao, nao)


# Plain JAX for what has no kernel.


def _general_density(*operands, layout, cart, row, epsilon, ncomp):
    shells = ShellList(layout[0], layout[1], *operands[:3])
    return _oracle.features(shells, operands[_POINTS], operands[_GEOMETRY], cart=cart, ncomp=ncomp)


def _general_potential(*operands, **parameters):
    *geometry, cotangent = operands
    like = jnp.zeros(_matrix_shape(cotangent, parameters["layout"], parameters["cart"]))
    _, transpose = jax.vjp(lambda d: _general_density(*geometry, d, **parameters), like)
    return _symmetric(transpose(cotangent)[0])


def _moved(function, operands, changes, **parameters):
    """The derivative of `function` along changes of centres and points."""

    def at(centers, points):
        return function(centers, *operands[1:_POINTS], points, *operands[_POINTS + 1 :], **parameters)

    return jax.jvp(at, (operands[_CENTERS], operands[_POINTS]), changes)[1]


def _general_move(*operands, **parameters):
    return _moved(_general_density, operands[:-2], tuple(operands[-2:]), **parameters)


def _general_potential_move(*operands, **parameters):
    return _moved(_general_potential, operands[:-2], tuple(operands[-2:]), **parameters)


def _general_gradient(*operands, **parameters):
    *rest, cotangent = operands

    def at(centers, points):
        return _general_density(centers, *rest[1:_POINTS], points, *rest[_POINTS + 1 :], **parameters)

    return list(jax.vjp(at, rest[_CENTERS], rest[_POINTS])[1](cotangent))


# Compiled kernels.


def _call(target, lists, shapes, operands, layout, cart, row, epsilon, ncomp):
    results = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float64), shapes, is_leaf=lambda s: type(s) is tuple)
    call = jax.ffi.ffi_call(handler(target), results, vmap_method="sequential")
    return call(
        *operands[:5],
        *operands[lists],
        *operands[_GEOMETRY:],
        ls=np.asarray(layout[0], np.int32),
        nprims=np.asarray(layout[1], np.int32),
        cart=bool(cart),
        row=np.int64(row),
        ncomp=np.int64(ncomp),
        epsilon=np.float64(epsilon),
    )


def _density_call(*operands, target="jaxqc_xc_density", **parameters):
    shape = _feature_shape(operands, operands[_GEOMETRY], parameters["ncomp"])
    return _call(target, _DENSITY_LISTS, shape, operands, **parameters)


def _potential_call(*operands, target="jaxqc_xc_potential", **parameters):
    shape = _matrix_shape(operands[_GEOMETRY], parameters["layout"], parameters["cart"])
    return _call(target, _POTENTIAL_LISTS, shape, operands, **parameters)


_move_call = functools.partial(_density_call, target="jaxqc_xc_move")
_potential_move_call = functools.partial(_potential_call, target="jaxqc_xc_potential_move")


def _gradient_call(*operands, **parameters):
    shapes = [operands[_CENTERS].shape, operands[_POINTS].shape]
    return _call("jaxqc_xc_gradient", _DENSITY_LISTS, shapes, operands, **parameters)


def _features_of(*operands, ncomp, **_):
    return [_feature_shape(operands, operands[_GEOMETRY], ncomp)]


def _matrices_of(*operands, layout, cart, **_):
    return [_matrix_shape(operands[_GEOMETRY], layout, cart)]


install(_density, _density_call, _features_of)
install(_potential, _potential_call, _matrices_of)
install(_move, _move_call, _features_of)
install(_potential_move, _potential_move_call, _matrices_of)
install(_gradient, _gradient_call, lambda *o, **_: [o[_CENTERS].shape, o[_POINTS].shape])
for _primitive in (_density, _potential, _gradient):
    lower_on_cuda(_primitive)
for _primitive, _general in ((_move, _general_move), (_potential_move, _general_potential_move)):
    lower_on_cuda(_primitive)  # there is no such kernel yet:
    mlir.register_lowering(_primitive, mlir.lower_fun(_general, multiple_results=False), platform="cuda")


def _batch_sets(primitive):
    """Many densities in one call where only they are batched; one call after the other where the geometry is."""
    one_by_one = sequential_batch(primitive)

    def rule(operands, axes, **parameters):
        *_, last = operands
        if any(axis is not None for axis in axes[:-1]):
            return one_by_one(operands, axes, **parameters)
        last = jnp.moveaxis(last, axes[-1], 0)
        flat = last.reshape(-1, *last.shape[2:])
        out = primitive.bind(*operands[:-1], flat, **parameters)
        return out.reshape(*last.shape[:2], *out.shape[1:]), 0

    batching.primitive_batchers[primitive] = rule


_batch_sets(_density)
_batch_sets(_potential)


# Derivative rules.


def _given(tangents):
    return [None if type(t) is ad.Zero else t for t in tangents]


def _filled(values, tangents):
    """Tangents of a pair as arrays, or None where neither is given."""
    if all(t is None for t in tangents):
        return None
    return [jnp.zeros_like(v) if t is None else t for v, t in zip(values, tangents, strict=True)]


def _general_terms(function, primals, tangents, which, parameters):
    """Tangents of `function` along changes of the operands `which`, through its own JAX code."""
    which = [k for k in which if tangents[k] is not None]
    if not which:
        return []

    def at(*values):
        full = list(primals)
        for k, value in zip(which, values, strict=True):
            full[k] = value
        return function(*full, **parameters)

    return [jax.jvp(at, [primals[k] for k in which], [tangents[k] for k in which])[1]]


def _added(value, terms):
    if not terms:
        return jax.tree.map(zero_tangent, value)
    return functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), terms)


def _linear_jvp(primitive, mover, general):
    """Of `density` and `potential`: linear in the last operand, moved by centres and points."""

    def rule(primals, tangents, **parameters):
        value = primitive.bind(*primals, **parameters)
        given = _given(tangents)
        terms = []
        if given[-1] is not None:
            terms.append(primitive.bind(*primals[:-1], given[-1], **parameters))
        change = _filled((primals[_CENTERS], primals[_POINTS]), (given[_CENTERS], given[_POINTS]))
        if change is not None:
            terms.append(mover.bind(*primals, *change, **parameters))
        terms += _general_terms(general, primals, given, (1, 2), parameters)
        return value, _added(value, terms)

    ad.primitive_jvps[primitive] = rule


def _move_jvp(primitive, general):
    """Of `move` and `potential_move`: linear in the matrices or cotangents, and in the change."""

    def rule(primals, tangents, **parameters):
        value = primitive.bind(*primals, **parameters)
        given = _given(tangents)
        terms = []
        if given[_GEOMETRY] is not None:
            terms.append(primitive.bind(*primals[:_GEOMETRY], given[_GEOMETRY], *primals[-2:], **parameters))
        change = _filled(primals[-2:], given[-2:])
        if change is not None:
            terms.append(primitive.bind(*primals[:-2], *change, **parameters))
        terms += _general_terms(general, primals, given, _DIFFERENTIABLE, parameters)
        return value, _added(value, terms)

    ad.primitive_jvps[primitive] = rule


def _gradient_jvp(primals, tangents, **parameters):
    value = _gradient.bind(*primals, **parameters)
    given = _given(tangents)
    terms = []
    if given[-2] is not None:
        terms.append(_gradient.bind(*primals[:-2], given[-2], primals[-1], **parameters))
    if given[-1] is not None:
        terms.append(_gradient.bind(*primals[:-1], given[-1], **parameters))
    terms += _general_terms(_general_gradient, primals, given, _DIFFERENTIABLE, parameters)
    return value, _added(value, terms)


_linear_jvp(_density, _move, _general_density)
_linear_jvp(_potential, _potential_move, _general_potential)
_move_jvp(_move, _general_move)
_move_jvp(_potential_move, _general_potential_move)
ad.primitive_jvps[_gradient] = _gradient_jvp

_undefined = ad.is_undefined_primal


def _linear_transpose(primitive, other, prepare):
    """`density` and `potential` are each other's transposes."""

    def rule(cotangent, *operands, **parameters):
        *geometry, last = operands
        if type(cotangent) is ad.Zero:
            return [None] * _GEOMETRY + [ad.Zero(last.aval)]
        return [None] * _GEOMETRY + [other.bind(*geometry, prepare(cotangent), **parameters)]

    ad.primitive_transposes[primitive] = rule


def _move_transpose(primitive, other, prepare, order):
    """With respect to the matrices or cotangents: the other mover; with respect to the change: `gradient`."""

    def rule(cotangent, *operands, **parameters):
        geometry, (operand, *change) = operands[:_GEOMETRY], operands[_GEOMETRY:]
        nones = [None] * _GEOMETRY
        if type(cotangent) is ad.Zero:
            return nones + [ad.Zero(x.aval) if _undefined(x) else None for x in (operand, *change)]
        cotangent = prepare(cotangent)
        if _undefined(operand):
            return [*nones, other.bind(*geometry, cotangent, *change, **parameters), None, None]
        both = _gradient.bind(*geometry, *order(operand, cotangent), **parameters)
        return [*nones, None, *[g if _undefined(x) else None for g, x in zip(both, change, strict=True)]]

    ad.primitive_transposes[primitive] = rule


def _gradient_transpose(cotangents, *operands, **parameters):
    geometry, (matrix, features) = operands[:_GEOMETRY], operands[_GEOMETRY:]
    likes = (operands[_CENTERS], operands[_POINTS])
    change = [jnp.zeros_like(v) if type(c) is ad.Zero else c for c, v in zip(cotangents, likes, strict=True)]
    nones = [None] * _GEOMETRY
    if _undefined(matrix):
        return [*nones, _potential_move.bind(*geometry, features, *change, **parameters), None]
    return [*nones, None, _move.bind(*geometry, matrix, *change, **parameters)]


def _as_is(x):
    return x


_linear_transpose(_density, _potential, _as_is)
_linear_transpose(_potential, _density, _symmetric)
_move_transpose(_move, _potential_move, _as_is, lambda matrix, features: (matrix, features))
_move_transpose(_potential_move, _move, _symmetric, lambda features, matrix: (matrix, features))
ad.primitive_transposes[_gradient] = _gradient_transpose
