"""The Coulomb engine in Hermite Gaussians on an NVIDIA GPU against PySCF."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto, scf

import jaxqc
from jaxqc import systems
from jaxqc.integrals import _cuda_hermite as hermite
from jaxqc.integrals._shells import ShellList

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


@functools.partial(jax.jit, static_argnames=("cart", "options"))
def _coulomb(shells, density, cart=False, options=hermite.DEFAULT, part=0):
    plan = hermite.plan(shells.ls, shells.nprims, cart)
    pairs = hermite.prepare(plan, shells.centers, shells.exponents, shells.coefficients)
    return hermite.coulomb(plan, pairs, density, options, part)


def _case(n, basis, sets, cart=False):
    symbols, coords = systems.water_cluster(n)
    plain = gto.M(atom=list(zip(symbols, coords, strict=True)), basis=basis, cart=cart, verbose=0)
    m = np.random.default_rng(n).normal(size=(sets, plain.nao, plain.nao))
    density = scf.hf.init_guess_by_minao(plain) + 0.01 * (m + m.transpose(0, 2, 1))
    return plain, ShellList.from_molecule(jaxqc.Molecule.from_pyscf(plain)), jnp.asarray(density)


@pytest.mark.parametrize(
    ("n", "basis", "sets", "cart"),
    [(4, "cc-pvdz", 1, False), (2, "cc-pvtz", 2, True), (2, "cc-pvtz", 3, False), (1, "cc-pvqz", 1, False)],
)
def test_matrices_are_those_of_pyscf(n, basis, sets, cart):
    plain, shells, density = _case(n, basis, sets, cart)
    for omega in (0.0, 0.3):
        with plain.with_range_coulomb(omega):
            want = scf.hf.get_jk(plain, np.asarray(density), hermi=1, with_k=False)[0]
        got = _coulomb(shells, density, cart, hermite.Options(omega=omega))
        assert np.max(np.abs(got - want)) < 1e-10


def test_results_do_not_vary_and_parts_add_up():
    _, shells, density = _case(4, "cc-pvdz", 1)
    once = _coulomb(shells, density)
    assert np.array_equal(once, _coulomb(shells, density))
    parts = [_coulomb(shells, density, options=hermite.Options(parts=3), part=k) for k in range(3)]
    assert np.max(np.abs(sum(parts) - once)) < 1e-12
