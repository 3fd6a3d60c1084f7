"""Arguments, reports and the shell command of Kohn-Sham calculations."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import dft, gto

import jaxqc
from jaxqc import cli, qcschema
from jaxqc.scf import ConvergenceError
from jaxqc.xc import Features, Grid, functional

WATER = str(Path(__file__).parents[1] / "examples" / "water.xyz")


@pytest.fixture(scope="module")
def solved(hydrogen_fluoride):
    return jaxqc.scf(hydrogen_fluoride, xc="pbe", grid=1)


# Arguments without meaning


@pytest.mark.parametrize(
    ("options", "error", "pattern"),
    [
        ({"xc": "b3lip"}, ValueError, "'b3lip'.*b3lyp"),
        ({"xc": ""}, ValueError, "xc|functional"),
        ({"xc": 3}, TypeError, "xc is 3"),
        ({"xc": "pbe-d3"}, NotImplementedError, "[Dd]ispersion"),
        ({"xc": "pbe", "grid": 10}, ValueError, "between 0 .* and 9"),
        ({"xc": "pbe", "grid": -1}, ValueError, "between 0 .* and 9"),
        ({"xc": "pbe", "grid": "fine"}, TypeError, "level from 0 to 9"),
        ({"xc": "pbe", "grid": (0, 110)}, ValueError, "empty"),
        ({"xc": "pbe", "grid": (50, 111)}, ValueError, "Lebedev"),
        ({"xc": "pbe", "grid": {"Fe": 3, "Xx": 1}}, ValueError, "'Xx'"),
        ({"xc": "pbe", "grid": {"level": 3, "H": 1}}, ValueError, "'H'"),
        ({"xc": "pbe", "grid": {"partition": "voronoi"}}, ValueError, "'becke'"),
        ({"xc": "pbe", "grid": {"prune": "nwchen"}}, ValueError, "'nwchem'"),
        ({"xc": "pbe", "epsilon": -1e-12}, ValueError, "epsilon.*at least 0"),
        ({"xc": "pbe", "epsilon": 0.1}, ValueError, "epsilon.*below 1e-3"),
        ({"xc": "pbe", "epsilon": float("nan")}, ValueError, "epsilon"),
        ({"xc": "pbe", "epsilon": "tiny"}, TypeError, "epsilon must be a number"),
        ({"xc": "pbe", "grid_response": 1}, TypeError, "grid_response must be True or False"),
        ({"xc": "pbe", "grids": 3}, TypeError, "did you mean 'grid'"),
        ({"grid": 3}, ValueError, "grid is for density functionals"),
        ({"grid_response": False}, ValueError, "grid_response is for density functionals"),
        ({"epsilon": 1e-10}, ValueError, "epsilon is for density functionals"),
        ({"xc": lambda f: jnp.sum(f.rho)}, ValueError, r"shape \(n,\)"),
        ({"xc": functional(lambda f: f.rho[0] + f.rho[1], kind="lda"), "guess": "atoms"}, ValueError, "atom"),
    ],
)
def test_arguments_without_meaning(hydrogen_fluoride, options, error, pattern):
    for function in (jaxqc.scf, jaxqc.energy, jaxqc.gradient):
        with pytest.raises(error, match=pattern):
            function(hydrogen_fluoride, **options)


def test_feature_that_a_functional_lacks():
    with pytest.raises(AttributeError, match="tau"):
        functional(lambda f: f.rho[0] * f.tau[0], kind="gga")
    with pytest.raises(AttributeError, match="'tau'.*'gga'"):
        _ = Features.of(jnp.ones((2, 1)), jnp.ones((2, 3, 1))).tau


def test_grids_that_do_not_belong(hydrogen_fluoride):
    other = Grid(jaxqc.Molecule("He 0 0 0", basis="sto-3g"), 0)
    with pytest.raises(ValueError, match="another molecule"):
        jaxqc.scf(hydrogen_fluoride, xc="pbe", grid=other)
    with pytest.raises(ValueError, match="from arrays"):
        jaxqc.scf(hydrogen_fluoride, xc="pbe", grid=Grid.from_arrays(other.coords, other.weights))


def test_grid_that_is_far_too_coarse(hydrogen_fluoride):
    for function in (jaxqc.scf, jaxqc.energy, jaxqc.gradient):
        with pytest.raises(ConvergenceError, match="grid of .* points, but there are 10: .* too coarse"):
            function(hydrogen_fluoride, xc="pbe", grid=(3, 6))
    flagged = jaxqc.scf(hydrogen_fluoride, xc="pbe", grid=(3, 6), throw=False)
    assert not bool(flagged.converged)
    data = qcschema.atomic_result(flagged)
    assert data["success"] is False and "too coarse" in data["error"]["error_message"]


# Ways to say the same


def test_grids_in_all_their_forms(hydrogen_fluoride, solved):
    mol = hydrogen_fluoride

    def energy(grid):
        return float(jaxqc.energy(mol, xc="pbe", grid=grid))

    expected = float(solved.energy)
    for grid in (Grid(mol, 1), {"H": 1, "F": 1}, (50, 194)):
        reference: Any = dft.RKS(mol.to_pyscf())
        reference.xc, reference.small_rho_cutoff, reference.conv_tol = "pbe", 0.0, 1e-11
        if grid == (50, 194):
            reference.grids.atom_grid = grid
            expected = reference.kernel()
        assert abs(energy(grid) - expected) < 1e-9
    partition = Grid(mol, 1, partition="ssf", prune=None)
    assert abs(energy(partition) - energy({"level": 1, "partition": "ssf", "prune": None})) < 1e-12
    assert abs(energy(partition) - float(solved.energy)) > 1e-9


def test_functionals_in_all_their_forms(hydrogen_fluoride, solved):
    mol = hydrogen_fluoride
    for xc in ("gga_x_pbe, GGA_C_PBE", functional("pbe")):
        assert abs(float(jaxqc.energy(mol, xc=xc, grid=1)) - float(solved.energy)) < 1e-10
    hartree_fock = float(jaxqc.energy(mol))
    assert abs(float(jaxqc.energy(mol, xc="hf", grid=0)) - hartree_fock) < 1e-9


def test_functional_of_libxc(hydrogen_fluoride):
    mf: Any = dft.RKS(hydrogen_fluoride.to_pyscf())
    mf.xc, mf.small_rho_cutoff, mf.conv_tol, mf.grids.level = "b97", 0.0, 1e-12, 1
    expected = mf.kernel()
    result = jaxqc.scf(hydrogen_fluoride, xc="b97", grid=1)
    assert abs(float(result.energy) - expected) < 1e-8


@pytest.mark.parametrize(
    "options",
    [
        {"guess": "core"},
        {"level_shift": 0.3},
        {"damping": 0.3},
        {"second_order": True},
    ],
)
def test_all_ways_lead_to_the_same_energy(hydrogen_fluoride, solved, options):
    result = jaxqc.scf(hydrogen_fluoride, xc="pbe", grid=1, **options)
    assert abs(float(result.energy) - float(solved.energy)) < 1e-9
    if options.get("second_order"):
        assert int(result.second_order_cycles) == int(result.cycles) - 1


def test_jit_equals_no_jit(hydrogen_fluoride, solved):
    whole = jax.jit(lambda m: jaxqc.scf(m, xc="pbe", grid=1, second_order=False))(hydrogen_fluoride)
    assert abs(float(whole.energy) - float(solved.energy)) < 1e-11
    assert abs(float(whole.energy_xc) - float(solved.energy_xc)) < 1e-8
    assert whole.xc == "pbe" and whole.kind == "RKS"


def test_failures_are_not_plain_numbers(hydrogen_fluoride):
    with pytest.raises(ConvergenceError, match="RKS calculation.*did not converge within max_cycles=2"):
        jaxqc.energy(hydrogen_fluoride, xc="pbe", grid=1, max_cycles=2)


@pytest.mark.slow
def test_no_number_from_broken_coordinates(hydrogen_fluoride):
    def total(x):
        return jaxqc.energy(hydrogen_fluoride.with_coords(x), xc="pbe", grid=0, second_order=False)

    assert np.isnan(float(jax.jit(total)(hydrogen_fluoride.coords.at[0, 0].set(jnp.nan))))


def test_functional_that_is_not_finite_without_density(hydrogen_fluoride):
    with pytest.raises(ConvergenceError, match="not finite.*A functional of your own"):
        jaxqc.energy(hydrogen_fluoride, xc=lambda f: -jnp.sum(f.rho, axis=0) * jnp.log(f.rho[0] - f.rho[1]), grid=0)


def test_gradient_of_a_result_takes_the_response_of_the_grid_only(hydrogen_fluoride, solved):
    with pytest.raises(TypeError, match="no further arguments but grid_response"):
        jaxqc.gradient(solved, epsilon=1e-10)
    with pytest.raises(ValueError, match="the result is of Hartree-Fock"):
        jaxqc.gradient(jaxqc.scf(hydrogen_fluoride), grid_response=False)


# Broken symmetry


def test_broken_symmetry_of_stretched_hydrogen():
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 3.5", basis="6-31g")
    restricted = jaxqc.scf(mol, xc="svwn", grid=1)
    check = jaxqc.scf.stability(mol, restricted)
    assert not check.stable and check.restricted is False and check.external < 0.0 < check.internal
    followed = jaxqc.scf(mol, xc="svwn", grid=1, restricted=False, guess=check.density)
    mf: Any = dft.UKS(mol.to_pyscf())
    mf.xc, mf.small_rho_cutoff, mf.conv_tol, mf.grids.level = "svwn", 0.0, 1e-12, 1
    expected = mf.kernel(np.asarray(check.density))
    assert abs(float(followed.energy) - expected) < 1e-8
    assert float(followed.energy) < float(restricted.energy) - 1e-2
    assert jaxqc.scf.stability(mol, followed).stable


# Reports


def test_report(solved):
    text = repr(solved)
    for part in ("RKS pbe of FH", "exchange-correlation", "points, which find 9.9999"):
        assert part in text
    assert f"{float(solved.energy_xc):.10f}" in solved._repr_html_()
    total = solved.energy_nuclear + solved.energy_one_electron + solved.energy_two_electron + solved.energy_xc
    assert abs(float(total) - float(solved.energy)) < 1e-10
    mf: Any = dft.RKS(solved.mol.to_pyscf())
    mf.xc, mf.small_rho_cutoff, mf.conv_tol, mf.grids.level = "pbe", 0.0, 1e-12, 1
    mf.kernel()
    assert abs(float(solved.energy_xc) - float(mf.scf_summary["exc"])) < 1e-6
    assert abs(float(solved.energy_two_electron) - float(mf.scf_summary["coul"])) < 1e-5


def test_shell_command(capsys):
    status = cli.main(["scf", WATER, "--basis", "sto-3g", "--xc", "pbe0", "--grid", "1", "--gradient", "--json", "-"])
    data = json.loads(capsys.readouterr().out)
    mf: Any = dft.RKS(gto.M(atom=WATER, basis="sto-3g", verbose=0))
    mf.xc, mf.small_rho_cutoff, mf.conv_tol, mf.grids.level = "pbe0", 0.0, 1e-12, 1
    expected = mf.kernel()
    slopes = mf.nuc_grad_method()
    slopes.grid_response = True
    assert status == 0 and data["success"]
    assert data["model"] == {"method": "pbe0", "basis": "sto-3g"}
    assert data["keywords"]["grid"] == 1 and data["keywords"]["reference"] == "rks"
    assert abs(data["properties"]["scf_total_energy"] - expected) < 1e-8
    parts = data["properties"]["scf_xc_energy"] + data["properties"]["scf_two_electron_energy"]
    assert abs(parts - float(mf.scf_summary["exc"] + mf.scf_summary["coul"])) < 1e-5
    np.testing.assert_allclose(data["return_result"], slopes.kernel().ravel(), atol=1e-6)
    assert data["extras"]["jaxqc"]["grid_points"] == Grid(jaxqc.Molecule(WATER, basis="sto-3g"), 1).template.size


def test_shell_command_shows_functional_and_grid(capsys):
    assert cli.main(["scf", WATER, "--basis", "sto-3g", "--xc", "pbe0", "--grid", "1"]) == 0
    out = capsys.readouterr().out
    for part in ("RKS pbe0/sto-3g", "exchange-correlation", "grid points find 9.9999", "total energy"):
        assert part in out


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("--xc", "b3lip"), "b3lyp"),
        (("--xc", "pbe", "--grid", "12"), "between 0"),
        (("--xc", "pbe", "--grid", "fine"), "neither a level"),
        (("--grid", "2"), "functional"),
    ],
)
def test_shell_command_refuses(capsys, arguments, pattern):
    try:
        status = cli.main(["scf", WATER, "--basis", "sto-3g", *arguments])
    except SystemExit as error:  # argparse's way
        status = error.code
    captured = capsys.readouterr()
    assert status == 2 and pattern in captured.err and captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_shell_command_tells_of_a_coarse_grid(capsys):
    assert cli.main(["scf", WATER, "--basis", "sto-3g", "--xc", "pbe", "--grid", "3,6", "--quiet"]) == 1
    captured = capsys.readouterr()
    assert "too coarse" in captured.err and captured.out == ""
