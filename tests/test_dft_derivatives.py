"""Derivatives of Kohn-Sham energies: nuclei, basis set, field, parameters of a functional."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from differences import central
from jax.tree_util import Partial
from pyscf import dft, gto

import jaxqc

TIGHT: dict[str, Any] = {"tolerance": 1e-12, "gradient_tolerance": 1e-9}
WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
CROOKED = "O 0 0.02 0.1173; H 0.05 0.7572 -0.4692; H 0 -0.7372 -0.4792"
AMINO = "N 0 0 0; H 0.8 0.6 0.1; H -0.85 0.6 0"
FLUORIDE = "H 0 0 0; F 0.1 0.2 0.9"
CASES = {
    # name: (atoms, basis, functional, spin, restricted)
    "lda": (CROOKED, "sto-3g", "svwn", 0, None),
    "hybrid": (CROOKED, "6-31g*", "b3lyp", 0, None),
    "range-separated": (FLUORIDE, "sto-3g", "camb3lyp", 0, None),
    "meta": (FLUORIDE, "6-31g", "r2scan", 0, None),
    "uks": (AMINO, "sto-3g", "pbe0", 1, None),
    "uks-meta": (AMINO, "sto-3g", "tpss", 1, None),
    "roks": (AMINO, "sto-3g", "pbe", 1, True),
    "ghost": ("ghost-O 0 0 0; H 0 0 1.0; F 0 0.3 1.9", "sto-3g", "blyp", 0, None),
}


def molecule(name):
    atoms, basis, _, spin, _ = CASES[name]
    return jaxqc.Molecule(atoms, basis=basis, spin=spin)


def options(name, **more):
    return {"xc": CASES[name][2], "restricted": CASES[name][4], "grid": 1, **more}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("lda", "uks-meta", "ghost"))) for name in CASES]
)
def test_gradient_equals_pyscf(name):
    _, _, xc, spin, restricted = CASES[name]
    mol = molecule(name)
    mf: Any = (dft.RKS if spin == 0 else dft.ROKS if restricted else dft.UKS)(mol.to_pyscf())
    mf.xc, mf.conv_tol, mf.conv_tol_grad, mf.verbose, mf.small_rho_cutoff = xc, 1e-13, 1e-8, 0, 0.0
    mf.grids.level = 1
    mf.kernel()
    method = mf.nuc_grad_method()
    fixed = method.kernel()
    method.grid_response = True
    moving = method.kernel()
    assert np.abs(fixed - moving).max() > 1e-6
    result = jaxqc.scf(mol, **options(name, gradient_tolerance=1e-8))
    slopes = np.asarray(jaxqc.gradient(result))
    if name == "ghost":  # there PySCF's response is not the derivative of its energy
        moving = slopes.copy()
        moved = lambda z: mol.with_coords(mol.coords.at[0, 2].add(z[0]))  # noqa: E731
        moving[0, 2] = central(lambda z: jaxqc.energy(moved(z), **options(name, **TIGHT)), np.zeros(1))[0]
    np.testing.assert_allclose(slopes, moving, atol=1e-6)
    np.testing.assert_allclose(jaxqc.gradient(result, grid_response=False), fixed, atol=1e-6)
    assert np.abs(slopes.sum(axis=0)).max() < 1e-9


@pytest.mark.parametrize("name", ["hybrid", pytest.param("meta", marks=pytest.mark.slow), "roks"])
def test_gradient_equals_central_differences(name):
    mol, given = molecule(name), options(name, **TIGHT)
    # Along two directions that mix all coordinates.
    directions = jnp.asarray(np.random.default_rng(1).normal(size=(2, mol.natm, 3)))

    def along(x):
        return jaxqc.energy(mol.with_coords(mol.coords + jnp.einsum("k,kax->ax", x, directions)), **given)

    slopes = jnp.einsum("kax,ax->k", directions, jaxqc.gradient(mol, **given))
    np.testing.assert_allclose(slopes, central(along, np.zeros(2)), atol=1e-6)


def test_gradient_is_that_of_the_energy_where_the_grid_matters():
    mol = jaxqc.Molecule(WATER, basis="sto-3g")
    moving = np.asarray(jaxqc.gradient(mol, xc="scan"))
    assert abs(moving[0, 2] + 0.10492) < 1e-5
    assert np.abs(moving.sum(axis=0)).max() < 1e-9
    # What other programs do by default.
    fixed = np.asarray(jaxqc.gradient(mol, xc="scan", grid_response=False))
    assert abs(fixed[0, 2] - 0.02321) < 1e-5
    slope = central(lambda z: jaxqc.energy(mol.with_coords(mol.coords.at[0, 2].add(z[0])), xc="scan"), np.zeros(1))
    assert abs(float(slope[0]) - moving[0, 2]) < 1e-6


def test_gradient_in_all_its_forms():
    mol, given = molecule("lda"), options("lda")
    expected = np.asarray(jaxqc.gradient(mol, **given))

    def total(x):
        return jaxqc.energy(mol.with_coords(x), **given)

    np.testing.assert_allclose(jax.grad(total)(mol.coords), expected, atol=1e-10)
    np.testing.assert_allclose(jaxqc.gradient(jaxqc.scf(mol, **given)), expected, atol=1e-10)
    direction = jnp.asarray(np.random.default_rng(3).normal(size=(3, 3)))
    value, slope = jax.jvp(total, (mol.coords,), (direction,))
    assert abs(float(value) - float(total(mol.coords))) < 1e-11
    assert abs(float(slope) - float(np.sum(expected * np.asarray(direction)))) < 1e-10


def test_points_without_weights_are_left_out(monkeypatch):
    """As for large molecules, in energies and first and second derivatives."""
    mol = jaxqc.Molecule(FLUORIDE + "; He 0 0 4; He 0 1 -3; He 0 4 0", basis="sto-3g")
    given = {"xc": "svwn", "grid": 0, **TIGHT}

    def slope(f):
        return jax.grad(lambda x: jaxqc.energy(mol, field=x, **given))(f)

    unit = jnp.asarray([0.0, 0.0, 1.0])

    def numbers():
        result = jaxqc.scf(mol, **given)
        response = jax.jvp(slope, (jnp.zeros(3),), (unit,))[1]
        stability = jaxqc.scf.stability(mol, result).internal
        return result, (result.energy, jaxqc.gradient(result), jaxqc.gradient(mol, **given), response, stability)

    whole, expected = numbers()
    monkeypatch.setattr("jaxqc.scf._xc._FEW", 0)
    monkeypatch.setattr("jaxqc.scf._xc._BITS", 11)
    fewer, found = numbers()
    grid, points = jaxqc.xc.Grid(mol, 0), fewer.points
    assert whole.points is None
    assert points is not None
    assert len(grid) < len(points) < grid.template.size
    np.testing.assert_array_equal(points[: len(grid)], grid.index)
    np.testing.assert_array_equal(points[len(grid) :], ~grid.index[-1])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def test_rows_of_points_with_weights_have_room():
    """24 atoms of helium, of which one row in the middle saw more shells than any row of the whole grid."""
    places = [(3.2 * i, 3.2 * j, 3.2 * k) for i in range(3) for j in range(3) for k in range(3)][:24]
    basis = "\n".join(f"He    S\n  {e}  1.0" for e in (30.0, 8.0, 3.0, 1.2, 0.5, 0.25, 0.12))
    mol = jaxqc.Molecule([("He", place) for place in places], basis=basis)
    assert mol.nshell > 160
    result = jaxqc.scf(mol, xc="svwn", grid=0, throw=False, max_cycles=1)
    mf: Any = dft.RKS(mol.to_pyscf())
    mf.xc, mf.grids.level, mf.small_rho_cutoff = "svwn", 0, 0.0
    mf.grids.build()
    electrons, energy, _ = mf._numint.nr_rks(mf.mol, mf.grids, "svwn", np.asarray(result.density))
    found = result.points, result.grid_electrons, result.energy_xc
    assert all(x is not None for x in found)
    np.testing.assert_allclose(np.array(found[1:], float), [electrons, energy], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_gradients_of_a_result_and_inside_of_jit():
    mol, given = molecule("lda"), options("lda")
    expected = np.asarray(jaxqc.gradient(mol, **given))
    program = jax.jit(jax.grad(lambda x: jaxqc.energy(mol.with_coords(x), **given)))
    np.testing.assert_allclose(program(mol.coords), expected, atol=1e-9)
    whole = jax.grad(lambda x: jaxqc.scf(mol.with_coords(x), **given).energy)(mol.coords)
    np.testing.assert_allclose(whole, expected, atol=1e-10)

    def parts(x):
        result = jaxqc.scf(mol.with_coords(x), **given)
        assert result.energy_xc is not None
        return jnp.stack([result.energy_xc, result.energy_one_electron, result.energy_two_electron])

    direction = jnp.asarray(np.random.default_rng(4).normal(size=(3, 3)))
    _, slopes = jax.jvp(parts, (mol.coords,), (direction,))
    _, repulsion = jax.jvp(lambda x: mol.with_coords(x).energy_nuc(), (mol.coords,), (direction,))
    assert abs(float(slopes.sum() + repulsion) - float(np.sum(expected * np.asarray(direction)))) < 1e-7


@pytest.mark.slow
def test_vmap_equals_loop():
    mol, given = molecule("lda"), options("lda", grid=0, second_order=False)
    batch = jnp.stack([mol.coords, mol.coords * 1.02])

    def total(x):
        return jaxqc.energy(mol.with_coords(x), **given)

    np.testing.assert_allclose(jax.vmap(total)(batch), [float(total(x)) for x in batch], atol=1e-10)


@pytest.mark.parametrize("response", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_second_derivatives(response):
    given = options("lda", grid_response=response, grid=0, **TIGHT)
    mol = jaxqc.Molecule(CROOKED, basis="sto-3g")
    direction = jnp.asarray(np.random.default_rng(5).normal(size=(3, 3)))

    def slopes(t):
        return jaxqc.gradient(mol.with_coords(mol.coords + t * direction), **given)

    _, curvature = jax.jvp(slopes, (0.0,), (1.0,))
    if response:
        step = 1e-3
        far, near = ([np.asarray(slopes(jnp.asarray(k * s * step))) for s in (1, -1)] for k in (2, 1))
        expected = (8.0 * (near[0] - near[1]) - (far[0] - far[1])) / (12.0 * step)
        np.testing.assert_allclose(curvature, expected, atol=2e-6)
    else:
        mf: Any = dft.RKS(mol.to_pyscf())
        mf.xc, mf.conv_tol, mf.verbose, mf.small_rho_cutoff, mf.grids.level = "svwn", 1e-13, 0, 0.0, 0
        mf.kernel()
        hessian = mf.Hessian()
        hessian.grid_response = False
        np.testing.assert_allclose(curvature, np.einsum("abxy,by->ax", hessian.kernel(), direction), atol=1e-6)


@pytest.mark.slow
def test_second_derivatives_of_an_open_shell():
    mol, given = molecule("uks-meta"), options("uks-meta", **TIGHT)
    direction = jnp.asarray(np.random.default_rng(6).normal(size=(3, 3)))

    def slopes(t):
        return jaxqc.gradient(mol.with_coords(mol.coords + t * direction), **given)

    _, curvature = jax.jvp(slopes, (0.0,), (1.0,))
    expected = (np.asarray(slopes(1e-3)) - np.asarray(slopes(-1e-3))) / 2e-3
    np.testing.assert_allclose(curvature, expected, atol=2e-5)


@pytest.mark.parametrize("leaf", ["exponents", pytest.param("coefficients", marks=pytest.mark.slow)])
def test_basis_set_gradient(leaf):
    mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.917", basis="sto-3g")
    given = {"xc": "pbe", "grid": 0, **TIGHT}
    with_leaf, values = getattr(mol, f"with_{leaf}"), getattr(mol, leaf)

    def total(scales):
        return jaxqc.energy(with_leaf(values * scales), **given)

    ones = jnp.ones_like(values)
    direction = np.random.default_rng(2).normal(size=ones.shape)
    slope = float(jnp.sum(jax.grad(total)(ones) * direction))
    expected = central(lambda t: total(ones + t[0] * direction), np.zeros(1))
    assert abs(slope - float(expected[0])) < 1e-6


def test_dipole_is_the_derivative_in_the_field():
    mol = molecule("hybrid")
    given = options("hybrid", gradient_tolerance=1e-8)
    result = jaxqc.scf(mol, **given)
    slope = jax.grad(lambda f: jaxqc.energy(mol, field=f, **given))(jnp.zeros(3))
    np.testing.assert_allclose(-slope, result.dipole("au"), atol=1e-6)
    mf: Any = dft.RKS(mol.to_pyscf())
    mf.xc, mf.conv_tol, mf.verbose, mf.small_rho_cutoff, mf.grids.level = "b3lyp", 1e-12, 0, 0.0, 1
    mf.kernel()
    np.testing.assert_allclose(result.dipole(), mf.dip_moment(verbose=0), atol=1e-5)


@pytest.mark.slow
def test_polarizability_of_a_kohn_sham_state():
    mol = jaxqc.Molecule(FLUORIDE, basis="sto-3g")

    def slope(f):
        return jax.grad(lambda x: jaxqc.energy(mol, xc="svwn", grid=0, field=x, **TIGHT))(f)

    unit = jnp.asarray([0.0, 0.0, 1.0])
    _, response = jax.jvp(slope, (jnp.zeros(3),), (unit,))
    expected = (slope(1e-3 * unit) - slope(-1e-3 * unit)) / 2e-3
    np.testing.assert_allclose(response, expected, atol=1e-5)


# Functionals of one's own


def slater(parameters, features):
    """Exchange of Dirac with a free prefactor, and a term that depends on the gradient."""
    total = 0.0
    for rho, sigma in zip(features.rho, (features.sigma[0], features.sigma[2]), strict=True):
        safe = jnp.where(rho > 1e-12, rho, 1.0)
        reduced = sigma / safe ** (8.0 / 3.0)
        enhanced = 1.0 + parameters["gradient"] * reduced / (1.0 + 0.01 * reduced)
        total = total - jnp.where(rho > 1e-12, parameters["scale"] * safe ** (4.0 / 3.0) * enhanced, 0.0)
    return total


def test_users_functional_equals_the_name():
    scale = 1.5 * (3.0 / (4.0 * np.pi)) ** (1.0 / 3.0)
    mol = jaxqc.Molecule(AMINO, basis="sto-3g", spin=1)
    given = jaxqc.scf(mol, xc=lambda f: slater({"scale": scale, "gradient": 0.0}, f), grid=1)
    named = jaxqc.scf(mol, xc="lda,", grid=1)
    assert abs(float(given.energy) - float(named.energy)) < 1e-7
    assert given.kind == "UKS" and given.xc


@pytest.mark.parametrize("how", ["closure", "partial", "jit"])
def test_gradient_with_respect_to_a_functional(how):
    mol = molecule("lda")
    parameters = {"scale": jnp.asarray(0.93), "gradient": jnp.asarray(0.004)}

    def total(p):
        xc = Partial(slater, p) if how == "partial" else lambda f: slater(p, f)
        return jaxqc.energy(mol, xc=xc, grid=0, gradient_tolerance=1e-8, second_order=False)

    slopes = (jax.jit(jax.grad(total)) if how == "jit" else jax.grad(total))(parameters)
    for name, step in (("scale", 1e-3), ("gradient", 1e-4)):
        values = [float(total({**parameters, name: parameters[name] + s * step})) for s in (1, -1)]
        assert abs(float(slopes[name]) - (values[0] - values[1]) / (2.0 * step)) < 1e-4


@pytest.mark.slow
def test_response_of_orbitals_to_a_functional():
    mol = molecule("lda")

    def total(p):
        xc = Partial(slater, {"scale": p[0], "gradient": p[1]})
        return jaxqc.energy(mol, xc=xc, grid=0, **TIGHT)

    slope = jax.grad(total)
    p, unit = jnp.asarray([0.93, 0.004]), jnp.asarray([1.0, 0.0])
    _, curvature = jax.jvp(slope, (p,), (unit,))
    np.testing.assert_allclose(curvature, (slope(p + 1e-3 * unit) - slope(p - 1e-3 * unit)) / 2e-3, atol=1e-4)


def test_nothing_is_compiled_twice():
    mol = molecule("lda")
    parameters = {"scale": jnp.asarray(0.93), "gradient": jnp.asarray(0.0)}

    def learn(p):
        return jax.grad(lambda q: jaxqc.energy(mol, xc=lambda f: slater(q, f), grid=0))(p)

    learn(parameters)
    jaxqc.energy(mol, xc="pbe", grid=0)
    jaxqc.gradient(mol, xc="pbe", grid=0)
    other = mol.with_coords(mol.coords * 1.03)
    compiled = []

    def listen(event, duration_secs, **kwargs):
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jaxqc.energy(other, xc="pbe", grid=0)
        jaxqc.gradient(other, xc="pbe", grid=0)
        learn({"scale": jnp.asarray(0.9), "gradient": jnp.asarray(0.001)})
        assert compiled == []
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_derivatives_of_a_ghost_grid():
    mole = gto.M(atom="ghost-He 0 0 1.5; He 0 0 0", basis="6-31g", verbose=0)
    mol = jaxqc.Molecule.from_pyscf(mole)
    slopes = np.asarray(jaxqc.gradient(mol, xc="pbe", grid=1))
    expected = central(lambda z: jaxqc.energy(mol.with_coords(mol.coords.at[0, 2].add(z[0])), xc="pbe", grid=1), [0.0])
    assert abs(slopes[0, 2] - float(expected[0])) < 1e-7
