"""Shares of space on GPUs: the kernels run thread by thread on the CPU, against plain JAX, and their resources."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuda_emulation import xc_kernels_on_the_cpu

import jaxqc
from jaxqc import systems
from jaxqc.gpu import build
from jaxqc.xc import _cuda_partition
from jaxqc.xc._grid import grid_template, place
from jaxqc.xc._grid_becke import reference_fractions
from jaxqc.xc._grid_hilbert import reference_order
from jaxqc.xc._grid_partition import partition_fractions


@pytest.fixture(autouse=True, scope="module")
def _emulated(emulator):
    with xc_kernels_on_the_cpu(emulator, _cuda_partition):
        yield


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


def _ring(element, n, radius):
    angles = 2 * np.pi * np.arange(n) / n
    return [f"{element} {radius * np.cos(a):.10f} {radius * np.sin(a):.10f} 0" for a in angles]


def _cube(element, side):
    return [f"{element} {' '.join(f'{side * x}' for x in signs)}" for signs in itertools.product((-1, 1), repeat=3)]


SYMMETRIC = {
    "nitrogen": "N 0 0 0; N 0 0 1.1",
    "acetylene": "H 0 0 -1.66; C 0 0 -0.6; C 0 0 0.6; H 0 0 1.66",
    "benzene": "; ".join(_ring("C", 6, 1.39) + _ring("H", 6, 2.48)),
    "cubane": "; ".join(_cube("C", 0.785) + _cube("H", 1.42)),
    "ghosts": "O 0 0 0; GHOST-O 0 0 0; H 0 0 0.96; GHOST-H 0 0 0.96; H 0.93 0 -0.24",
    "far apart": "O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24; He 0 0 529; O 0 3000 0; H 0 3000 0.96; H 0 3000.9 -0.2",
}


@pytest.mark.parametrize("partition", ["becke", pytest.param("ssf", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("level", [0, pytest.param(4, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)])
def test_grids_with_points_in_line_with_atoms(name, level, partition):
    """Of all groups of 32 points those with most points in line with two atoms, and the nuclei."""
    mol = jaxqc.Molecule(SYMMETRIC[name], basis="sto-3g")
    template = grid_template(mol, level)
    grid, coords = place(template, mol.coords, partition), np.asarray(mol.coords)
    groups = np.asarray(grid.coords)[: grid.size // 32 * 32].reshape(-1, 32, 3)
    groups = groups[:: max(1, len(groups) // 400)]
    r = np.linalg.norm(groups[:, :, None] - coords, axis=-1)
    apart = np.linalg.norm(coords[:, None] - coords, axis=-1)
    mu = np.abs(r[..., :, None] - r[..., None, :]) / np.where(apart > 0, apart, np.inf)
    chosen = np.argsort(-np.count_nonzero(mu > 1 - 1e-14, axis=(1, 2, 3)), kind="stable")[:12]
    points = np.concatenate([groups[chosen].reshape(-1, 3), coords])
    owner = jnp.asarray(np.linalg.norm(points[:, None] - coords, axis=-1).argmin(axis=1).astype(np.int32))
    seed = jnp.asarray(np.random.default_rng(0).normal(size=len(points)))
    radii = jnp.asarray(template.size_radii)
    _check_shares(mol.coords, jnp.asarray(points), owner, radii, seed, partition, (1e-11, 1e-9))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("partition", ["becke", pytest.param("ssf", marks=pytest.mark.slow)])
def test_kernels_stay_within_their_resources(partition, reverse, fresh_kernels):
    unit = _cuda_partition.unit_of(partition, reverse)
    used = build([unit], 90)[0].resources()["grid_partition"]
    # NVRTC 13.0 spills nothing, 13.2 a little.
    assert used["spill"] <= 48 and used["registers"] * 128 * dict(unit.defines)["BLOCKS"] <= 65536
