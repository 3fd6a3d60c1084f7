"""What the self-consistent field does where it fails, or where numbers or the modes of JAX are unusual."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc.scf import ConvergenceError


@pytest.fixture(scope="module")
def solved(hydrogen_fluoride):
    return jaxqc.scf(hydrogen_fluoride)


def test_too_few_cycles_raise(hydrogen_fluoride):
    for function in (jaxqc.scf, jaxqc.energy, jaxqc.gradient):
        with pytest.raises(ConvergenceError, match="did not converge within max_cycles=2 cycles.*Try"):
            function(hydrogen_fluoride, max_cycles=2)
    with pytest.raises(ConvergenceError):
        jax.grad(lambda x: jaxqc.energy(hydrogen_fluoride.with_coords(x), max_cycles=2))(hydrogen_fluoride.coords)


def test_unconverged_result_says_so(hydrogen_fluoride):
    result = jaxqc.scf(hydrogen_fluoride, max_cycles=2, throw=False)
    assert not bool(result.converged)
    assert int(result.cycles) == 2
    assert "NOT CONVERGED" in repr(result)
    assert "NOT CONVERGED" in result._repr_html_()
    with pytest.raises(ConvergenceError):
        jaxqc.gradient(result)
    with pytest.raises(ConvergenceError):
        jaxqc.scf.stability(hydrogen_fluoride, result)


def test_no_number_from_an_unconverged_run(hydrogen_fluoride):
    def run(x):
        return jaxqc.energy(hydrogen_fluoride.with_coords(x), max_cycles=2)

    assert np.isnan(float(jax.jit(run)(hydrogen_fluoride.coords)))
    assert np.isnan(np.asarray(jax.jit(jax.grad(run))(hydrogen_fluoride.coords))).all()
    assert np.isnan(float(jaxqc.energy(hydrogen_fluoride, max_cycles=2, throw=False)))
    assert np.isnan(np.asarray(jaxqc.gradient(hydrogen_fluoride, max_cycles=2, throw=False))).all()


def test_constants_inside_of_transformations(hydrogen_fluoride, solved):
    # The molecule is a constant of the traced function: nothing can be raised, and nothing may break.
    inside = jax.jit(lambda x: x * jaxqc.energy(hydrogen_fluoride))
    assert abs(float(inside(1.0)) - float(solved.energy)) < 1e-9
    result = jax.jit(lambda x: (x, jaxqc.scf(hydrogen_fluoride)))(1.0)[1]
    assert bool(result.converged) and abs(float(result.energy) - float(solved.energy)) < 1e-9
    slope = jax.grad(lambda x: x * jaxqc.energy(hydrogen_fluoride))(1.0)
    assert abs(float(slope) - float(solved.energy)) < 1e-9
    unfinished = jax.jit(lambda m: jaxqc.scf(m, max_cycles=2))(hydrogen_fluoride)
    assert not bool(unfinished.converged)
    assert np.isnan(np.asarray(unfinished.energy)) and np.isnan(np.asarray(unfinished.density)).all()
    assert np.isnan(np.asarray(unfinished.dipole())).all()


def test_not_a_number_raises(hydrogen_fluoride):
    broken = jax.tree.unflatten(
        jax.tree.structure(hydrogen_fluoride),
        [hydrogen_fluoride.coords.at[0, 0].set(jnp.nan), hydrogen_fluoride.exponents, hydrogen_fluoride.coefficients],
    )
    with pytest.raises(ConvergenceError, match="not finite"):
        jaxqc.scf(broken)
    with pytest.raises(ConvergenceError, match="not finite"):
        jaxqc.energy(broken)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_coordinates_that_are_not_finite(hydrogen_fluoride, value):
    broken = hydrogen_fluoride.coords.at[1, 2].set(value)

    def total(x):
        return jaxqc.energy(hydrogen_fluoride.with_coords(x))

    assert np.isnan(float(jax.jit(total)(broken)))
    assert np.isnan(np.asarray(jax.jit(jax.grad(total))(broken))).all()
    assert np.isnan(np.asarray(jax.jit(lambda x: jaxqc.gradient(hydrogen_fluoride.with_coords(x)))(broken))).all()
    # The other member of a batch is not touched.
    both = jax.vmap(total)(jnp.stack([hydrogen_fluoride.coords, broken]))
    assert np.isnan(float(both[1])) and abs(float(both[0]) - float(total(hydrogen_fluoride.coords))) < 1e-10
    with pytest.raises(ValueError, match="not finite"):
        total(broken)


def test_exponents_that_make_no_functions(hydrogen_fluoride):
    exponents = hydrogen_fluoride.exponents

    def total(x):
        return jaxqc.energy(hydrogen_fluoride.with_exponents(x))

    compiled = jax.jit(total)
    for broken in (exponents * jnp.nan, exponents.at[-1].set(jnp.nan), exponents * jnp.inf, -exponents, exponents * 0):
        assert np.isnan(float(compiled(broken)))
        with pytest.raises(ValueError, match="exponents"):
            total(broken)
    assert abs(float(compiled(exponents)) - float(total(exponents))) < 1e-10
    with pytest.raises(ConvergenceError, match="not finite"):
        total(exponents * 1e300)


def test_without_jit():
    with jax.disable_jit():
        energy = jaxqc.energy(jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g"))
    assert float(energy) == pytest.approx(-1.1167593074, abs=1e-9)  # PySCF


def test_ranks_are_not_promoted(solved):
    methyl = jaxqc.Molecule("C 0 0 0; H 0 0 1.12", basis="sto-3g", spin=1)
    energies_of_pyscf: Any = (
        ({"second_order": True}, -37.769875800140),
        ({"restricted": True, "level_shift": 0.1, "damping": 0.1}, -37.768728284953),
        ({"xc": "pbe", "grid": (10, 26)}, -37.879718210754),
    )
    with jax.numpy_rank_promotion("raise"):
        for options, energy in energies_of_pyscf:
            assert float(jaxqc.energy(methyl, **options)) == pytest.approx(energy, abs=1e-9)
        result = jaxqc.scf(solved.mol)
        np.testing.assert_allclose(jaxqc.gradient(solved.mol), jaxqc.gradient(result), atol=1e-9)
        np.testing.assert_allclose(result.dipole(), solved.dipole(), atol=1e-8)


def test_too_few_functions_left_raise(hydrogen_fluoride):
    for function in (jaxqc.scf, jaxqc.energy, jaxqc.gradient):
        with pytest.raises(ConvergenceError, match="only 0 of 6 basis functions.*smaller linear_dependence"):
            function(hydrogen_fluoride, linear_dependence=1e9)
    assert np.isnan(float(jax.jit(lambda m: jaxqc.energy(m, linear_dependence=1e9))(hydrogen_fluoride)))


def test_debugging_of_nans_works(hydrogen_fluoride, solved):
    oxide = jaxqc.Molecule("N 0 0 0; O 0 0 1.165", basis="sto-3g", spin=1)
    expected = float(jaxqc.energy(oxide))
    with jax.debug_nans(True):
        result = jaxqc.scf(hydrogen_fluoride)
        assert abs(float(result.energy) - float(solved.energy)) < 1e-10
        assert "converged" in repr(result)
        assert result.energies.shape == (int(result.cycles) + 1,) and np.isfinite(np.asarray(result.energies)).all()
        slopes = jaxqc.gradient(hydrogen_fluoride)
        traced = jax.jit(jax.grad(lambda x: jaxqc.energy(hydrogen_fluoride.with_coords(x))))(hydrogen_fluoride.coords)
        np.testing.assert_allclose(traced, slopes, atol=1e-10)
        assert abs(float(jax.jit(jaxqc.scf)(oxide).energy) - expected) < 1e-10
        with pytest.raises(ConvergenceError, match="did not converge"):
            jaxqc.energy(hydrogen_fluoride, max_cycles=2)
    np.testing.assert_allclose(slopes, jaxqc.gradient(solved), atol=1e-10)
