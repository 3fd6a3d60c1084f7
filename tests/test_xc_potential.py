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


def test_layouts_and_grids_of_other_molecules_are_refused(water):
    mol, _, density, grid = water
    other = jaxqc.Molecule(WATER, basis="sto-3g")
    layout = jaxqc.xc.build_layout(other, grid.coords, grid.weights)
    with pytest.raises(ValueError, match="other shells"):
        jaxqc.xc.potential(mol, layout, "pbe", density)
    nitrogen = jaxqc.Molecule("N 0 0 0; N 0 0 1.1", basis="sto-3g")
    with pytest.raises(ValueError, match="another molecule"):
        jaxqc.xc.potential(nitrogen, grid, "pbe", np.eye(10))
    with pytest.raises(ValueError, match="other coordinates"):
        jaxqc.xc.potential(mol.with_coords(1.01 * mol.coords), grid, "pbe", density)


def test_functions_whose_state_changes_are_read_again(water):
    mol, _, density, grid = water

    class Exchange:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, features):
            return self.factor * jnp.sum(features.rho ** (4 / 3), axis=0)

    for kind in (float, jnp.asarray):
        model = Exchange(kind(-0.9))
        _, first, _ = jaxqc.xc.potential(mol, grid, model, density)
        model.factor = kind(-0.45)
        np.testing.assert_allclose(jaxqc.xc.potential(mol, grid, model, density)[1], 0.5 * first, rtol=1e-12)


def test_other_geometries_compile_nothing(water):
    mol, _, density, _ = water
    events = []
    steps = [jaxqc.Molecule(WATER, basis="def2-svp").with_coords((1 + 0.001 * k) * mol.coords) for k in range(3)]
    jaxqc.xc.potential(steps[0], jaxqc.xc.Grid(steps[0], 1), "pbe", density)

    def note(event, duration_secs, **kwargs):
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    for step in steps[1:]:
        jaxqc.xc.potential(step, jaxqc.xc.Grid(step, 1), "pbe", density)
    assert not [event for event in events if "backend_compile" in event]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"density": np.eye(3)}, ValueError, r"shape \(24, 24\)"),
        ({"density": np.eye(24) * 1j}, TypeError, "real numbers"),
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"epsilon": float("nan")}, ValueError, "epsilon"),
        ({"grid": 3}, TypeError, r"jaxqc\.xc\.Grid"),
        ({"density": None}, TypeError, "array of shape"),
        ({"xc": "b3ylp"}, ValueError, "b3lyp"),
        ({"xc": "gga_x_lb"}, NotImplementedError, "without an energy"),
        ({"xc": "1e300*pbe"}, ValueError, "factor"),
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
