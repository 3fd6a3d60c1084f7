"""The two-electron kernels of GPUs, run thread by thread on the CPU, against the CPU's own kernels.

Every class is looked at on its own: integrals of other classes are left out of the reference.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import two_electron_cases as cases

from jaxqc.ffi_kernels.rcg.cartesian import ncomp
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals import _cuda_hermite as cuda_hermite
from jaxqc.integrals import _cuda_jk as cuda_jk
from jaxqc.integrals import _cuda_pairs as cuda_pairs
from jaxqc.integrals._contraction import contract
from jaxqc.integrals._cuda_classes import Variant
from jaxqc.integrals._shells import ShellList, cartesian_to_spherical

TOLERANCE = 1e-12  # relative to the largest element
BEYOND_G = 1e-11  # two long horizontal recurrences lose digits; up to g one of them runs on the tables of each axis
TIERS = ("registers", "lanes")


@pytest.fixture
def emulated(emulator, monkeypatch):
    for module in (cuda_hermite, cuda_jk, cuda_pairs):
        monkeypatch.setattr(module, "call", emulator.call)
    monkeypatch.setattr(cuda_jk, "_BUSY", 8)  # few blocks: the emulator runs one after the other


@pytest.fixture
def change(monkeypatch):
    """Changes how kernels are chosen and shaped."""

    def to(name, value):
        monkeypatch.setattr(cuda_classes, name, value)
        cuda_classes.kernel.cache_clear()

    yield to
    cuda_classes.kernel.cache_clear()


@pytest.fixture(params=TIERS)
def tier(request, change):
    change("shape", lambda bra, ket, single=False: (ket == (0, 0) or request.param == "registers", 1))
    return request.param


class Case:
    """Random shells of the angular momenta `ls` on each of `ncenter` places, and the CPU's integrals."""

    def __init__(self, ls, ncenter=3, cart=False, most=3, omega=0.0):
        rng = np.random.default_rng(len(ls) + 10 * max(ls))
        shells = [[cases.contraction(rng, l, (k + l) % most + 1, 0.3, 8.0) for l in ls] for k in range(ncenter)]
        mole = cases.mole(cases.CENTERS[:ncenter], shells, cart)
        host = cases.shell_list(mole)
        arrays = (jnp.asarray(x) for x in (host.centers, host.exponents, host.coefficients))
        self.shells, self.cart, self.omega = ShellList(host.ls, host.nprims, *arrays), cart, omega
        self.plan = cuda_pairs.plan(host.ls, host.nprims, cart)
        self.operands = (self.shells.centers, self.shells.exponents, self.shells.coefficients)
        lists, none = (self.shells,) * 4, jnp.zeros((0, 0, 0))
        eri = contract("eri", lists, none, max(omega, 0.0), 1e-16)
        if omega < 0.0:
            eri -= contract("eri", lists, none, -omega, 1e-16)
        for axis in range(0 if cart else 4):
            eri = cartesian_to_spherical(host.ls)(eri, axis)
        self.eri = np.asarray(eri)
        l = cases.function_ls(mole)
        self.pair = np.maximum(l[:, None], l) * 100 + np.minimum(l[:, None], l)
        self.nao, self.rng = len(l), rng

    @functools.cached_property
    def pairs(self):
        """All pairs, with bounds that let every quartet through."""
        return cuda_pairs.prepare(self.plan, *self.operands, 1e-16, lambda p: jnp.zeros(len(p.shells), np.float32))

    def densities(self, kinds):
        return cases.densities(self.rng, self.nao, kinds)

    def blocked(self, density, variant, classes=None, threshold=1e-16, part=None, parts=1):
        """J and K of the kernels over all classes, or over those given."""
        bounds = cuda_pairs.density_bounds(self.plan.ls, self.cart, jnp.asarray(density))
        with pytest.MonkeyPatch.context() as patch:
            if classes is not None:
                patch.setattr(cuda_classes, "classes", lambda pairs: classes)
            out = cuda_jk.blocked(
                self.plan,
                self.pairs,
                jnp.asarray(density),
                bounds,
                variant,
                abs(self.omega),
                threshold,
                part,
                parts,
                test=False,
            )
        wanted = zip(out, (variant.coulomb, variant.exchange), strict=True)
        sums = [cuda_jk.floating(x, variant) for x, w in wanted if w]
        return [np.asarray(cuda_pairs.unblock(self.plan.ls, self.cart, x, 1)) for x in sums]

    def reference(self, density, bra=None, ket=None):
        """J and K from all integrals, those of one class only where it is given."""
        if bra is None or ket is None:
            spec = (("kl", "ij"), ("jl", "ik"))
            return [np.einsum(f"ijkl,n{d}->n{out}", self.eri, density, optimize=True) for d, out in spec]
        coulomb, exchange = np.zeros_like(density), np.zeros_like(density)
        for first, second in dict.fromkeys([(bra, ket), (ket, bra)]):
            (i, j), (k, l) = (np.nonzero(self.pair == 100 * p[0] + p[1]) for p in (first, second))
            integrals = self.eri[i[:, None], j[:, None], k, l]
            for n, d in enumerate(density):
                coulomb[n, i, j] += integrals @ d[k, l]
                np.add.at(exchange[n], (i[:, None], k), integrals * d[j[:, None], l])
        return [coulomb, exchange]

    def jk(self, density, threshold=1e-16, symmetric=False):
        """J and K of the whole lowering."""
        return lowered(self.shells, density, cart=self.cart, omega=self.omega, threshold=threshold, symmetric=symmetric)


def lowered(shells, density, cart=False, omega=0.0, threshold=1e-16, symmetric=False):
    settings: dict[str, Any] = dict(cart=cart, coulomb=True, exchange=True, omega=omega, threshold=threshold)
    settings["symmetric"] = symmetric
    operands = (shells.centers, shells.exponents, shells.coefficients, jnp.asarray(density), jnp.zeros(1, jnp.int32))
    return cuda_jk.lowered(*operands, layout=(shells.ls, shells.nprims), parts=1, **settings)


@functools.cache
def case(*ls, **options):
    return Case(ls, **options)


def assert_close(got, want, tolerance=TOLERANCE):
    for value, expected in zip(got, want, strict=True):
        scale = np.max(np.abs(expected))
        assert scale > 0 and np.max(np.abs(np.asarray(value) - expected)) <= tolerance * scale


def check_class(case, bra, ket, sets=1, **options):
    """J and K of one class, or one of them."""
    rng = np.random.default_rng([*bra, *ket])  # the same whichever tests ran before
    density, variant = cases.densities(rng, case.nao, "s" * sets), Variant(case.cart, sets=sets, **options)
    got = case.blocked(density, variant, [(bra, ket)])
    want = zip(case.reference(density, bra, ket), (variant.coulomb, variant.exchange), strict=True)
    assert_close(got, [x for x, wanted in want if wanted], BEYOND_G if max(*bra, *ket) > 4 else TOLERANCE)


def all_classes(*ls):
    return cuda_classes.classes(sorted({(max(a, b), min(a, b)) for a in ls for b in ls}))


def label(value):
    return "".join(map(str, value)) if isinstance(value, tuple) else None


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("bra", "ket"), all_classes(0, 1), ids=label)
def test_each_class_of_s_and_p_is_that_of_the_cpu(bra, ket, tier):
    if tier == "lanes" and ket == (0, 0):
        pytest.skip("always one thread a quartet")
    assert cuda_classes.kernel(bra, ket, Variant(False)).registers == (tier == "registers")
    check_class(case(0, 1), bra, ket)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize(
    ("bra", "ket", "sets"),
    [((2, 0), (1, 0), 1), ((1, 0), (0, 0), 2), ((2, 1), (2, 0), 2), ((2, 2), (2, 1), 1)],
    ids=label,
)
def test_classes_with_d_and_two_densities(bra, ket, sets, cart):
    check_class(case(0, 1, 2, ncenter=2, cart=cart), bra, ket, sets)


@pytest.mark.usefixtures("emulated")
def test_one_matrix_alone_is_that_of_both(tier):
    p = case(1)
    density = p.densities("s")
    j, k = p.reference(density)
    assert_close(p.blocked(density, Variant(False, exchange=False)), [j])
    assert_close(p.blocked(density, Variant(False, coulomb=False)), [k])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("omega", [0.0, 0.4])
@pytest.mark.parametrize("kinds", ["s", "gs", "gas"])
def test_any_number_of_densities_of_any_symmetry(kinds, omega, tier):
    p = case(1, omega=omega)
    density = p.densities(kinds)
    got = p.jk(density)
    assert_close(got, p.reference(density))
    assert_close(
        got,
        cases.jk(p.shells, jnp.asarray(density), cart=False, coulomb=True, exchange=True, omega=omega, threshold=1e-16),
    )


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("ls", [(0, 1), pytest.param((2,), marks=pytest.mark.slow)], ids=label)
@pytest.mark.parametrize("omega", [0.0, 0.3, -0.3])
def test_bounds_are_the_largest_diagonal_integrals(ls, cart, tier, omega):
    basis = case(*ls, cart=cart, omega=omega)
    pairs = basis.pairs
    got = np.asarray(cuda_jk.schwarz(basis.plan, pairs, omega))
    diagonal = np.einsum("ijij->ij", basis.eri)
    first = cuda_pairs._first_functions(basis.plan.ls, cart)
    for (i, j), bound in zip(np.asarray(pairs.shells), got, strict=True):
        block = diagonal[first[i] : first[i + 1], first[j] : first[j + 1]]
        assert bound == pytest.approx(0.5 * np.log(block.max()), abs=1e-5)


@pytest.mark.usefixtures("emulated")
def test_the_order_of_launches_does_not_matter_in_fixed_point(change):
    change("shape", lambda bra, ket, single=False: (ket != (1, 1), 1))
    basis, variant = case(0, 1, ncenter=2), Variant(False, deterministic=True)
    density = basis.densities("s")
    tiers = {cuda_classes.kernel(b, k, variant).registers for b, k in all_classes(0, 1)}
    assert tiers == {True, False}
    forward = basis.blocked(density, variant, all_classes(0, 1))
    backward = basis.blocked(density, variant, all_classes(0, 1)[::-1])
    assert all(np.array_equal(a, b) for a, b in zip(forward, backward, strict=True))
    assert_close(forward, basis.reference(density))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("parts", [2, 5])
def test_parts_add_up_to_the_whole(parts, tier):
    p, variant = case(1), Variant(False)
    density = p.densities("s")
    shares = [p.blocked(density, variant, part=jnp.array([n], jnp.int32), parts=parts) for n in range(parts)]
    assert sum(np.any(s[0]) for s in shares) > 1
    assert_close([sum(x) for x in zip(*shares, strict=True)], p.reference(density))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("sets", [1, 2])
def test_an_exchange_area_that_is_too_small_is_sliced(sets, change):
    change("shape", lambda bra, ket, single=False: (False, 1))
    change("_EXCHANGE_BYTES", 900)
    p = case(1)
    assert dict(cuda_classes.kernel((1, 1), (1, 1), Variant(False, sets=sets)).unit.defines)["CHUNK"] < 3
    check_class(p, (1, 1), (1, 1), sets)
    got = np.asarray(cuda_jk.schwarz(p.plan, p.pairs))
    assert np.all(np.abs(got) < 10)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("coulomb", "sets"), [(True, 1), (False, 1), (True, 2)])
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize(
    ("what", "bra", "ket", "number"),
    [("columns", (1, 1), (1, 1), 2), ("slices", (1, 1), (1, 0), 64), ("slices", (1, 1), (1, 1), 96)],
)
def test_sums_may_be_in_shared_memory(what, bra, ket, number, cart, coulomb, sets, change):
    change("shape", lambda bra, ket, single=False: (True, 1))
    change("choice", lambda asked, bra, ket, kind, variant: number if asked == what else None)
    kernel = cuda_classes.kernel(bra, ket, Variant(cart, coulomb=coulomb, sets=sets))
    defines = dict(kernel.unit.defines)
    assert defines["SUMS_APART"] == coulomb and bool(defines["SLICED"]) == (what == "slices")
    assert defines["HELD"] == (ncomp(*ket) if what == "slices" else number)
    check_class(case(0, 1, cart=cart), bra, ket, sets, coulomb=coulomb)


@pytest.mark.usefixtures("emulated")
def test_many_blocks_share_the_kets_of_a_bra(tier, monkeypatch):
    """More kets than one block takes at once, and a grid in two dimensions."""
    s = Case((0, 0, 0, 0) if tier == "registers" else (1, 1, 1, 1), ncenter=4)
    monkeypatch.setattr(cuda_jk, "_BUSY", 3 * s.plan.npair)
    pair = s.plan.classes[0][:2]
    assert cuda_jk._shape(cuda_classes.kernel(pair, pair, Variant(False)), s.plan.npair, s.plan.npair, 1)[1] > 1
    check_class(s, pair, pair)


@pytest.mark.usefixtures("emulated")
def test_what_is_left_out_is_below_the_threshold():
    """Molecules far apart: quartets are dropped, and all that they would add is small."""
    places = np.array([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [6.0, 1.0, 0.0], [11.0, 0.0, 2.0]])
    mole = cases.mole(places, [[[0, [0.9, 1.0]], [0, [0.3, 1.0]]]] * 4)
    host = cases.shell_list(mole)
    shells = ShellList(host.ls, host.nprims, *map(jnp.asarray, (host.centers, host.exponents, host.coefficients)))
    density = cases.densities(np.random.default_rng(3), mole.nao, "s") * 0.1
    want = cases.reference(mole, density)
    errors = []
    for threshold in (1e-4, 1e-7):
        got = lowered(shells, density, threshold=threshold)
        errors.append(max(float(np.max(np.abs(np.asarray(g) - w))) for g, w in zip(got, want, strict=True)))
        assert errors[-1] <= 200 * threshold
    assert errors[0] > 1e-9  # something was left out


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["density", "centers", "exponents", "coefficients"])
def test_operands_that_are_no_numbers_give_none(which, bad):
    p = case(1)
    density = p.densities("s")
    shells = p.shells
    if which == "density":
        density[0, 1, 2] = bad
    else:
        operands = dict(centers=shells.centers, exponents=shells.exponents, coefficients=shells.coefficients)
        operands[which] = operands[which].at[(1,) * operands[which].ndim].set(bad)
        shells = ShellList(shells.ls, shells.nprims, **operands)
    assert all(np.all(np.isnan(x)) for x in lowered(shells, density))


# All classes, in the tiers that serve them.


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize(("bra", "ket"), all_classes(*range(5)), ids=label)
def test_each_class_to_g_is_that_of_the_cpu(bra, ket, cart):
    check_class(case(*range(5), ncenter=2, cart=cart), bra, ket)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("bra", "ket"),
    [((5, 0), (0, 0)), ((5, 2), (3, 1)), ((5, 5), (5, 5)), ((6, 0), (6, 0)), ((6, 3), (5, 2)), ((6, 6), (6, 6))],
    ids=label,
)
def test_classes_of_h_and_i_are_those_of_the_cpu(bra, ket):
    ls = tuple(dict.fromkeys((*bra, *ket)))
    check_class(Case(ls, ncenter=2, most=1), bra, ket)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("size", [1e-14, 1e8, 1e200])
def test_fixed_point_takes_densities_of_any_size(size, monkeypatch):
    monkeypatch.setattr(cuda_jk, "deterministic", lambda: True)
    p = case(1)
    density = p.densities("ss")
    static: dict[str, Any] = dict(coulomb=True, exchange=True, omega=0.0, threshold=1e-13 * min(size, 1.0))
    sizes = np.array([size, 1.0])[:, None, None]  # very different ones in one launch
    operands = (p.shells.centers, p.shells.exponents, p.shells.coefficients, sizes * density, jnp.zeros(1, jnp.int32))
    layout = (p.shells.ls, p.shells.nprims)
    found = cuda_jk.lowered(*operands, layout=layout, cart=False, symmetric=True, parts=1, **static)
    for one in ([0], [1]):
        assert_close([(x / sizes)[np.array(one)] for x in found], p.reference(density[one]))
