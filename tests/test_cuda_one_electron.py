"""CUDA kernels of one-electron integrals, run thread by thread on the CPU, against the CPU's own kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc.gpu import build
from jaxqc.integrals import _cuda_one_electron, _one_electron
from jaxqc.integrals._boys_table import boys_of_table
from jaxqc.integrals._shells import ShellList, cartesian_size
from jaxqc.integrals.boys import boys


@pytest.fixture(autouse=True)
def _emulated(emulator, monkeypatch):
    monkeypatch.setattr(_cuda_one_electron, "call", emulator.call)
    monkeypatch.setattr(_cuda_one_electron, "architecture", lambda: 90)


def _shells(ls, seed, nprim=2):
    rng = np.random.default_rng(seed)
    n = len(ls)
    centers = rng.normal(size=(n, 3))
    if n > 1:
        centers[-1] = centers[0]
    exponents, coefficients = 10 ** rng.uniform(-1, 1.3, size=n * nprim), rng.normal(size=n * nprim)
    return ShellList(tuple(ls), (nprim,) * n, *map(jnp.asarray, (centers, exponents, coefficients)))


def _parameters(kind, order, a, b, npoint):
    rng = np.random.default_rng(5)
    if kind == "kinetic":
        return ()
    if kind == "multipole":
        return (jnp.asarray(rng.normal(size=3)),)
    points = rng.normal(size=(npoint, 3)) * rng.choice([0.3, 2.0, 30.0], size=(npoint, 1))
    points[0] = np.asarray(a.centers)[0]
    shape = (npoint, cartesian_size(order)) if kind == "nuclear" else (a.nao_cart, (a if b is None else b).nao_cart)
    return jnp.asarray(points), jnp.asarray(rng.normal(size=shape))


def _check(kind, order, a, b=None, npoint=5, tolerance=1e-12):
    operands = [a.centers, a.exponents, a.coefficients]
    operands += [] if b is None else [b.centers, b.exponents, b.coefficients]
    operands += _parameters(kind, order, a, b, npoint)
    second = None if b is None else (b.ls, b.nprims)
    static = {"kind": kind, "order": order, "first": (a.ls, a.nprims), "second": second}
    want = np.asarray(_one_electron._primitive.bind(*operands, **static))
    got = np.asarray(_cuda_one_electron.one_electron(*operands, **static))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())
    return got


# Nuclear attraction first by values, then as the derivatives of order 1 and 2 are made of them.
KINDS = [("multipole", 0), ("multipole", 1), ("multipole", 2), ("kinetic", 0)]
KINDS += [(kind, order) for kind in ("nuclear", "weights") for order in (0, 1, 2)]


@pytest.mark.parametrize(("kind", "order"), KINDS)
def test_all_pairs_up_to_g_equal_those_of_the_cpu(kind, order):
    got = _check(kind, order, _shells((2, 0, 3, 1, 4, 0, 2), 1), npoint=35 if kind == "nuclear" else 5)
    if kind != "weights":
        np.testing.assert_array_equal(got, np.swapaxes(got, -1, -2))


@pytest.mark.parametrize(("kind", "order"), KINDS)
def test_two_lists(kind, order):
    _check(kind, order, _shells((1, 0, 3), 1), _shells((0, 2, 1, 5), 2))


@pytest.mark.parametrize(("kind", "order"), [("kinetic", 0), ("nuclear", 0), ("weights", 1)])
def test_highest_momenta(kind, order):
    _check(kind, order, _shells((9, 6), 1, nprim=1), _shells((7,), 2, nprim=1), npoint=2, tolerance=1e-11)


@pytest.mark.parametrize("kind", ["nuclear", "weights"])
def test_tables_beyond_shared_memory(monkeypatch, kind):
    monkeypatch.setattr(_cuda_one_electron, "shared_limit", lambda arch: 4000)
    monkeypatch.setattr(_cuda_one_electron, "_LARGE", 2)
    monkeypatch.setattr(_cuda_one_electron, "_PARTS", 3)
    _check(kind, 1, _shells((2, 0, 1, 2), 1), npoint=40)


@pytest.mark.parametrize("which", range(5))
def test_numbers_that_are_not_fit_give_nan(which):
    a = _shells((1, 0), 1)
    operands = [a.centers, a.exponents, a.coefficients, *_parameters("nuclear", 0, a, None, 3)]
    operands[which] = operands[which].at[0].set(jnp.nan)
    static = {"kind": "nuclear", "order": 0, "first": (a.ls, a.nprims), "second": None}
    assert np.isnan(_cuda_one_electron.one_electron(*operands, **static)).all()


@pytest.mark.parametrize("order", [0, 1, 7, 40])
def test_boys_function_of_the_table(order):
    t = jnp.asarray(np.concatenate([np.linspace(0, 70, 400), [1e-12, 63.9999999, 64.0, 900.0, 1e9]]))
    np.testing.assert_allclose(boys_of_table(order, t), boys(order, t), rtol=3e-15)
    assert np.isnan(boys_of_table(order, jnp.asarray([-1.0, np.nan]))).all()


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_compile_without_spills(arch, fresh_kernels):
    (built,) = build([_cuda_one_electron.UNIT], arch)
    resources = built.resources()
    assert set(resources) == set(_cuda_one_electron.UNIT.kernels)
    for used in resources.values():
        assert used["spill"] == 0 and used["registers"] <= 128, resources


def test_under_vmap_each_geometry_gets_its_own_launch():
    a = _shells((1, 0), 1)
    moved = jnp.stack([a.centers, a.centers * 1.1])
    static = {"kind": "kinetic", "order": 0, "first": (a.ls, a.nprims), "second": None}

    def kinetic(centers):
        return _cuda_one_electron.one_electron(centers, a.exponents, a.coefficients, **static)

    np.testing.assert_allclose(jax.vmap(kinetic)(moved), jnp.stack([kinetic(c) for c in moved]), rtol=1e-15)


def test_processors_without_kernels_are_refused_by_a_sentence():
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.8", basis="sto-3g")
    traced = jax.jit(lambda x: jaxqc.integrals.overlap(mol.with_coords(x))).trace(mol.coords)
    with pytest.raises(NotImplementedError, match=r"jaxqc_one_electron .*JAX_PLATFORMS=cpu"):
        traced.lower(lowering_platforms=("tpu",))
