"""What the two-electron kernels do with numbers they cannot take, and with heavily general contractions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto, scf

import jaxqc
from jaxqc import integrals
from jaxqc.integrals import eri

jk: Any = integrals.jk  # called with arguments of the wrong kind

WATER = "O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24"


@pytest.fixture(scope="module")
def mol():
    return jaxqc.Molecule(WATER, basis="sto-3g")


@pytest.mark.parametrize("omega", [1e300, -1e300, 1e-300, np.nan, np.inf, True, "0.3", None])
def test_omega_out_of_range(mol, omega):
    with pytest.raises(ValueError, match="omega of jaxqc.integrals.jk must be"):
        jk(mol, np.eye(7), omega=omega)
    with pytest.raises(ValueError, match="omega of jaxqc.integrals.eri must be"):
        eri(mol, omega=omega)


@pytest.mark.parametrize("threshold", [0, -1e-13, np.inf, np.nan, True, "1e-13"])
def test_threshold_out_of_range(mol, threshold):
    with pytest.raises(ValueError, match="threshold"):
        jk(mol, np.eye(7), threshold=threshold)


@pytest.mark.parametrize("density", [1j * np.eye(7), "x", None, np.eye(6), np.zeros((2, 2, 7, 7)), np.eye(7) > 0])
def test_density_of_the_wrong_kind(mol, density):
    with pytest.raises(ValueError, match="density of jaxqc.integrals.jk"):
        jk(mol, density)


def test_nan_is_passed_on(mol):
    one = jnp.eye(7)
    for value in jk(mol, one * jnp.nan):
        assert value is not None and np.isnan(value).all()
    moved = jax.jit(lambda c: jk(mol.with_coords(c), one)[0])
    assert np.isnan(moved(mol.coords * jnp.nan)).all()
    exponents = jax.jit(lambda e: jk(mol.with_exponents(e), one)[1])
    assert np.isnan(exponents(-mol.exponents)).all()
    assert np.isnan(exponents(mol.exponents.at[1].set(jnp.inf))).all()
    gradient = jax.jit(jax.grad(lambda c: jnp.vdot(one, jk(mol.with_coords(c), one)[1])))
    assert np.isnan(gradient(mol.coords.at[0, 0].set(jnp.nan))).all()
    overlap = jax.jit(lambda c: jaxqc.integrals.overlap(mol.with_coords(c)))
    assert np.isnan(overlap(mol.coords * jnp.nan)).all()
    nuclear = jax.jit(lambda e: jaxqc.integrals.nuclear(mol.with_exponents(e)))
    assert np.isnan(nuclear(-mol.exponents)).all()


@pytest.mark.parametrize("cart", [False, True])
def test_general_contraction_taken_apart(cart):
    """ANO functions over the same primitives: against libcint, and the derivative against differences."""
    pyscf_mol = gto.M(atom="O 0 0 0; H 0 0.3 0.9", basis="ano@4s3p1d", cart=cart, spin=1, verbose=0)
    mol = jaxqc.Molecule.from_pyscf(pyscf_mol)
    rng = np.random.default_rng(3)
    density = rng.normal(size=(mol.nao, mol.nao))
    expected = [np.asarray(x, float) for x in scf.hf.get_jk(pyscf_mol, density, hermi=0)]
    for value, reference in zip(jk(mol, density), expected, strict=True):
        assert value is not None
        assert np.abs(value - reference).max() < 1e-11 * max(1.0, np.abs(reference).max())

    def energy(coords):
        return jnp.vdot(density, jk(mol.with_coords(coords), density, coulomb=False, threshold=1e-15)[1])

    direction = jnp.asarray(rng.normal(size=mol.coords.shape))
    step = 1e-3
    slope = jnp.vdot(jax.grad(energy)(mol.coords), direction)

    def difference(h):
        return (energy(mol.coords + h * direction) - energy(mol.coords - h * direction)) / (2 * h)

    assert abs(slope - (4 * difference(step) - difference(2 * step)) / 3) < 1e-8 * max(1.0, abs(slope))
