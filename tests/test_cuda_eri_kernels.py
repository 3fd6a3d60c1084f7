"""The two-electron kernels of GPUs compile within recorded registers and spills; nothing is run."""

import pytest

from jaxqc.ffi_kernels.rcg.cartesian import ncart, nsph
from jaxqc.gpu import build, nvrtc
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals._cuda_classes import Quartets, Variant

# What restricted calculations run: J and K at once, or K alone, J being made of Hermite Gaussians.
_BOTH, _PLAIN = Variant(False), Variant(False, coulomb=False)
# Bytes of spill stores and loads of their kernels on sm_90 (NVRTC 13.0), spherical functions, one density. Others
# have none. What deep contraction needs in registers leaves these without room; they are still faster so than
# with fewer blocks on a multiprocessor.
BOTH = {
    "0000": 16, "1000": 56, "2000": 280, "2010": 224, "2020": 396, "1100": 336, "1111": 696, "3010": 440, "3020": 472,
    "3011": 1456, "3030": 2936, "2100": 112, "2120": 2200, "2111": 152, "2130": 24, "2121": 12, "3100": 112,
    "3110": 1480, "3120": 7412, "3130": 16, "3131": 128, "2200": 616, "2210": 2400, "2211": 8, "2230": 56, "2221": 200,
    "3200": 160, "3210": 7088, "3300": 2776, "3320": 48, "3311": 48, "3330": 8,
}  # fmt: skip
DOUBLE = {
    "0000": 16, "2000": 24, "2010": 20, "2020": 192, "1111": 192, "3010": 152, "3020": 72, "3011": 1064, "3030": 2544,
    "2120": 1360, "2111": 100, "2130": 16, "2121": 16, "3110": 360, "3120": 5808, "3131": 64, "2210": 984, "2221": 140,
    "3210": 4264, "3300": 96, "3320": 8, "3330": 28,
}  # fmt: skip
# The same of those for uncontracted quartets, and of those in single precision.
UNCONTRACTED = {"2111": 4056, "2120": 16, "2220": 5916, "3120": 2120, "3210": 1464}
BOTH_UNCONTRACTED = {"2111": 6712, "2120": 168, "2210": 576, "2220": 9044, "3120": 4232, "3210": 4236}
SINGLE = {"2130": 368, "2220": 696}
SPILLS = {"double": DOUBLE, "uncontracted": UNCONTRACTED, "single": SINGLE}
BOTH_SPILLS = {"double": BOTH, "uncontracted": BOTH_UNCONTRACTED}
_MIXED = Variant(False, coulomb=False, mixed=True)
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
        if spills is not None:
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
    return bounds + [cuda_classes.ket_kernel(p, variant) for p in _pairs(lmax)]


def test_classes_to_d_stay_within_their_resources():
    _check(_kernels(2), 90, SPILLS)
    _check(_kernels(2, variant=_BOTH), 90, BOTH_SPILLS)


def test_bounds_and_sums_of_kets_to_d_need_no_stack():
    _check(_others(2), 90, {})


def test_each_class_has_a_shape_that_was_chosen():
    assert set(cuda_classes.shapes()) == {"".join(map(str, b + k)) for b, k in cuda_classes.classes(_pairs(4))}
    others = (cuda_classes.other_shapes(kind) for kind in ("single", "uncontracted"))
    for tier, blocks in (shape for table in (cuda_classes.shapes(), *others) for shape in table.values()):
        assert tier in ("registers", "lanes") and 1 <= blocks <= 16


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
