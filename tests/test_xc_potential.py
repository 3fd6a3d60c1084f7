"""One exchange-correlation step: against PySCF on its own grid, under jit, and with arguments without meaning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import dft

import jaxqc

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"


@pytest.fixture(scope="module")
def water():
    mol = jaxqc.Molecule(WATER, basis="def2-svp")
    field = dft.RKS(mol.to_pyscf())
    field.grids.level = 1
    field.grids.build()
    density = field.get_init_guess()
    return mol, field, density, jaxqc.xc.Grid(mol, level=1)


@pytest.mark.parametrize("xc", ["svwn", "pbe", "b3lyp", "r2scan"])
def test_closed_shell_equals_pyscf(water, xc):
    mol, field, density, grid = water
    nelec, exc, vxc = jaxqc.xc.potential(mol, grid, xc, density)
    expected = field._numint.nr_rks(field.mol, field.grids, "lda,vwn" if xc == "svwn" else xc, density)
    np.testing.assert_allclose([nelec, exc], expected[:2], atol=1e-10)
    np.testing.assert_allclose(vxc, expected[2], atol=1e-9)


def test_open_shell_equals_pyscf(water):
    mol, field, density, grid = water
    pair = np.stack([0.55 * density, 0.45 * density])
    nelec, exc, vxc = jaxqc.xc.potential(mol, grid, "pbe", pair)
    expected = field._numint.nr_uks(field.mol, field.grids, "pbe", pair)
    np.testing.assert_allclose(nelec, sum(expected[0]), atol=1e-10)
    np.testing.assert_allclose(exc, expected[1], atol=1e-10)
    np.testing.assert_allclose(vxc, expected[2], atol=1e-9)


def test_layout_serves_many_steps_inside_of_jit(water):
    mol, _, density, grid = water
    layout = jaxqc.xc.build_layout(mol, grid.coords, grid.weights)
    assert repr(layout).startswith(f"Layout({grid.size} points in ")
    step = jax.jit(lambda d: jaxqc.xc.potential(mol, layout, "pbe", d))
    for value, expected in zip(step(density), jaxqc.xc.potential(mol, grid, "pbe", density), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-13, atol=1e-13)


def test_values_that_are_no_numbers_are_refused_or_stay_visible(water):
    mol, _, density, grid = water
    with pytest.raises(ValueError, match="density must be finite"):
        jaxqc.xc.potential(mol, grid, "pbe", density * np.nan)
    assert all(np.isnan(x) for x in jax.jit(lambda d: jaxqc.xc.potential(mol, grid, "pbe", d)[:2])(density * np.nan))
    with pytest.raises(ValueError, match="1 of 3 points"):
        jaxqc.xc.Grid.from_arrays([[0.0, 0.0, 0.0], [np.nan, 0.0, 0.0], [0.0, 0.0, 1.0]], np.ones(3))
    broken = jaxqc.xc.build_layout(mol, grid.coords.at[0, 0].set(jnp.nan), grid.weights)
    assert all(np.isnan(x).all() for x in jaxqc.xc.potential(mol, broken, "pbe", density))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"density": np.eye(3)}, ValueError, r"shape \(24, 24\)"),
        ({"density": np.eye(24) * 1j}, TypeError, "real numbers"),
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"epsilon": float("nan")}, ValueError, "epsilon"),
        ({"grid": 3}, TypeError, r"jaxqc\.xc\.Grid"),
        ({"xc": "b3ylp"}, ValueError, "b3lyp"),
        ({"xc": 3}, TypeError, "name such as"),
        ({"xc": lambda f: f.rho}, ValueError, r"shape \(n,\)"),
        ({"mol": "water"}, TypeError, "Molecule"),
    ],
)
def test_arguments_without_meaning(water, change, error, match):
    mol, _, density, grid = water
    arguments = {"mol": mol, "grid": grid, "xc": "pbe", "density": density, **change}
    with pytest.raises(error, match=match):
        jaxqc.xc.potential(**arguments)
