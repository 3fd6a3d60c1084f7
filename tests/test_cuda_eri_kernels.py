"""The two-electron kernels of GPUs compile within recorded registers and spills; nothing is run."""

import pytest

from jaxqc.ffi_kernels.rcg.cartesian import ncart, ncomp, nsph
from jaxqc.gpu import build, nvrtc
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals import _cuda_short
from jaxqc.integrals._cuda_classes import Quartets, Variant

# What restricted calculations run: J and K at once, or K alone, J being made of Hermite Gaussians.
_BOTH, _PLAIN = Variant(False), Variant(False, coulomb=False)
# Bytes of spill stores and loads on sm_90 (NVRTC 13.0) of kernels with a group of lanes a quartet, spherical functions,
# one density. Those with a thread a quartet have none.
BOTH = {
    "2111": 144, "2130": 24, "2121": 12, "3130": 16, "3131": 128, "2211": 8, "2230": 40, "2221": 200, "3320": 8,
    "3311": 8, "3330": 8,
}  # fmt: skip
DOUBLE = {"2111": 100, "2130": 8, "2121": 16, "3131": 64, "2221": 124, "3320": 8, "3330": 16}
SHORT = {"2111": 160, "2121": 8, "2221": 184}
SPILLS, BOTH_SPILLS, SHORT_SPILLS = ({"double": lanes} for lanes in (DOUBLE, BOTH, SHORT))
_MIXED, _SHORT = Variant(False, coulomb=False, mixed=True), Variant(False, coulomb=False, short=True)
_SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a block may have
_MARGIN, _EXTRA = 1.1, 64  # for other versions of the compiler


@pytest.fixture(autouse=True)
def _compiler(tmp_path, monkeypatch):
    try:
        nvrtc()
    except ImportError as error:
        pytest.skip(f"needs NVRTC: {error}")
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(tmp_path / "kernels"))


def _pairs(lmax):
    return [(a, b) for a in range(lmax + 1) for b in range(a + 1)]


def _kind(kernel):
    if kernel.single:
        return "single"
    return "uncontracted" if dict(kernel.unit.defines).get("QUARTETS") == Quartets.UNCONTRACTED else "double"


def _check(kernels, arch, spills=None):
    """Compiles kernels; registers and shared memory allow the blocks that they ask for."""
    for kernel, built in zip(kernels, build([k.unit for k in kernels], arch), strict=True):
        ((name, used),) = built.resources().items()
        assert (name,) == kernel.unit.kernels
        blocks = dict(kernel.unit.defines).get("MINBLOCKS", 1)
        assert used["registers"] * kernel.block * blocks <= 65536, (kernel.unit.name, used)
        assert kernel.shared <= _SHARED[arch], (kernel.unit.name, kernel.shared)
        if arch == 90 and kernel.unit.kernels == ("eri_register",):
            assert used["spill"] == 0, (kernel.unit.name, used)
        elif spills is not None:
            digits = "".join(map(str, kernel.bra + kernel.ket))
            recorded = spills.get(_kind(kernel), {})
            limit = _MARGIN * recorded[digits] + _EXTRA if digits in recorded else 0
            assert used["spill"] <= limit, (digits, _kind(kernel), used)


def _kernels(lmax, low=0, variant=_PLAIN):
    """Those of all classes with functions from l = `low` to `lmax`."""
    found = [c for c in cuda_classes.classes(_pairs(lmax)) if max(*c[0], *c[1]) >= low]
    return [kernel for c in found for kernel in cuda_classes.kernels(*c, variant)]


def _in_single_precision(lmax, low=0):
    return [kernel for kernel in _kernels(lmax, low, _MIXED) if kernel.single]


def _others(lmax, variant=_PLAIN):
    """Bounds, and sums of kets."""
    bounds = [cuda_classes.kernel(p, p, variant, bound=True) for p in _pairs(lmax)]
    kets = {(ket, cuda_classes.ket_axes(bra, ket)) for bra, ket in cuda_classes.classes(_pairs(lmax))}
    return bounds + [cuda_classes.ket_kernel(ket, variant, axes) for ket, axes in sorted(kets)]


def test_classes_to_d_stay_within_their_resources():
    _check(_kernels(2), 90, SPILLS)
    _check(_kernels(2, variant=_BOTH), 90, BOTH_SPILLS)


@pytest.mark.parametrize("variant", [Variant(False, sets=2), Variant(True), Variant(False, mixed=True)], ids=str)
def test_other_classes_to_d_stay_within_their_resources(variant):
    _check(_kernels(2, variant=variant), 90)


def test_classes_of_the_short_range_stay_within_their_resources():
    _check(_kernels(2, variant=_SHORT), 90, SHORT_SPILLS)
    _check([cuda_classes.kernel(p, p, _SHORT, bound=True) for p in _pairs(2)], 90, {})
    ((name, used),) = build([_cuda_short.UNIT], 90)[0].resources().items()
    assert name == "eri_reach" and used["spill"] == used["stack"] == 0


def test_bounds_and_sums_of_kets_to_d_need_no_stack():
    _check(_others(2), 90, {})


def test_each_class_has_a_shape_that_was_chosen():
    assert set(cuda_classes.shapes()) == {"".join(map(str, b + k)) for b, k in cuda_classes.classes(_pairs(4))}
    others = (cuda_classes.other_shapes(kind) for kind in ("single", "uncontracted"))
    for tier, blocks in (shape for table in (cuda_classes.shapes(), *others) for shape in table.values()):
        assert tier in ("registers", "lanes") and 1 <= blocks <= 16
    names = {"".join(map(str, b + k)): ncomp(*k) for b, k in cuda_classes.classes(_pairs(4))}
    for tables in cuda_classes._changes().values():
        assert all(0 <= n <= names[name] for name, n in tables.get("columns", {}).items())
        assert all(n in (64, 96, 128) for n in tables.get("slices", {}).values())
        assert all(1 <= n <= 16 for n in tables.get("blocks", {}).values())


@pytest.mark.parametrize(("arch", "lmax"), [(80, 5), (90, 6)])
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("sets", [1, 2])
def test_shared_memory_suffices_for_any_class(arch, lmax, cart, sets):
    for bra, ket in cuda_classes.classes(_pairs(lmax)):
        registers, _ = cuda_classes.shape(bra, ket)
        if not registers:
            block, group, *_, needed = cuda_classes._lane_shape(bra, ket, ncart if cart else nsph, sets)
            assert block // group * needed <= _SHARED[arch], (bra, ket)


@pytest.mark.parametrize("lmax", [1, 3])
def test_classes_in_single_precision_stay_within_their_resources(lmax):
    _check(_in_single_precision(lmax), 90, SPILLS)


def test_classes_of_f_stay_within_their_resources():
    _check(_kernels(3, 3), 90, SPILLS)
    _check(_kernels(3, 3, _BOTH), 90, BOTH_SPILLS)


def test_classes_of_g_compile_and_their_blocks_fit():
    _check(_kernels(4, 4), 90)
    _check(_others(4), 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [Variant(False), Variant(True, coulomb=False), Variant(False, False, sets=2), Variant(False, False, True, 1, True)],
    ids=str,
)
def test_other_variants_compile_and_their_blocks_fit(variant):
    _check(_kernels(3, 0, variant) + _others(3, variant), 90)


def test_classes_to_g_compile_for_older_gpus():
    _check(_kernels(4) + _others(4), 80)
