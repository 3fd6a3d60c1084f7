"""CUDA kernels without a GPU: they compile, stay within their resources, and are cached on disk."""

import os
import re
import stat

import numpy as np
import pytest

from jaxqc.gpu import CompilationError, Unit, build, nvrtc
from jaxqc.gpu import _cache as cache
from jaxqc.gpu._compile import key_of
from jaxqc.integrals._shells import cartesian_powers, cartesian_to_spherical_matrix
from jaxqc.xc import _cuda_angular as angular
from jaxqc.xc import _cuda_units as units


@pytest.fixture(autouse=True)
def _compiler(tmp_path, monkeypatch):
    try:
        nvrtc()
    except ImportError as error:
        pytest.skip(f"needs NVRTC: {error}")
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(tmp_path / "kernels"))


def _units(arch, lmax, cart, ncomp, nao=2000, capacity=256):
    classes = [
        *units.density_classes(arch, nao, capacity, lmax, cart, ncomp, 1),
        *units.density_classes(arch, nao, capacity, lmax, cart, ncomp, 2),
        *units.potential_classes(arch, nao, capacity, lmax, cart, ncomp, False),
        *units.gradient_classes(arch, nao, capacity, lmax, cart, ncomp),
    ]
    return list(dict.fromkeys([units.rows_unit(lmax, cart), *(c.unit for c in classes)]))


# Bytes of spills that a kernel may have. The potential holds 64 registers of sums in each thread while orbital values
# are made, and is faster so than with half as many threads.
SPILLS = {
    "xc_basis": 0,
    "xc_rows": 0,
    "xc_order": 0,
    "xc_density": 200,
    "xc_density_tau": 640,
    "xc_potential": 300,
    "xc_potential_tau": 300,
    "xc_gradient": 400,
}


@pytest.mark.parametrize(
    ("arch", "lmax", "cart", "ncomp"),
    [
        pytest.param(90, 3, False, 4, id="sm_90 f gga"),
        pytest.param(90, 2, True, 5, id="sm_90 Cartesian d meta-gga", marks=pytest.mark.slow),
        pytest.param(90, 4, False, 5, id="sm_90 g meta-gga", marks=pytest.mark.slow),
        pytest.param(80, 2, False, 4, id="sm_80 d gga", marks=pytest.mark.slow),
    ],
)
def test_kernels_stay_within_their_resources(arch, lmax, cart, ncomp):
    for unit, built in zip(todo := _units(arch, lmax, cart, ncomp), build(todo, arch), strict=True):
        resources = built.resources()
        assert set(resources) == set(unit.kernels), built.log
        for kernel, used in resources.items():
            defines = dict(unit.defines)
            warps = defines.get("W") or defines.get("MW", 1) * defines.get("CW", 8)
            assert used["registers"] * 32 * warps * defines.get("MINB", 1) <= 65536, (unit.name, used)
            if lmax < 4:
                assert used["spill"] <= SPILLS[kernel], (unit.name, used)


@pytest.mark.slow
@pytest.mark.parametrize("cart", [False, True])
def test_kernels_compile_up_to_l_of_6(cart):
    assert len(build(_units(90, 6, cart, 4), 90)) > 5


@pytest.mark.parametrize("arch", [80, 86, 90])
@pytest.mark.parametrize(("nao", "capacity"), [(7, 32), (24, 32), (480, 128), (1042, 256), (5000, 640)])
@pytest.mark.parametrize("ncomp", [1, 4, 5])
def test_size_classes_cover_all_lengths_within_shared_memory(arch, nao, capacity, ncomp):
    tables = [units.density_classes(arch, nao, capacity, 3, False, ncomp, sets) for sets in (1, 2)]
    tables.append(units.potential_classes(arch, nao, capacity, 3, False, ncomp, False))
    tables.append(units.gradient_classes(arch, nao, capacity, 3, False, ncomp))
    for classes in tables:
        assert classes[0].low == 0 and classes[-1].high is None
        assert all(a.high == b.low for a, b in zip(classes, classes[1:], strict=False))
        for c in classes:
            assert c.shared <= units.shared_limit(arch, dict(c.unit.defines)["MINB"])
            assert c.low % 8 == 0 and c.max_functions >= (c.high or min(nao, capacity * 7)) and c.slots > 0
            assert c.max_shells >= min(capacity, c.high or nao)


@pytest.mark.parametrize("nao", [24, 160, 200, 230, 480, 1042])
@pytest.mark.parametrize("ncomp", [1, 4, 5])
@pytest.mark.parametrize("nset", [1, 2, 3, 4, 5])
def test_every_length_of_every_set_is_handled_once(nao, ncomp, nset):
    plan = units.density_plan(90, nao, 256, 3, False, ncomp, nset)
    most = -(-nao // 16) * 16
    for k in range(nset):
        spans = sorted((c.low, c.high or most) for c, start, sets in plan if start <= k < start + sets)
        assert [s[0] for s in spans] == [0, *(s[1] for s in spans[:-1])] and spans[-1][1] == most
        for c, start, sets in plan:
            assert dict(c.unit.defines).get("SETS", 1) == sets and start + sets <= nset


def test_long_lists_are_described_on_large_gpus():
    for sets in (1, 2):
        assert units.density_classes(90, 9000, 2000, 3, False, 4, sets)[-1].slots >= 64
    assert units.potential_classes(90, 9000, 2000, 3, False, 4, False)[-1].slots >= 2


def test_lists_that_no_gpu_can_describe_are_refused():
    with pytest.raises(ValueError, match="Raise epsilon"):
        units.density_classes(90, 60000, 8000, 3, False, 4, 1)


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("l", range(7))
def test_angular_parts_are_the_solid_harmonics(l, cart):
    rng = np.random.default_rng(l)
    x, y, z = point = rng.normal(size=3)
    powers = np.array(cartesian_powers(l))
    matrix = np.eye(len(powers)) if cart else cartesian_to_spherical_matrix(l)
    values = np.prod(point**powers, axis=1) @ matrix
    step = 1e-5
    for m, polynomial in enumerate(angular._functions(l, cart)):
        names = {"x": x, "y": y, "z": z}
        assert eval(angular._text(polynomial), names) == pytest.approx(values[m], rel=1e-12, abs=1e-13)
        for axis, name in enumerate("xyz"):
            ends = [eval(angular._text(polynomial), names | {name: point[axis] + s}) for s in (-step, step)]
            slope = eval(angular._text(angular._derivative(polynomial, axis)), dict(names))
            assert slope == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-6, abs=1e-6)


SMALL = Unit(
    "xc_rows.cu",
    ("xc_basis", "xc_rows", "xc_order"),
    (),
    ("xc_common.cuh",),
    ((angular.HEADER, angular.header(0, False)),),
)


def _file():
    return cache.folder() / f"{key_of(SMALL, 90)}.cubin"


def test_a_cubin_is_kept_and_read_again(monkeypatch):
    (first,) = build([SMALL], 90)
    monkeypatch.setattr(type(nvrtc()), "compile", lambda *_, **__: pytest.fail("compiled again"))
    (second,) = build([SMALL], 90)
    assert second == first and first.cubin[:4] == b"\x7fELF" and set(first.resources()) == set(SMALL.kernels)


@pytest.mark.parametrize("damage", [lambda d: d[:100], lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: b""])
def test_a_damaged_cubin_is_built_again(damage):
    (first,) = build([SMALL], 90)
    _file().write_bytes(damage(_file().read_bytes()))
    (again,) = build([SMALL], 90)
    assert again.cubin == first.cubin
    assert cache.read(first.key) is not None


def test_without_a_folder_to_write_to_kernels_are_compiled_and_it_is_said(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(blocked))
    with pytest.warns(RuntimeWarning, match="JAXQC_CACHE_DIR"):
        (built,) = build([SMALL], 90)
    assert built.cubin
    assert build([SMALL], 90)[0].cubin == built.cubin  # said once


def test_clear_removes_all_cubins():
    build([SMALL], 90)
    assert cache.clear() == 1 and not list(cache.folder().glob("*"))
    assert stat.S_ISDIR(os.stat(cache.folder()).st_mode)


def test_the_key_follows_sources_options_and_architecture():
    other = Unit(SMALL.file, SMALL.kernels, (("UNUSED", 1),), SMALL.headers, SMALL.generated)
    wider = Unit(SMALL.file, SMALL.kernels, (), SMALL.headers, ((angular.HEADER, angular.header(1, False)),))
    keys = {key_of(SMALL, 90), key_of(SMALL, 80), key_of(other, 90), key_of(wider, 90)}
    assert len(keys) == 4 and all(re.fullmatch("[0-9a-f]{32}", key) for key in keys)


def test_what_does_not_compile_is_an_error_with_the_log():
    broken = Unit(
        SMALL.file, SMALL.kernels, (("THREADS", 0),), SMALL.headers, ((angular.HEADER, "#error no header\n"),)
    )
    with pytest.raises(CompilationError, match="no header"):
        build([broken], 90)


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("JAXQC_NVRTC_LIBRARY", "/nowhere/libnvrtc.so")
    nvrtc.cache_clear()
    with pytest.raises(ImportError, match="JAXQC_NVRTC_LIBRARY"):
        nvrtc()
    nvrtc.cache_clear()
