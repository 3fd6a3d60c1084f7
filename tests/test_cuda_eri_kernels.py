"""The two-electron kernels of GPUs compile within recorded registers and spills; nothing is run."""

import pytest

from jaxqc.ffi_kernels.rcg.cartesian import ncart, nsph
from jaxqc.gpu import build, nvrtc
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals._cuda_classes import Variant

# Bytes of spill stores and loads of the kernels of J and K on sm_90 (NVRTC 13), spherical functions, one density. Those
# not named have none. What deep contraction needs in registers leaves some classes without room; they are still faster
# so than with fewer blocks on a multiprocessor.
SPILLS = {
    "0000": 16, "1000": 56, "2000": 280, "2010": 224, "2020": 396, "1100": 336, "1111": 696, "2100": 112,
    "2120": 2200, "2111": 152, "2121": 12, "2200": 616, "2210": 2400, "2211": 8, "2221": 200,
    "3010": 440, "3020": 472, "3011": 1456, "3030": 2936, "2130": 24, "3100": 112, "3110": 1480, "3120": 7412,
    "3130": 16, "3131": 128, "2230": 56, "3200": 160, "3210": 7088, "3300": 2776, "3320": 48, "3311": 48,
    "3330": 8,
}  # fmt: skip
_PLAIN = Variant(False)
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
            limit = _MARGIN * spills[digits] + _EXTRA if digits in spills else 0
            assert used["spill"] <= limit, (digits, used)


def _kernels(lmax, low=0, variant=_PLAIN):
    """Those of all classes with functions from l = `low` to `lmax`."""
    return [cuda_classes.kernel(*c, variant) for c in cuda_classes.classes(_pairs(lmax)) if max(*c[0], *c[1]) >= low]


def _others(lmax, variant=_PLAIN):
    """Bounds, and sums of kets."""
    bounds = [cuda_classes.kernel(p, p, variant, bound=True) for p in _pairs(lmax)]
    return bounds + [cuda_classes.ket_kernel(p, variant) for p in _pairs(lmax)]


def test_classes_to_d_stay_within_their_resources():
    _check(_kernels(2), 90, SPILLS)


def test_bounds_and_sums_of_kets_to_d_need_no_stack():
    _check(_others(2), 90, {})


def test_each_class_has_a_shape_that_was_chosen():
    assert set(cuda_classes.shapes()) == {"".join(map(str, b + k)) for b, k in cuda_classes.classes(_pairs(4))}
    assert all(tier in ("registers", "lanes") and 1 <= n <= 16 for tier, n in cuda_classes.shapes().values())


@pytest.mark.parametrize(("arch", "lmax"), [(80, 5), (90, 6)])
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("sets", [1, 2])
def test_shared_memory_suffices_for_any_class(arch, lmax, cart, sets):
    for bra, ket in cuda_classes.classes(_pairs(lmax)):
        registers, _ = cuda_classes.shape(bra, ket)
        if not registers:
            block, group, *_, doubles = cuda_classes._lane_shape(bra, ket, ncart if cart else nsph, sets)
            assert 8 * (block // group) * doubles <= _SHARED[arch], (bra, ket)


@pytest.mark.slow
def test_classes_of_f_stay_within_their_resources():
    _check(_kernels(3, 3), 90, SPILLS)


@pytest.mark.slow
def test_classes_of_g_compile_and_their_blocks_fit():
    _check(_kernels(4, 4), 90)
    _check(_others(4), 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", [Variant(True), Variant(False, sets=2), Variant(False, deterministic=True)], ids=str
)
def test_other_variants_compile_and_their_blocks_fit(variant):
    _check(_kernels(3, 0, variant) + _others(3, variant), 90)


@pytest.mark.slow
def test_classes_to_g_compile_for_older_gpus():
    _check(_kernels(4) + _others(4), 80)
