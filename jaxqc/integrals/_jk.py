r"""Direct J and K of one molecule as JAX primitives with fast kernels for values and first derivatives.

- `jk`: densities to $J$ and $K$;
- `jk_move`: the change of $J$ and $K$ when the shell centres move at fixed densities, linear in the move;
- `jk_gradient`: $g_{sx} = \partial_{sx} \sum_n [\mathrm{tr} P^J_n J(D_n) + \mathrm{tr} P^K_n K(D_n)]$, the transpose of
  `jk_move`.

`jk` and `jk_gradient` are compiled kernels; `jk_move`, and whatever differentiates with respect to exponents,
coefficients or twice with respect to the centres, runs through the general contractions of `_contraction`.
All matrices are over the molecule's own functions, spherical or Cartesian. The last operand of each primitive says
which part of the work it does, of so many `parts`: the sum over all parts is the result. General contractions are not
taken apart; each part then is an equal share of the result.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from jaxqc._parallel import sum_of_parts
from jaxqc._platform import lower_on_cuda
from jaxqc._primitive import install, on_host, zero_tangent
from jaxqc.integrals._contraction import contract
from jaxqc.integrals._library import handler
from jaxqc.integrals._shells import ShellList, cartesian_offsets, cartesian_to_spherical, spherical_offsets

_jk = Primitive("jaxqc_jk")
_jk.multiple_results = True
_move = Primitive("jaxqc_jk_move")
_move.multiple_results = True
_gradient = Primitive("jaxqc_jk_gradient")

# Threshold of the general contractions relative to that of the kernels: they do not screen with density blocks.
_GENERAL = 1e-1
# What derivatives with respect to the density change: tangents may be asymmetric, and are in double precision.
_DERIVATIVE = {"symmetric": False, "mixed": False}


def jk(
    shells: ShellList,
    density: jax.Array,
    *,
    cart,
    coulomb,
    exchange,
    omega,
    threshold,
    symmetric=False,
    mixed=False,
    mesh=None,
) -> list[jax.Array]:
    """J and K, each (n, nao, nao), or (0, nao, nao) where not asked for; density (n, nao, nao).

    `symmetric` promises that the densities are symmetric; `mixed` lets GPUs compute small integrals in single
    precision, derivatives excepted; the devices of `mesh` share the work.
    """
    parameters = dict(
        layout=(shells.ls, shells.nprims),
        cart=cart,
        coulomb=coulomb,
        exchange=exchange,
        omega=omega,
        threshold=threshold,
        symmetric=symmetric,
        mixed=mixed,
    )

    def local(part, parts, *operands):
        return _jk.bind(*operands, part, parts=parts, **parameters)

    return sum_of_parts(local, mesh, shells.centers, shells.exponents, shells.coefficients, density)


def nao_of(ls: tuple[int, ...], cart: bool) -> int:
    """Number of functions of the shells `ls`."""
    return int((cartesian_offsets(ls) if cart else spherical_offsets(ls))[-1])


def _to_cartesian(ls, cart, x):
    """A matrix over the molecule's functions carried to the Cartesian ones (as a density is), on the last two axes."""
    if cart:
        return x
    back = cartesian_to_spherical(ls).transpose
    return back(back(x, -1), -2)


def _from_cartesian(ls, cart, x):
    """A Cartesian matrix of integrals carried to the molecule's functions, on the last two axes."""
    if cart:
        return x
    forward = cartesian_to_spherical(ls)
    return forward(forward(x, -1), -2)


def _empty(density):
    return jnp.zeros((0, *density.shape[1:]), density.dtype)


def by_range(function):
    """Of sums over integrals of 1/r or erf(omega r)/r: omega < 0 gives those of erfc(|omega| r)/r, their difference."""

    @functools.wraps(function)
    def of_any(*operands, omega, **parameters):
        if omega >= 0.0:
            return function(*operands, omega=omega, **parameters)
        full, long = (function(*operands, omega=w, **parameters) for w in (0.0, -omega))
        return jax.tree.map(jnp.subtract, full, long)

    return of_any


@by_range
def _general(
    centers, exponents, coefficients, density, part, *, layout, cart, coulomb, exchange, omega, threshold, parts, **_
):
    """J and K through the general contractions: slow, differentiable with respect to everything."""
    shells = ShellList(layout[0], layout[1], centers, exponents, coefficients)
    lists = (shells,) * 4
    x = _to_cartesian(layout[0], cart, density)
    cut = _GENERAL * threshold
    j = _from_cartesian(layout[0], cart, contract("j", lists, x, omega, cut)) if coulomb else _empty(density)
    k = _from_cartesian(layout[0], cart, contract("k", lists, x, omega, cut)) if exchange else _empty(density)
    return [j / parts, k / parts]


def _general_move(centers, exponents, coefficients, density, change, part, **parameters):
    """The derivative of `_general` along a change of the centres."""

    def build(c):
        return _general(c, exponents, coefficients, density, part, **parameters)

    return jax.jvp(build, (centers,), (change,))[1]


def _general_gradient(centers, exponents, coefficients, density, weight_j, weight_k, part, **parameters):
    """The transpose of `_general_move`."""

    def move(change):
        return _general_move(centers, exponents, coefficients, density, change, part, **parameters)

    (gradient,) = jax.linear_transpose(move, centers)([weight_j, weight_k])
    return gradient


def _attributes(*, layout, cart, coulomb, exchange, omega, threshold, parts, **_):
    return {
        "ls": np.asarray(layout[0], np.int32),
        "nprims": np.asarray(layout[1], np.int32),
        "cart": bool(cart),
        "coulomb": bool(coulomb),
        "exchange": bool(exchange),
        "omega": np.float64(omega),
        "threshold": np.float64(threshold),
        "parts": np.int32(parts),
    }


def _jk_shapes(density, coulomb, exchange):
    n, nao, _ = density.shape
    return [(n if wanted else 0, nao, nao) for wanted in (coulomb, exchange)]


@by_range
def _jk_call(*operands, **parameters):
    shapes = _jk_shapes(operands[3], parameters["coulomb"], parameters["exchange"])
    call = jax.ffi.ffi_call(
        handler("jaxqc_jk"), [jax.ShapeDtypeStruct(s, jnp.float64) for s in shapes], vmap_method="sequential"
    )
    return call(operands[-1], *operands[:-1], **_attributes(**parameters))


@by_range
def _gradient_call(*operands, **parameters):
    call = jax.ffi.ffi_call(
        handler("jaxqc_jk_gradient"), jax.ShapeDtypeStruct(operands[0].shape, jnp.float64), vmap_method="sequential"
    )
    return call(operands[-1], *operands[:-1], **_attributes(**parameters))


install(_jk, _jk_call, lambda *o, coulomb, exchange, **_: _jk_shapes(o[3], coulomb, exchange))
lower_on_cuda(_jk, "jaxqc.integrals._cuda_jk", "lowered")
install(
    _move,
    _general_move,
    lambda *o, coulomb, exchange, **_: _jk_shapes(o[3], coulomb, exchange),
    elsewhere=_general_move,
)


def _gradient_shapes(*operands, **_):
    return [operands[0].shape]


install(_gradient, _gradient_call, _gradient_shapes, elsewhere=on_host(_gradient, _gradient_shapes))
lower_on_cuda(_gradient, "jaxqc.integrals._cuda_gradient", "lowered")


def _given(tangents):
    return [None if type(t) is ad.Zero else t for t in tangents]


def _added(values, terms):
    """Sums of lists of tangents; symbolic zeros where there is none."""
    if not terms:
        return [zero_tangent(v) for v in values]
    return [functools.reduce(jnp.add, parts) for parts in zip(*terms, strict=True)]


def _parameter_terms(function, primals, changes, parameters):
    """Tangents of `function` along changes of its first operands (None: no change), through its own JAX code."""
    which = [k for k, change in enumerate(changes) if change is not None]
    if not which:
        return []

    def moved(*values):
        full = list(primals)
        for k, value in zip(which, values, strict=True):
            full[k] = value
        return function(*full, **parameters)

    out = jax.jvp(moved, [primals[k] for k in which], [changes[k] for k in which])[1]
    return [out if isinstance(out, (list, tuple)) else [out]]


def _jk_jvp(primals, tangents, **parameters):
    values = _jk.bind(*primals, **parameters)
    centers, exponents, coefficients, density, _ = _given(tangents)
    *shells, _, part = primals
    terms = []
    if density is not None:
        terms.append(_jk.bind(*shells, density, part, **{**parameters, **_DERIVATIVE}))
    if centers is not None:
        terms.append(_move.bind(*primals[:4], centers, part, **parameters))
    terms += _parameter_terms(_general, primals, [None, exponents, coefficients], parameters)
    return values, _added(values, terms)


def _move_jvp(primals, tangents, **parameters):
    values = _move.bind(*primals, **parameters)
    *shells, density, change, _ = _given(tangents)
    terms = []
    if density is not None:
        terms.append(_move.bind(*primals[:3], density, *primals[4:], **parameters))
    if change is not None:
        terms.append(_move.bind(*primals[:4], change, primals[5], **parameters))
    terms += _parameter_terms(_general_move, primals, shells, parameters)
    return values, _added(values, terms)


def _gradient_jvp(primals, tangents, **parameters):
    value = _gradient.bind(*primals, **parameters)
    *shells, density, weight_j, weight_k, _ = _given(tangents)
    terms = []
    if density is not None:
        terms.append([_gradient.bind(*primals[:3], density, *primals[4:], **parameters)])
    if weight_j is not None or weight_k is not None:
        given = (weight_j, weight_k)
        weights = [jnp.zeros_like(w) if t is None else t for w, t in zip(primals[4:6], given, strict=True)]
        terms.append([_gradient.bind(*primals[:4], *weights, primals[6], **parameters)])
    terms += _parameter_terms(_general_gradient, primals, shells, parameters)
    return value, _added([value], terms)[0]


ad.primitive_jvps[_jk] = _jk_jvp
ad.primitive_jvps[_move] = _move_jvp
ad.primitive_jvps[_gradient] = _gradient_jvp


def _instantiate(cotangent, like):
    return jnp.zeros(like, jnp.float64) if type(cotangent) is ad.Zero else cotangent


def _cotangents(cotangents, density, coulomb, exchange):
    return [_instantiate(c, s) for c, s in zip(cotangents, _jk_shapes(density, coulomb, exchange), strict=True)]


def _self_adjoint(bind, ct_j, ct_k, parameters):
    """J and K are their own transposes: the cotangent of the density, from those of J and K."""
    total = None
    for name, other, ct, place in (("coulomb", "exchange", ct_j, 0), ("exchange", "coulomb", ct_k, 1)):
        if parameters[name]:
            part = bind(ct, {**parameters, other: False})[place]
            total = part if total is None else total + part
    return total


def _jk_transpose(cotangents, centers, exponents, coefficients, density, part, **parameters):
    if not ad.is_undefined_primal(density):
        raise NotImplementedError("J and K are linear in the density only.")
    aval = density.aval
    ct_j, ct_k = _cotangents(cotangents, aval, parameters["coulomb"], parameters["exchange"])
    shells = (centers, exponents, coefficients)
    general = {**parameters, **_DERIVATIVE}
    total = _self_adjoint(lambda ct, p: _jk.bind(*shells, ct, part, **p), ct_j, ct_k, general)
    return [None, None, None, ad.Zero(aval) if total is None else total, None]


def _move_transpose(cotangents, centers, exponents, coefficients, density, change, part, **parameters):
    shells = (centers, exponents, coefficients)
    if ad.is_undefined_primal(density):
        aval = density.aval
        cts = _cotangents(cotangents, aval, parameters["coulomb"], parameters["exchange"])
        total = _self_adjoint(lambda ct, p: _move.bind(*shells, ct, change, part, **p), cts[0], cts[1], parameters)
        return [None, None, None, ad.Zero(aval) if total is None else total, None, None]
    cts = _cotangents(cotangents, density, parameters["coulomb"], parameters["exchange"])
    return [None, None, None, None, _gradient.bind(*shells, density, *cts, part, **parameters), None]


def _gradient_transpose(cotangent, centers, exponents, coefficients, density, weight_j, weight_k, part, **parameters):
    shells = (centers, exponents, coefficients)
    if type(cotangent) is ad.Zero:
        return [None] * 7
    if ad.is_undefined_primal(density):
        total = _self_adjoint(
            lambda ct, p: _move.bind(*shells, ct, cotangent, part, **p), weight_j, weight_k, parameters
        )
        return [None, None, None, ad.Zero(density.aval) if total is None else total, None, None, None]
    j, k = _move.bind(*shells, density, cotangent, part, **parameters)
    return [
        None,
        None,
        None,
        None,
        j if ad.is_undefined_primal(weight_j) else None,
        k if ad.is_undefined_primal(weight_k) else None,
        None,
    ]


ad.primitive_transposes[_jk] = _jk_transpose
ad.primitive_transposes[_move] = _move_transpose
ad.primitive_transposes[_gradient] = _gradient_transpose
