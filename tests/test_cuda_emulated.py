"""The CUDA kernels, run thread by thread on the CPU, against plain JAX: what they compute needs no GPU to be tested."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_emulation import xc_kernels_on_the_cpu

import jaxqc
from jaxqc import systems
from jaxqc.integrals._shells import ShellList
from jaxqc.xc import _cuda, _cuda_partition, _cuda_units, _oracle, build_layout

NCOMP = {"lda": 1, "gga": 4, "mgga": 5}


@pytest.fixture(autouse=True, scope="module")
def _emulated(emulator):
    with xc_kernels_on_the_cpu(emulator, _cuda, _cuda_partition):
        yield


@pytest.fixture
def small_memory(monkeypatch):
    """A function that leaves less shared memory: short lists then go the ways of long ones."""
    tables = (_cuda_units.density_classes, _cuda_units.potential_classes, _cuda_units.gradient_classes)

    def clear():
        for table in tables:
            table.cache_clear()
        jax.clear_caches()

    def leave(size):
        monkeypatch.setattr(_cuda_units, "shared_limit", lambda arch, blocks=1: size // blocks)
        clear()

    yield leave
    monkeypatch.undo()
    clear()


def _layout(mol, cart, n=300, epsilon=0.0):
    rng = np.random.default_rng(7)
    owner = np.asarray(mol.coords)[rng.integers(mol.natm, size=n)]
    points = jnp.asarray(owner + rng.normal(size=(n, 3)) * rng.uniform(0.1, 2.0, size=(n, 1)))
    weights = 10.0 ** rng.uniform(-6, 0, size=n)
    weights[64:128] = 0.0
    shells = ShellList.from_molecule(mol)
    return shells, build_layout(shells, points, jnp.asarray(weights), epsilon=epsilon, cart=cart)


def _check(mol, cart, kind, nset, deterministic=False):
    shells, layout = _layout(mol, cart)
    ncomp, rng = NCOMP[kind], np.random.default_rng(1)
    m = rng.normal(size=(nset, mol.nao, mol.nao))
    density = jnp.asarray(m + m.transpose(0, 2, 1))
    live = np.repeat(np.asarray(layout.weights).reshape(-1, 64).max(axis=1) > 0, 64) * 1.0
    cotangent = jnp.asarray(rng.normal(size=(nset, ncomp, len(live))) * live)

    def features(centers, points, d):
        part = ShellList(shells.ls, shells.nprims, centers, shells.exponents, shells.coefficients)
        return _oracle.features(part, points, 0.5 * (d + jnp.swapaxes(d, 1, 2)), cart=cart, ncomp=ncomp)

    want, pullback = jax.vjp(features, shells.centers, layout.points, density)
    centers, points, matrix = pullback(cotangent)
    at = (shells, cart, layout.points)
    got = [
        _cuda.density(*at, layout.density, density, ncomp, 0.0),
        _cuda.potential(*at, layout.potential, cotangent, 0.0, deterministic),
        *_cuda.gradient(*at, layout.density, density, cotangent, 0.0),
    ]
    for a, b in zip(got, [want * live, matrix, centers, points], strict=True):
        assert float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) < (1e-11 if deterministic else 1e-12)


WATER = "O 0 0 0.1; H 0 0.7 -0.4; H 0.1 -0.7 -0.5"


def test_density_potential_and_gradient():
    _check(jaxqc.Molecule(WATER, basis="def2-svp"), False, "gga", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lda", "mgga"])
@pytest.mark.parametrize("nset", [1, 2, 3])
@pytest.mark.parametrize("cart", [False, True])
def test_all_kinds_and_numbers_of_densities(cart, nset, kind):
    _check(jaxqc.Molecule(WATER, basis="def2-svp", cart=cart), cart, kind, nset)


@pytest.mark.slow
@pytest.mark.parametrize("cart", [False, True])
def test_g_functions(cart):
    _check(jaxqc.Molecule("Ne 0 0 0", basis="cc-pvqz", cart=cart), cart, "mgga", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gga", "mgga"])
@pytest.mark.parametrize("nset", [1, 2])
def test_long_lists(small_memory, kind, nset):
    small_memory(45_000 if nset == 1 else 60_000)
    mol = jaxqc.Molecule("Ne 0 0 0; Ne 1.6 0 0", basis="def2-qzvp")
    plan = _cuda_units.density_plan(90, mol.nao, 64, 4, False, NCOMP[kind], nset)
    assert any(dict(c.unit.defines).get("CHUNKED", 1) and c.slots < mol.nao for c, *_ in plan)
    assert _cuda_units.potential_classes(90, mol.nao, 64, 4, False, NCOMP[kind], False)[-1].slots < -(-mol.nao // 32)
    _check(mol, False, kind, nset)


@pytest.mark.slow
def test_fixed_point_sums():
    _check(jaxqc.Molecule(WATER, basis="def2-svp"), False, "gga", 1, deterministic=True)


def test_lists_are_sorted_and_bounds_are_bounds():
    mol = jaxqc.Molecule(systems.water_cluster(3), basis="def2-svp")
    shells, layout = _layout(mol, False, epsilon=1e-12)
    first = np.concatenate([[0], np.cumsum(2 * np.asarray(shells.ls) + 1)])
    values = np.asarray(_oracle.orbitals(shells, layout.points, cart=False, gradient=True))
    for lists in (layout.density, layout.potential):
        count, shell, bound, order = (np.asarray(x) for x in (lists.count, lists.shell, lists.bound, lists.order))
        nrow, functions = len(count), []
        assert int(lists.overflow) == count.max()
        for row in range(nrow):
            index, here = shell[row, : count[row]] & 0xFFFFF, bound[row, : count[row]]
            assert len(set(index)) == count[row] and np.all(np.diff(here) <= 0)
            functions.append(sum(first[s + 1] - first[s] for s in index))
            at = slice(row * lists.row, (row + 1) * lists.row)
            phi = np.abs(values[0, at]).max(axis=0)
            slope = np.linalg.norm(values[1:, at], axis=0).max(axis=0) * _cuda.GRADIENT_SHARE
            for s, b in zip(index, here, strict=True):
                assert np.maximum(phi, slope)[first[s] : first[s + 1]].max() <= b
            if count[row]:
                left_out = sorted(set(range(shells.nshell)) - set(index.tolist()))
                assert all(phi[first[s] : first[s + 1]].max() < 1e-9 for s in left_out)
        assert sorted(order[:nrow]) == list(range(nrow))
        eighths = [-(-functions[r] // 8) for r in order[:nrow]]
        assert eighths == sorted(eighths, reverse=True)
        np.testing.assert_array_equal(order[nrow:], [sum(e > k for e in eighths) for k in range(1024)])
