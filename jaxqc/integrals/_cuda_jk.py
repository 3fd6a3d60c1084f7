"""Direct J and K on a GPU: pair data, one launch a class of integrals, and the way from shell blocks to matrices."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import deterministic
from jaxqc.gpu import Step, Unit, call, float64, int32, int64, operand, result
from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_hermite, _cuda_memory, _cuda_pairs, _cuda_short, _cuda_split
from jaxqc.integrals._cuda_classes import Kernel, Pair, Variant
from jaxqc.integrals._cuda_pairs import PairPlan, Pairs
from jaxqc.integrals._tables import BOYS_ROWS, boys_rows, boys_rows_single, exp_grid, rys_table

# Blocks that keep the device busy: few bra pairs share their kets among several blocks.
_BUSY = 1056
# A number of a part beyond all bra pairs: kernels find nothing to do.
_NONE = np.int32(1 << 30)
# J may come from Hermite Gaussians up to this l: beyond, their bodies are too long to compile.
_HERMITE_LMAX = 4
_FIXED_POINT = 2.0**46
_LARGEST = 2.0**15  # of sums in fixed point, whose range is four times that
# Quartets whose bound times the density is below may be in single precision: errors are at most about 1e-6 of that
# (1e-5 with f functions), so that each contributes at most 1e-11 (1e-10) Hartree, of either sign.
SINGLE = 1e-5
_CLIP = 1e30  # of densities in single precision; what is so large meets nothing there

# Operands of a build: as `blocked` lists them, then three for kernels in single precision, or two for erfc.
_DENSITY, _PRIMS32, _DENSITY32, _TABLES32 = 6, 11, 12, 13
_PLACES, _CHARGES = 11, 12

_SINGLE_UNIT = Unit("eri_single.cu", ("eri_single",))


@functools.cache
def _tables(lmax: int) -> tuple[np.ndarray, dict[str, int]]:
    """All tables of integrals up to four shells of `lmax` in one array, and where each begins, in bytes."""
    parts, places, at = [], {}, 0

    def put(name, array):
        nonlocal at
        places[name] = at
        parts.append(np.pad(array, (0, -array.size % 8)))  # kernels load pairs of numbers
        at += parts[-1].nbytes

    put("exp", exp_grid())
    for order in range(4 * lmax + 1):
        put(f"boys{order}", boys_rows(order))
    with concurrent.futures.ThreadPoolExecutor() as pool:  # each takes about 10 ms, not of Python's
        for n, (table, _) in enumerate(pool.map(rys_table, range(1, 2 * lmax + 2)), 1):
            put(f"rys{n}", table)
    return np.concatenate(parts), places


def _single_tables(lmax: int) -> np.ndarray:
    """Tables of the Boys function for kernels in single precision."""
    return np.concatenate([boys_rows_single(order) for order in range(4 * lmax + 1)])


def _table_arguments(kernel: Kernel, places: dict[str, int], index: int):
    total = sum(kernel.bra) + sum(kernel.ket)
    if kernel.registers and kernel.single:
        return operand(_TABLES32, 32 * BOYS_ROWS * total), operand(_TABLES32)
    if kernel.registers:
        return operand(index, places[f"boys{total}"]), operand(index, places["exp"])
    n = total // 2 + 1
    return operand(index, places[f"rys{n}"]), float64(rys_table(n)[1])


def _lmax(plan: PairPlan) -> int:
    return max(la for la, *_ in plan.classes)


def _places(plan: PairPlan) -> dict[Pair, tuple[int, int, int]]:
    """Of each class of pairs: its number, first pair, and number of pairs."""
    return {(la, lb): (n, first, count) for n, (la, lb, first, count) in enumerate(plan.classes)}


def schwarz(plan: PairPlan, pairs: Pairs, omega: float = 0.0) -> jax.Array:
    """Logarithms of the Schwarz bounds of all pairs; float32 of shape `(npair,)`.

    **Arguments:** `omega`: of the operator, as in `jaxqc.integrals.jk`; each is positive definite.
    """
    table, places = _tables(_lmax(plan))
    steps = []
    for (la, lb), (_, first, count) in _places(plan).items():
        k = classes.kernel((la, lb), (la, lb), Variant(plan.cart, short=omega < 0.0), bound=True)
        quartets = k.block // k.group * k.together
        arguments = (
            *(operand(i) for i in range(4)),
            int64(pairs.prims.shape[1]),
            *_table_arguments(k, places, 4),
            float64(abs(omega)),
            int32(first),
            int32(count),
            result(0),
        )
        steps.append(Step(k.unit, "eri_bound", k.block, arguments, grid=-(-count // quartets), shared=k.shared))
    shape = jax.ShapeDtypeStruct((plan.npair,), jnp.float32)
    return call("jaxqc_eri_bound", steps, [shape], *pairs[:4], jnp.asarray(table))[0]


def _shape(kernel: Kernel, count: int, kets: int, share: int) -> tuple[int, int]:
    """Grid of a class: bra pairs, and blocks that share the kets of each."""
    bras = -(-count // share)
    at_once = kernel.block if kernel.registers else kernel.block // kernel.group * 32
    return bras, max(1, min(-(-_BUSY // bras), -(-kets // at_once)))


def _class_step(
    kernel: Kernel,
    plan: PairPlan,
    places,
    capacity: int,
    omega: float,
    threshold: float,
    nao: int,
    offset: int,
    parts,
    limit: float,
    short: bool,
) -> Step:
    """One launch of a class.

    **Arguments:** `offset`: bytes before the (f0| sums of its kets; `limit`: what is below is in single precision;
    `short`: whether the operator is erfc(omega r) / r.
    """
    number_b, first_b, count_b = _places(plan)[kernel.bra]
    number_k, first_k, count_k = _places(plan)[kernel.ket]
    row = 4 * (plan.nbucket + 1)
    bras, shares = _shape(kernel, count_b, count_k, parts)
    least = threshold if kernel.single else limit
    prims, density = (_PRIMS32, _DENSITY32) if kernel.single else (3, _DENSITY)
    arguments = (
        *(operand(i) for i in (0, 1, 2, prims)),
        int64(capacity),
        operand(4),
        operand(5, number_b * row),
        operand(5, number_k * row),
        int32(plan.nbucket),
        *(operand(i) for i in (density, 7, 8)),
        result(0),
        result(1),
        *_table_arguments(kernel, places, 9),
        float64(omega),
        float64(np.log(least)),
        int32(nao),
        int32(len(plan.ls)),
        int32(first_b),
        int32(parts),
        operand(10),
        int32(kernel.bra == kernel.ket),
    )
    if not kernel.registers:
        arguments += (result(2, offset), int32(first_k), int32(count_k))
    arguments += (float64(np.log(limit)),)
    if short:
        arguments += (operand(_PLACES), operand(_CHARGES))
    name = "eri_register" if kernel.registers else "eri_lanes"
    return Step(kernel.unit, name, kernel.block, arguments, bras, shares, kernel.shared, concurrent=True)


def blocked(
    plan: PairPlan,
    pairs: Pairs,
    density,
    bounds,
    variant: Variant,
    omega: float,
    threshold: float,
    part: jax.Array | None = None,
    parts: int = 1,
    test: bool = True,
    single: float | None = None,
):
    """Sums over the unique quartets, in shell blocks.

    **Arguments:** `density`: (sets, nao, nao), symmetric or antisymmetric; `bounds`: of `density_bounds`; `part` of
    `parts`: every `parts`-th bra pair from number `part` on; `test`: whether fresh kernels are tested first; `single`:
    in place of SINGLE for a mixed variant; `omega`: above 0, and for a short variant that of erfc(omega r) / r.

    **Returns:** J and K, each (sets, nao * nao), to be completed by their transposes; in fixed point for a
    deterministic variant.
    """
    nao, places = density.shape[-1], _places(plan)
    table, table_places = _tables(_lmax(plan))
    chosen = classes.classes([c[:2] for c in plan.classes])
    kernels = [k for bra, ket in chosen for k in classes.kernels(bra, ket, variant)]
    offsets, size = {}, 0  # of sums of each ket class, in (f0| or in Cartesian (cd|
    for k in kernels:
        ket = k.ket, classes.ket_axes(k.bra, k.ket)
        if not k.registers and ket not in offsets:
            offsets[ket] = 8 * size
            size += variant.sets * places[k.ket][2] * classes.ket_size(k.bra, k.ket)
    capacity = pairs.prims.shape[1]
    limit = max(threshold, SINGLE if single is None else single) if variant.mixed else threshold
    steps = [
        _class_step(
            k,
            plan,
            table_places,
            capacity,
            omega,
            threshold,
            nao,
            offsets.get((k.ket, classes.ket_axes(k.bra, k.ket)), 0),
            parts,
            limit,
            variant.short,
        )
        for k in reversed(kernels)  # long blocks first
    ]
    if variant.coulomb:
        for (ket, axes), offset in offsets.items():
            number, first, count = places[ket]
            k = classes.ket_kernel(ket, variant, axes)
            row = 4 * (plan.nbucket + 1)
            arguments = (operand(1), operand(2), operand(5, number * row), int32(plan.nbucket), result(2, offset))
            arguments += (result(0), int32(nao), int32(first), int32(count))
            steps.append(Step(k.unit, "eri_ket", k.block, arguments, grid=-(-count // k.block)))
    dtype = jnp.int64 if variant.deterministic else jnp.float64
    sizes = (nao * nao if variant.coulomb else 1, nao * nao if variant.exchange else 1)
    shapes = [jax.ShapeDtypeStruct((variant.sets, n), dtype) for n in sizes] + [
        jax.ShapeDtypeStruct((max(size, 1),), dtype)
    ]
    part = jnp.zeros(1, jnp.int32) if part is None else part
    operands = (*pairs[:5], pairs.groups, density, *bounds, jnp.asarray(table), part)
    if variant.mixed:
        operands += _in_single_precision(plan, pairs, density)
    if variant.short:
        operands += _cuda_short.reach(plan, pairs)
    check = functools.partial(_self_test, plan, variant) if test else None
    j, k, _ = call("jaxqc_eri", steps, shapes, *operands, zeroed=(0, 1, 2), check=check)
    return j, k


def _in_single_precision(plan: PairPlan, pairs: Pairs, density) -> tuple[jax.Array, ...]:
    """What kernels in single precision read: primitives, densities, tables."""
    capacity = pairs.prims.shape[1]
    arguments = (operand(0), operand(1), operand(2), int64(capacity), result(0), int32(plan.npair))
    step = Step(_SINGLE_UNIT, "eri_single", 128, arguments, grid=-(-plan.npair // 128), grid_y=6)
    shape = jax.ShapeDtypeStruct((6, capacity), jnp.float32)
    (prims,) = call("jaxqc_eri_single", [step], [shape], pairs.info, pairs.centers, pairs.prims)
    return prims, jnp.clip(density, -_CLIP, _CLIP).astype(jnp.float32), jnp.asarray(_single_tables(_lmax(plan)))


def lowered(
    centers,
    exponents,
    coefficients,
    density,
    part,
    *,
    layout,
    cart,
    coulomb,
    exchange,
    omega,
    threshold,
    symmetric,
    parts,
    mixed=False,
) -> list[jax.Array]:
    """The primitive `jaxqc_jk`: J and K, each (n, nao, nao), or (0, nao, nao) where not asked for."""
    if not len(density):
        return [density, density]
    operands = (centers, exponents, coefficients)
    if omega < 0.0 and (coulomb or omega < -_cuda_short.LARGEST):
        static = dict(layout=layout, cart=cart, threshold=threshold, symmetric=symmetric, parts=parts, mixed=mixed)
        build = functools.partial(lowered, *operands, density, part, **static)
        native = exchange and omega >= -_cuda_short.LARGEST
        full, long = (build(coulomb=coulomb, exchange=exchange and not native, omega=w) for w in (0.0, -omega))
        j, k = (x - y for x, y in zip(full, long, strict=True))
        return [j, build(coulomb=False, exchange=True, omega=omega)[1] if native else k]
    finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in (*operands, density)])
    even = 0.5 * (density + jnp.swapaxes(density, 1, 2))
    choice = exchange and len(layout[0]) >= _cuda_split.SHELLS  # of the way to J, on the device
    possible = coulomb and max(layout[0]) <= _HERMITE_LMAX and (choice or not exchange)
    split = _cuda_memory.by_hermite(layout, cart, len(density), coulomb + exchange, symmetric, possible)
    j = k = density[:0]
    hermite_part = part
    if exchange or not split:
        plan = _cuda_pairs.plan(*layout, cart)
        pairs = _cuda_pairs.prepare(plan, *operands, threshold, functools.partial(schwarz, plan, omega=omega))
        finite &= ~jnp.any(jnp.isnan(pairs.bound))  # integrals beyond double precision
        build = functools.partial(_build, plan, pairs, omega=omega, threshold=threshold, parts=parts, mixed=mixed)
        if split:
            bounds = _cuda_pairs.density_bounds(plan.ls, cart, even)[0]
            apart = _cuda_split.apart(plan, pairs, bounds, threshold)
            hermite_part = jnp.where(apart, part, _cuda_hermite.NONE)
            j, k = build(even, 1, True, True, part=jnp.where(apart, _NONE, part))
            k += build(even, 1, False, True, part=jnp.where(apart, part, _NONE))[1]
        else:
            j, k = build(even, 1, coulomb, exchange, part=part)
        if exchange and not symmetric:
            k += build(density - even, -1, False, True, part=part)[1]
    if split:
        p = _cuda_hermite.plan(*layout, cart)
        check = functools.partial(_test_coulomb, layout[0], cart, min(len(density), 2))
        primitives = _cuda_hermite.prepare(p, *operands, check)
        options = _cuda_hermite.Options(omega, threshold, _cuda_hermite.SINGLE if mixed else 0.0, parts)
        found = _cuda_hermite.coulomb(p, primitives, even, options, hermite_part, check)
        j = j + found if exchange else found
        finite &= ~functools.reduce(jnp.logical_or, [jnp.any(jnp.isnan(b)) for b in primitives.bounds.values()])
    return [jnp.where(finite, x, jnp.nan) for x in (j, k)]


def _build(plan, pairs, density, sign, coulomb, exchange, *, omega, threshold, part, parts, mixed):
    """J and K of densities that are all symmetric (sign 1) or all antisymmetric (-1), two at a time."""
    done = []
    for begin in range(0, len(density), 2):
        some = density[begin : begin + 2]
        short = omega < 0.0
        variant = Variant(plan.cart, coulomb, exchange, len(some), deterministic(), mixed and not short, short)
        bounds = _cuda_pairs.density_bounds(plan.ls, plan.cart, some)
        scale = jnp.ones((len(some), 1, 1))
        if (
            variant.deterministic
        ):  # elements of J and K are below the sum of |D| times the largest Schwarz bound squared
            scale = power_of_two(
                jnp.sum(jnp.abs(some), axis=(1, 2), keepdims=True)
                * jnp.exp(2.0 * jnp.max(pairs.bound).astype(jnp.float64))
                / _LARGEST
            )
        sums = blocked(plan, pairs, some * scale, bounds, variant, abs(omega), threshold, part, parts)
        wanted = zip([floating(x, variant) / scale[:, 0] for x in sums], (coulomb, exchange), strict=True)
        done.append([_cuda_pairs.unblock(plan.ls, plan.cart, x, sign) if w else some[:0] for x, w in wanted])
    return [jnp.concatenate(x) for x in zip(*done, strict=True)]


def power_of_two(x):
    """The power of two by which x, 0 or above, becomes a number from 1/2 to 1; 1 for 0."""
    return jnp.where(x > 0.0, jnp.ldexp(jnp.ones(()), -jnp.frexp(x)[1]), 1.0)


def floating(sums, variant: Variant):
    """The sums of `blocked` as numbers."""
    return sums.astype(jnp.float64) / _FIXED_POINT if variant.deterministic else sums


def _self_test(plan: PairPlan, variant: Variant) -> None:
    """Compares kernels for the classes of `plan` with those of the CPU."""
    from jaxqc.integrals._cuda_self_test import verify

    verify(tuple(sorted(set(plan.ls))), variant)


def _test_coulomb(ls: tuple[int, ...], cart: bool, sets: int) -> None:
    """The same for J by Hermite Gaussians."""
    from jaxqc.integrals._cuda_self_test import verify_coulomb

    verify_coulomb(tuple(sorted(set(ls))), cart, sets)


def units_for(ls: tuple[int, ...], cart: bool, arch: int) -> list[Unit]:
    """What a restricted calculation with these shells compiles."""
    del arch  # one set of shapes so far
    pairs = classes.pairs_of(ls)
    # Molecules of few shells get J and K from one kernel; larger ones may get K alone, and J from Hermite Gaussians.
    both, alone = Variant(cart), Variant(cart, coulomb=False)
    short = Variant(cart, coulomb=False, short=True)  # of HSE and the like
    all_classes, variants = classes.classes(pairs), (both, alone, short)
    kernels = [made for v in variants for b, k in all_classes for made in classes.kernels(b, k, v)]
    kernels += [classes.kernel(p, p, v, bound=True) for v in (both, short) for p in pairs]
    kets = {(k.ket, classes.ket_axes(k.bra, k.ket)) for k in kernels if not k.registers}
    kernels += [classes.ket_kernel(ket, both, axes) for ket, axes in kets]
    plan = _cuda_hermite.plan(ls, (1,) * len(ls), cart)
    hermite = _cuda_hermite.units_of(plan) if max(ls) <= _HERMITE_LMAX else []
    return [*(k.unit for k in kernels), _cuda_short.UNIT, *hermite]
