"""The CUDA kernels, run thread by thread on the CPU, against plain JAX: what they compute needs no GPU to be tested."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc import systems
from jaxqc.integrals._shells import ShellList
from jaxqc.xc import _cuda, _cuda_partition, _cuda_rules, _cuda_units, _oracle, build_layout
from jaxqc.xc._grid_becke import reference_fractions
from jaxqc.xc._grid_hilbert import reference_order
from jaxqc.xc._grid_partition import partition_fractions

NCOMP = {"lda": 1, "gga": 4, "mgga": 5}


@pytest.fixture(autouse=True, scope="module")
def _emulated(emulator):
    with pytest.MonkeyPatch.context() as patch:
        for module in (_cuda, _cuda_partition):
            patch.setattr(module, "call", emulator.call)
            patch.setattr(module, "architecture", lambda: 90)
        patch.setattr(_cuda_rules, "on_gpu", lambda: True)
        jax.clear_caches()
        yield
    jax.clear_caches()


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


def _check_shares(coords, points, owner, radii, seed, partition, tolerances):
    """Shares, and their pullback with what they left behind and where there was no place for it, against plain JAX."""
    want, pullback = jax.vjp(lambda c, p: reference_fractions(c, p, owner, radii, partition=partition), coords, points)
    arguments = (coords, points, owner, radii)
    got = _cuda_partition.grid_fractions(*arguments, partition=partition)
    again, kept = _cuda_partition.grid_fractions_kept(*arguments, partition=partition)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerances[0], atol=1e-18)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(got))
    shares = functools.partial(partition_fractions, owner=owner, radii=radii, partition=partition)
    traced = jax.make_jaxpr(lambda c: jax.grad(lambda c: jnp.vdot(seed, shares(c, points)))(c))(coords)
    assert kept.shape in [v.aval.shape for e in traced.eqns for v in e.outvars if "kept" in e.primitive.name]
    nothing = jnp.asarray(np.full(kept.shape, -1, np.int64).view(np.float64))
    for left in (kept, nothing):
        pulled = _cuda_partition.grid_pullbacks(*arguments, left, seed, partition=partition)
        for a, b in zip(pulled, pullback(seed), strict=True):
            b = np.asarray(b)
            np.testing.assert_allclose(np.asarray(a), b, rtol=tolerances[1], atol=1e-11 * (1 + np.abs(b).max()))


@pytest.mark.parametrize("partition", ["becke", "ssf"])
@pytest.mark.parametrize("size", [1, 2, 14])
def test_shares_of_space(partition, size):
    coords = jnp.asarray(systems.water_cluster(size)[1] if size > 1 else np.zeros((1, 3))) * 1.9
    if size == 2:
        coords = jnp.concatenate([coords, coords[:1]])  # a ghost on top of an atom
    rng = np.random.default_rng(3)
    n = 300
    owner = jnp.asarray(np.sort(rng.integers(len(coords), size=n)).astype(np.int32))
    points = coords[owner] + jnp.asarray(rng.normal(size=(n, 3)) * rng.uniform(0.05, 2.5, size=(n, 1)))
    points = points.at[0].set(coords[owner[0]])
    order = reference_order(points)
    points, owner = points[order], owner[order]
    radii = jnp.asarray(rng.uniform(0.6, 1.8, size=len(coords)))
    seed = jnp.asarray(rng.normal(size=n))
    _check_shares(coords, points, owner, radii, seed, partition, (1e-11, 1e-9))


@pytest.mark.parametrize("partition", ["becke", "ssf"])
def test_points_in_line_with_two_atoms(partition):
    """|r_i - r_j| is |R_i - R_j| there, or by rounding more, where a share and its derivatives vanish."""
    axis, rng = np.array([0.48, 0.6, 0.64]), np.random.default_rng(0)
    coords = jnp.asarray(np.outer([0.0, 2.3, 4.1], axis))
    first, along = np.arange(128) < 64, rng.uniform(0.1, 1.0, size=128)
    aside = rng.normal(size=(128, 3)) * (np.arange(128) % 4 == 0)[:, None]  # for these, all atoms have shares
    points = jnp.asarray(np.outer(np.where(first, -along, 4.1 + along), axis) + aside)
    owner = jnp.asarray(np.where(first, 0, 2).astype(np.int32))
    radii, seed = jnp.ones(3), jnp.asarray(along)
    _check_shares(coords, points, owner, radii, seed, partition, (1e-11, 1e-9))


@pytest.mark.parametrize("partition", ["becke", "ssf"])
def test_steps_that_vanish_in_one_kernel_only(partition):
    """Kernels round differently: what shares left of a step that is nearly 0 meets one that is exactly 0."""
    coords = jnp.asarray([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    rng = np.random.default_rng(0)
    on_axis = np.arange(64) % 4 != 0
    # |r_0 - r_1| is exactly 2 on the axis beyond atom 1; the others see to it that all atoms have shares.
    points = np.zeros((64, 3)) + [[2.5, 0.0, 0.0]] + np.where(on_axis[:, None], 0.0, rng.normal(size=(64, 3)) * 0.5)
    points[:, 0] += np.where(on_axis, np.arange(64) / 64, 0.0)
    beside = points + [0.0, 5e-8, 0.0] * on_axis[:, None]
    arguments = (jnp.ones(64, jnp.int32), jnp.ones(3))
    _, kept = _cuda_partition.grid_fractions_kept(coords, jnp.asarray(beside), *arguments, partition=partition)
    seed = jnp.ones(64)
    pulled = _cuda_partition.grid_pullbacks(coords, jnp.asarray(points), *arguments, kept, seed, partition=partition)
    shares = functools.partial(reference_fractions, owner=arguments[0], radii=arguments[1], partition=partition)
    expected = jax.vjp(lambda c, p: shares(c, p), coords, jnp.asarray(points))[1](seed)
    for a, b in zip(pulled, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_shares_of_space_in_a_long_chain():
    """Far partners are left out where they do not matter, and Becke's step falls slowly."""
    mol = jaxqc.Molecule(systems.polyglycine(20), basis="sto-3g")
    grid = jaxqc.xc.Grid(mol, level=1)
    some = (np.random.default_rng(0).integers(len(grid) // 32, size=12)[:, None] * 32 + np.arange(32)).ravel()
    points, owner, weights = grid.coords[some], grid.atom[some], grid.weights[some]
    radii = jnp.asarray(grid.template.size_radii)
    want = reference_fractions(mol.coords, points, owner, radii, partition="becke")
    nearest = jnp.min(jnp.linalg.norm(points[:, None] - mol.coords[None], axis=-1), axis=1)
    seed = weights / want * jnp.exp(-2.5 * nearest)
    seed = seed / jnp.max(jnp.abs(seed))
    _check_shares(mol.coords, points, owner, radii, seed, "becke", (1e-12, 1e-9))
