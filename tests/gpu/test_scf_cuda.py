"""Self-consistent fields on an NVIDIA GPU, with the code that users write, against PySCF and the CPU."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import dft, gto, scf

import jaxqc
from jaxqc import integrals
from jaxqc.scf import _fock

pytestmark = pytest.mark.gpu

WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
METHYL = "C 0 0 0.1; H 1.079 0 0; H -0.5395 0.9344 0; H -0.5395 -0.9344 0"
FLUORIDE = "H 0 0 0; F 0.1 0.2 0.9"

# name: (atoms, basis, functional, charge, spin, restricted, cartesian)
CASES = {
    "RHF": (WATER, "cc-pvdz", None, 0, 0, None, False),
    "RHF Cartesian f": (FLUORIDE, "cc-pvtz", None, 0, 0, None, True),
    "RHF g": ("Ne 0 0 0", "cc-pvqz", None, 0, 0, None, False),
    "RHF d of the third row": ("H 0 0 0; Cl 0 0 1.275", "def2-tzvp", None, 0, 0, None, False),
    "RHF anion": ("O 0 0 0; H 0 0 0.97", "aug-cc-pvdz", None, -1, 0, None, False),
    "UHF": (METHYL, "def2-svp", None, 0, 1, None, False),
    "ROHF": ("O 0 0 0; O 0 0 1.21", "6-31g*", None, 0, 2, True, True),
    "RKS": (WATER, "def2-svp", "pbe", 0, 0, None, False),
    "RKS hybrid": (FLUORIDE, "cc-pvtz", "b3lyp", 0, 0, None, False),
    "RKS range-separated": (WATER, "3-21g", "camb3lyp", 0, 0, None, False),
    "RKS short-range": (WATER, "3-21g", "hse06", 0, 0, None, False),
    "UKS short-range": (METHYL, "3-21g", "hse06", 0, 1, None, False),
    "RKS meta-GGA": (WATER, "3-21g", "tpss", 0, 0, None, False),
    "UKS": (METHYL, "3-21g", "pbe0", 0, 1, None, False),
    "ROKS": (METHYL, "sto-3g", "pbe", 0, 1, True, False),
}


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


def _molecule(case):
    atoms, basis, _, charge, spin, _, cart = CASES[case]
    return jaxqc.Molecule(atoms, basis=basis, charge=charge, spin=spin, cart=cart)


def _reference(case) -> Any:
    atoms, basis, xc, charge, spin, restricted, cart = CASES[case]
    mole = gto.M(atom=atoms, basis=basis, charge=charge, spin=spin, cart=cart, verbose=0)
    kinds = (scf.RHF, scf.ROHF, scf.UHF) if xc is None else (dft.RKS, dft.ROKS, dft.UKS)
    mf: Any = kinds[0 if spin == 0 and restricted is not False else 1 if restricted else 2](mole)
    if xc:
        mf.xc, mf.grids.level, mf.small_rho_cutoff = xc, 1, 0.0
    mf.conv_tol, mf.conv_tol_grad, mf.max_cycle = 1e-12, 1e-7, 200
    mf.kernel()
    assert mf.converged
    return mf


def _options(case):
    _, _, xc, _, _, restricted, _ = CASES[case]
    return {"restricted": restricted} | ({} if xc is None else {"xc": xc, "grid": 1})


def _on_gpu(result):
    return all(d.platform == "gpu" for leaf in jax.tree.leaves(result) for d in leaf.devices())


@pytest.mark.parametrize("case", CASES)
def test_energies_are_those_of_pyscf(case, monkeypatch):
    if "short-range" in case:
        monkeypatch.setattr(_fock, "_SHELLS", 0)  # as for large molecules
    want = _reference(case)
    got = jaxqc.scf(_molecule(case), **_options(case))
    assert float(got.energy) == pytest.approx(want.e_tot, abs=1e-9)
    np.testing.assert_allclose(np.asarray(got.mo_energy), want.mo_energy, atol=1e-6)
    assert _on_gpu(got.density)


@pytest.mark.parametrize("case", ["RHF", "UHF", "RKS hybrid", "UKS"])
def test_gradients_are_those_of_the_cpu(case):
    mol, options = _molecule(case), _options(case)
    got = jaxqc.gradient(mol, **options)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        want = jaxqc.gradient(_molecule(case), **options)
    assert _on_gpu(got)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-8)


@pytest.mark.parametrize("case", ["UHF", "RKS hybrid"])
def test_nothing_of_the_iterations_goes_through_the_host(case):
    mol, options = _molecule(case), _options(case)
    program = jax.jit(lambda x: jaxqc.energy(mol.with_coords(x), **options)).lower(mol.coords).as_text()
    assert "jaxqc_" in program and "callback" not in program


def test_second_order_steps():
    want = _reference("UHF").e_tot
    got = jaxqc.scf(_molecule("UHF"), second_order=True)
    assert int(got.second_order_cycles) > 0 and float(got.energy) == pytest.approx(want, abs=1e-9)


def test_orbitals_are_differentiated_implicitly():
    mol = jaxqc.Molecule(FLUORIDE, basis="sto-3g")

    def dipole(mol):
        return lambda field: jaxqc.scf(mol, field=field).dipole()

    got = jax.jacfwd(dipole(mol))(jnp.zeros(3))
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        want = jax.jacfwd(dipole(jaxqc.Molecule(FLUORIDE, basis="sto-3g")))(jnp.zeros(3))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-8)


def test_second_derivatives_take_general_contractions_on_the_host():
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.8", basis="sto-3g")
    hessian = jax.jit(jax.hessian(lambda x: jaxqc.energy(mol.with_coords(x))))
    got = hessian(mol.coords)
    step = 1e-4
    ends = [jaxqc.gradient(mol.with_coords(mol.coords.at[1, 2].add(s))) for s in (step, -step)]
    np.testing.assert_allclose(got[1, 2], (ends[0] - ends[1]) / (2 * step), atol=1e-6)


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("basis", ["cc-pvqz", "sto-3g"])
def test_one_electron_integrals_and_their_gradients_are_those_of_the_cpu(basis, cart):
    w = np.random.default_rng(0).normal(size=(300, 300))

    def values(f):
        mol = jaxqc.Molecule(WATER, basis=basis, cart=cart)
        some = jnp.asarray(w[: mol.nao, : mol.nao])
        slope = jax.jit(jax.grad(lambda x: jnp.sum(some * f(mol.with_coords(x)))))
        return [np.asarray(x) for x in (f(mol), slope(mol.coords))]

    cpu = jax.local_devices(backend="cpu")[0]
    for f in (integrals.overlap, integrals.kinetic, integrals.nuclear, integrals.dipole):
        got = values(f)
        with jax.default_device(cpu):
            want = values(f)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


def test_boys_function_and_all_integrals():
    t = jnp.linspace(0.0, 90.0, 500)
    mol = jaxqc.Molecule(FLUORIDE, basis="sto-3g")
    got = [np.asarray(x) for x in (integrals.boys(3, t), integrals.eri(mol))]
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        mol = jaxqc.Molecule(FLUORIDE, basis="sto-3g")
        want = [integrals.boys(3, jnp.linspace(0.0, 90.0, 500)), integrals.eri(mol)]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-13, atol=1e-14)
