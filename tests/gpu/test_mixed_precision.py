"""Mixed precision on an NVIDIA GPU: matrices, energies and gradients against those in double precision."""

import jax
import jax.numpy as jnp
import pytest
from pyscf import scf

import jaxqc
from jaxqc import systems

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


@pytest.fixture(scope="module")
def water():
    return jaxqc.Molecule(list(zip(*systems.water_cluster(3), strict=True)), basis="cc-pvdz")


@pytest.mark.parametrize(("coulomb", "sets"), [(True, 1), (False, 2)])
def test_matrices_differ_by_rounding_of_small_integrals(water, coulomb, sets):
    density = jnp.asarray(scf.hf.init_guess_by_minao(water.to_pyscf()))
    density = jnp.stack([density, 0.5 * density[::-1, ::-1]][:sets])
    double, mixed = (
        jaxqc.integrals.jk(water, density, coulomb=coulomb, symmetric=True, precision=p) for p in ("double", "mixed")
    )
    for x, y in zip(double, mixed, strict=True):
        if x is not None and y is not None:
            assert 0.0 < float(jnp.max(jnp.abs(x - y))) < 1e-9


def test_energies_agree_to_1e_minus_8_and_gradients_follow(water):
    double, mixed = (jaxqc.scf(water, precision=p) for p in ("double", "mixed"))
    assert float(double.energy) == pytest.approx(float(mixed.energy), abs=1e-8)
    assert mixed.converged and mixed.cycles <= double.cycles + 2
    slopes = [jaxqc.gradient(water, precision=p) for p in ("double", "mixed")]
    assert float(jnp.max(jnp.abs(slopes[0] - slopes[1]))) < 1e-7
