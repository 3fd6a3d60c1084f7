"""Gradients of J and K on an NVIDIA GPU against the kernels of the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_cuda_gradient as emulated
from pyscf import scf

import jaxqc
from jaxqc import systems

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("ls", [(0, 1, 2), (0, 1, 3), (2, 3, 4), (0, 4)], ids=str)
def test_all_classes(ls, cart):
    emulated.assert_same(*emulated.both(emulated.shells_of(ls, cart, 3), cart=cart))


@pytest.mark.parametrize(
    "settings",
    [
        dict(nset=3, symmetric=False),
        dict(omega=0.4),
        dict(exchange=False),
        dict(coulomb=False, nset=2, symmetric=False, omega=0.7),
    ],
    ids=str,
)
def test_settings(settings):
    emulated.assert_same(*emulated.both(emulated.shells_of((0, 1, 2)), **settings))


def test_sums_in_fixed_point_are_the_same_in_any_order(monkeypatch):
    monkeypatch.setenv("JAXQC_DETERMINISTIC", "1")
    shells = emulated.shells_of((0, 1, 2), ncenter=4)
    found = [emulated.both(shells) for _ in range(3)]
    emulated.assert_same(*found[0])
    assert all(np.array_equal(f, found[0][0]) for f, _ in found)


def _energy(mol, density, coords):
    j, k = jaxqc.integrals.jk(mol.with_coords(coords), density, symmetric=True)
    assert j is not None and k is not None
    return 0.5 * jnp.sum(j * density) - 0.25 * jnp.sum(k * density)


def test_a_cluster_of_water_molecules_through_jax():
    mol = jaxqc.Molecule(list(zip(*systems.water_cluster(5), strict=True)), basis="cc-pvdz")
    density = np.asarray(scf.hf.init_guess_by_minao(mol.to_pyscf()))
    gradient = jax.jit(jax.grad(lambda x, d: _energy(mol, d, x)))
    found = np.asarray(gradient(mol.coords, jnp.asarray(density)))
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        host = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), mol)
        expected = np.asarray(jax.grad(functools.partial(_energy, host, jnp.asarray(density)))(host.coords))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
