"""Gradients of J and K on a GPU: derivative integrals contracted with densities where they are made."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import deterministic
from jaxqc.ffi_kernels.rcg.cartesian import ncart, ncomp, nsph
from jaxqc.ffi_kernels.rcg.cuda import HEADER
from jaxqc.ffi_kernels.rcg.cuda_gradient import gradient_header
from jaxqc.gpu import Step, Unit, call, float64, int32, int64, operand, result
from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_jk, _cuda_pairs
from jaxqc.integrals._cuda_classes import Kernel, Pair, Variant
from jaxqc.integrals._cuda_pairs import PairPlan, Pairs
from jaxqc.integrals._jk import by_range
from jaxqc.integrals._tables import rys_table

# Contracted values (e0|f0) up to which one thread takes a quartet: up to there registers suffice.
_REGISTER_SIZE = 18
# Blocks on a multiprocessor that the compiler is asked for: in the lane tier 3 up to these numbers of components (e0|
# and of values (e0|f0), where that needs no spills, and 2 beyond.
_REGISTER_BLOCKS = {"0000": 4, "1000": 4, "1100": 3, "2000": 3, "1010": 3}
_THREE_BRA, _THREE_SIZE = 16, 100
# Components (e0| up to which the lane tier keeps (e0|f0) and the density block in registers at once.
_ONCE = 35
_BLOCK = 128
# Bytes of shared memory of a group for the density block next to its tables, and of a block of threads.
_EXCHANGE_BYTES = 100_000
_SHARED_BYTES = 110_000
# Copies of the gradient that blocks add to.
_COPIES = 16
# Derivative integrals exceed the integrals that the Schwarz bounds are made of.
_DERIVATIVE = 0.1


def _lane_shape(bra: Pair, ket: Pair, size) -> tuple[int, int, int, int]:
    """Block, lanes of a group, slice of functions a, and bytes of shared memory of a block."""
    nf, nb = ncomp(*ket), size(bra[1])
    group, together = max(32, -(-nf // 32) * 32), max(1, 32 // nf)
    row = nf | 1
    slice_a = max(1, min(size(bra[0]), _EXCHANGE_BYTES // (8 * row * nb * together)))
    roots = (sum(bra) + sum(ket) + 1) // 2 + 1
    table_row = sum(bra) + 2 + sum(bra) % 2
    stride = (sum(ket) + 1) * table_row
    stride += 2 if stride // 2 % 2 == 0 else 0
    tables, exchange = 3 * roots * stride, slice_a * nb * row
    area = ((tables + exchange if slice_a == size(bra[0]) else max(tables, exchange)) + 1) // 2 * 2 + 2
    shared = 8 * together * (area + 2 * roots)
    groups = max(1, min(_BLOCK // group, _SHARED_BYTES // shared)) if group == 32 else 1
    return group * groups, group, slice_a, groups * shared


def shape(bra: Pair, ket: Pair) -> tuple[bool, int]:
    """Whether one thread takes a quartet, and blocks on a multiprocessor that the compiler is asked for."""
    size = ncomp(*bra) * ncomp(*ket)
    if size <= _REGISTER_SIZE:
        return True, _REGISTER_BLOCKS.get("".join(map(str, bra + ket)), 2)
    if ncomp(*bra) <= _THREE_BRA and size <= _THREE_SIZE:
        return False, 3
    return False, 2 if ncomp(*ket) <= 96 else 1


@functools.cache
def kernel(bra: Pair, ket: Pair, variant: Variant) -> Kernel:
    """The kernel of a class."""
    registers, blocks = shape(bra, ket)
    defines = dict(zip(("LA", "LB", "LC", "LD"), bra + ket, strict=True))
    defines |= {"COULOMB": int(variant.coulomb), "EXCHANGE": int(variant.exchange)}
    defines |= {"DETERMINISTIC": int(variant.deterministic), "COPIES": _COPIES, "MINBLOCKS": blocks}
    if registers:
        file, block, group, shared = "eri_gradient_register.cu", _BLOCK, 1, 0
    else:
        file = "eri_gradient_lanes.cu"
        block, group, defines["CHUNK"], shared = _lane_shape(bra, ket, ncart if variant.cart else nsph)
        defines |= {"ONCE": _ONCE, "TOGETHER": max(1, 32 // ncomp(*ket)), "DERIVATIVE": 1}
    defines["BLOCK"] = block
    generated = ((HEADER, gradient_header((*bra, *ket), variant.cart, registers)),)
    headers = ("eri_boys.cuh" if registers else "eri_lanes.cuh", "eri_gradient.cuh", "eri_quartets.cuh")
    unit = Unit(file, (file.removesuffix(".cu"),), tuple(defines.items()), headers, generated)
    return Kernel(unit, bra, ket, registers, block, shared, group)


def _table_arguments(k: Kernel, places: dict[str, int], index: int):
    total = sum(k.bra) + sum(k.ket) + 1
    if k.registers:
        return operand(index, places[f"boys{total}"]), operand(index, places["exp"])
    n = total // 2 + 1
    return operand(index, places[f"rys{n}"]), float64(rys_table(n)[1])


def _limits(plan: PairPlan, bound, density, weights) -> tuple[jax.Array, jax.Array]:
    """Largest elements of all blocks of the densities and of the weights, together; and logs of a bound of all Gamma
    and of that times the largest Schwarz bound."""
    log_d, most_d = _cuda_pairs.density_bounds(plan.ls, plan.cart, density)
    found = [_cuda_pairs.density_bounds(plan.ls, plan.cart, w) for w in weights]
    log_w, most_w = (functools.reduce(jnp.maximum, x) for x in zip(*found, strict=True))
    # the bounds are largest elements over the sets; Gamma is a sum over them
    sets = np.float32(np.log(len(density)))
    both = jnp.stack([jnp.exp(log_d), jnp.exp(log_w + sets)], axis=-1)
    top = most_d + most_w + sets + np.float32(np.log(8.0 * len(weights)))
    return both, jnp.stack([top, top + jnp.max(bound)])


def _class_step(k: Kernel, plan: PairPlan, tables, capacity: int, nset: int, nao: int, omega, threshold, parts) -> Step:
    """The launch of one class."""
    places = {(la, lb): (n, first, count) for n, (la, lb, first, count) in enumerate(plan.classes)}
    (number_b, first_b, count_b), (number_k, _, count_k) = places[k.bra], places[k.ket]
    row = 4 * (plan.nbucket + 1)
    grid, grid_y = _cuda_jk._shape(k, count_b, count_k, parts)
    arguments = (
        *(operand(i) for i in range(4)),
        int64(capacity),
        operand(4),
        operand(5, number_b * row),
        operand(5, number_k * row),
        int32(plan.nbucket),
        *(operand(i) for i in (6, 7, 8)),
        int32(nset),
        operand(9),
        operand(10),
        result(0),
        *_table_arguments(k, tables, 11),
        float64(omega),
        float64(np.log(_DERIVATIVE * threshold)),
        int32(nao),
        int32(len(plan.ls)),
        int32(first_b),
        int32(parts),
        operand(12),
        int32(k.bra == k.ket),
    )
    (name,) = k.unit.kernels
    return Step(k.unit, name, k.block, arguments, grid, grid_y, k.shared, concurrent=True)


def sums(
    plan: PairPlan,
    pairs: Pairs,
    variant: Variant,
    part,
    parts,
    omega,
    threshold,
    density,
    weight_j,
    weight_k,
    test: bool = True,
):
    """The gradient for matrices that are all symmetric or all antisymmetric, from every `parts`-th bra pair.

    **Arguments:** those of `lowered`; `test`: whether fresh kernels are tested first.

    **Returns:** shape `(nshell, 3)`.
    """
    nset, nao, _ = density.shape
    table, tables = _cuda_jk._tables(_cuda_jk._lmax(plan) + 1)
    asked = [w for w, there in ((weight_j, variant.coulomb), (weight_k, variant.exchange)) if there]
    limits, top = _limits(plan, pairs.bound, density, asked)
    kernels = [kernel(b, k, variant) for b, k in classes.classes([c[:2] for c in plan.classes])]
    capacity = pairs.prims.shape[1]
    steps = [_class_step(k, plan, tables, capacity, nset, nao, omega, threshold, parts) for k in reversed(kernels)]
    shape = jax.ShapeDtypeStruct((_COPIES, len(plan.ls), 3), jnp.int64 if variant.deterministic else jnp.float64)
    scale_d = scale_w = jnp.ones(())
    if variant.deterministic:  # sums in fixed point are those of matrices of about 1
        scale_d = _cuda_jk.power_of_two(jnp.max(jnp.abs(density)))
        scale_w = _cuda_jk.power_of_two(jnp.max(jnp.abs(jnp.stack(asked))))
    matrices = (density * scale_d, weight_j * scale_w, weight_k * scale_w)
    operands = (*pairs[:5], pairs.groups, *matrices, limits, top, jnp.asarray(table), part)
    check = functools.partial(_self_test, plan, variant) if test else None
    (copies,) = call("jaxqc_eri_gradient", steps, [shape], *operands, zeroed=(0,), check=check)
    return _cuda_jk.floating(jnp.sum(copies, axis=0), variant) / scale_d / scale_w


def _self_test(plan: PairPlan, variant: Variant) -> None:
    """Compares kernels for the classes of `plan` with those of the CPU."""
    from jaxqc.integrals._cuda_gradient_self_test import verify

    verify(tuple(sorted(set(plan.ls))), variant)


@by_range
def lowered(
    centers,
    exponents,
    coefficients,
    density,
    weight_j,
    weight_k,
    part,
    *,
    layout,
    cart,
    coulomb,
    exchange,
    omega,
    threshold,
    parts,
    **_,
) -> jax.Array:
    """The primitive `jaxqc_jk_gradient`: derivatives of sum_n [tr P^J_n J(D_n) + tr P^K_n K(D_n)] with respect to the
    centres of the shells, (nshell, 3).

    **Arguments:** `density`, `weight_j`, `weight_k`: D, P^J and P^K, shape `(n, nao, nao)`; a weight counts only where
    `coulomb` or `exchange` asks for it. `part`: which of so many `parts` of the work, int32 of shape `(1,)`.
    """
    if not len(density):
        return jnp.zeros_like(centers)
    operands = (centers, exponents, coefficients)
    plan = _cuda_pairs.plan(*layout, cart)
    pairs = _cuda_pairs.prepare(plan, *operands, threshold, functools.partial(_cuda_jk.schwarz, plan))
    variant = Variant(cart, coulomb, exchange, deterministic=deterministic())
    local = functools.partial(sums, plan, pairs, variant, part, parts, omega, threshold)
    given = [density, weight_j if coulomb else density, weight_k if exchange else density]
    even = [0.5 * (x + jnp.swapaxes(x, 1, 2)) for x in given]
    # Symmetric with symmetric, antisymmetric with antisymmetric (exchange only); mixed products vanish. Where all are
    # symmetric the second finds nothing to do.
    total = local(*even)
    if exchange:
        total += local(density - even[0], jnp.zeros_like(density), weight_k - even[2])
    finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in (*operands, pairs.bound, *given)])
    return jnp.where(finite, total, jnp.nan)


def units_for(ls: tuple[int, ...], cart: bool, arch: int) -> list[Unit]:
    """What the gradient of a restricted calculation with these shells compiles."""
    del arch  # one set of shapes so far
    pairs = classes.pairs_of(ls)
    return [kernel(b, k, Variant(cart)).unit for b, k in classes.classes(pairs)]
