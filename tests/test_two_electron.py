"""jaxqc.integrals.jk and eri on molecules: values, screening, reproducibility, transformations of JAX, errors."""

import hashlib
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto
from pyscf.scf import _vhf
from two_electron_cases import densities, error, reference, shell_list

import jaxqc
from jaxqc.integrals import eri
from jaxqc.integrals._shells import ShellList
from jaxqc.systems import water_cluster

WATER = "O 0 0 0.1; H 0 0.757 0.587; H 0.2 -0.757 0.587"
MOLECULES = [
    (WATER, "sto-3g", False),
    (WATER, "6-31g**", True),
    (WATER, "cc-pvtz", False),
    (WATER, "aug-cc-pvdz", False),
    ("C 0 0 0; H 0 0 1.1; F 1.2 0.3 0; Cl -1 1.9 0", "cc-pvdz", False),  # general contractions
    ("Ti 0 0 0; O 0 0 1.62", "def2-svp", False),
    ("Si 0 0 0; ghost-O 0 0 1.5", "cc-pvdz", True),
    ("Ne 0 0 0", "cc-pvqz", False),  # g
    ("He 0 0 0", "sto-3g", False),
]


def jk(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
    """`jaxqc.integrals.jk`, typed as if it never returned None."""
    return jaxqc.integrals.jk(*arguments, **keywords)


def molecule(atom, basis, cart=False):
    return jaxqc.Molecule.from_pyscf(gto.M(atom=atom, basis=basis, cart=cart, spin=None, verbose=0))


def small():
    return molecule("O 0 0 0; H 0.3 0.8 0.6", "6-31g**")


@pytest.mark.parametrize(("atom", "basis", "cart"), MOLECULES)
def test_molecules(atom, basis, cart):
    mol = molecule(atom, basis, cart)
    density = densities(np.random.default_rng(0), mol.nao)
    value = jk(mol, jnp.asarray(density), threshold=1e-16)
    for v, e in zip(value, reference(mol.to_pyscf(), density), strict=True):
        assert v.shape == density.shape
        assert error(np.asarray(v), e) <= 1e-11


@pytest.mark.parametrize(
    ("atom", "basis", "cart"), [MOLECULES[0], MOLECULES[1], MOLECULES[3], MOLECULES[6], MOLECULES[8]]
)
def test_the_whole_tensor(atom, basis, cart):
    mol = molecule(atom, basis, cart)
    expected = mol.to_pyscf().intor("int2e").reshape((mol.nao,) * 4)
    assert error(np.asarray(eri(mol)), expected) <= 1e-12


@pytest.mark.parametrize("omega", [0.1, 0.3, 1.0, -0.1, -0.3, -1.0])
def test_range_separation(omega):
    mol = small()
    density = densities(np.random.default_rng(1), mol.nao)
    value = jk(mol, jnp.asarray(density), omega=omega, threshold=1e-16)
    for v, e in zip(value, reference(mol.to_pyscf(), density, omega), strict=True):
        assert error(np.asarray(v), e) <= 1e-11
    mole = mol.to_pyscf()
    with mole.with_range_coulomb(omega):
        expected = mole.intor("int2e").reshape((mol.nao,) * 4)
    assert error(np.asarray(eri(mol, omega=omega)), expected) <= 1e-12


def test_jk_is_the_tensor_contracted():
    mol = small()
    density = densities(np.random.default_rng(2), mol.nao, "g")[0]
    tensor = np.asarray(eri(mol))
    j, k = jk(mol, jnp.asarray(density), threshold=1e-16)
    assert error(np.asarray(j), np.einsum("ijkl,lk->ij", tensor, density)) <= 1e-12
    assert error(np.asarray(k), np.einsum("ijkl,jk->il", tensor, density)) <= 1e-12


# Screening


@pytest.fixture(scope="module")
def cluster():
    """Four waters in a row, 12 Bohr apart and more: most quartets are negligible at loose thresholds."""
    one = gto.M(atom=WATER, basis="6-31g*", verbose=0).atom_coords()
    atoms = [("OHH"[k % 3], tuple(one[k % 3] + (k // 3) * np.array([6.0, 1.0, 2.0]))) for k in range(12)]
    mole = gto.M(atom=atoms, basis="6-31g*", unit="bohr", verbose=0)
    density = densities(np.random.default_rng(3), mole.nao, "s")
    return mole, density, reference(mole, density)


@pytest.mark.parametrize("threshold", [1e-6, 1e-8, 1e-10, 1e-12, 1e-13, 1e-14, 1e-16])
def test_screening_errs_as_pyscf_does(cluster, threshold):
    mole, density, exact = cluster
    opt = _vhf._VHFOpt(mole, "int2e", "CVHFnrs8_prescreen", "CVHFnr_int2e_q_cond", "CVHFnr_dm_cond")
    opt.direct_scf_tol = threshold
    theirs = _vhf.direct(density, mole._atm, mole._bas, mole._env, opt, 1, mole.cart)
    ours = jk(jaxqc.Molecule.from_pyscf(mole), jnp.asarray(density), threshold=threshold)
    for mine, yours, e in zip(ours, theirs, exact, strict=True):
        assert error(np.asarray(mine), e) <= max(2 * error(yours, e), 3e-13)


def test_screening_skips_work(cluster):
    mole, density, exact = cluster
    j, k = jk(jaxqc.Molecule.from_pyscf(mole), jnp.asarray(density), threshold=1e-5)
    assert 1e-9 < error(np.asarray(j), exact[0]) < 1e-3
    assert 1e-9 < error(np.asarray(k), exact[1]) < 1e-3


def test_screening_meets_the_density_of_each_spin():
    # One tiny and one large density in a stack: bounds over both must not lose the quartets of either.
    mol = small()
    density = densities(np.random.default_rng(4), mol.nao, "ss")
    density[0] *= 1e-6
    both = jk(mol, jnp.asarray(density))
    for n in range(2):
        for together, alone in zip(both, jk(mol, jnp.asarray(density[n])), strict=True):
            assert np.max(np.abs(together[n] - alone)) <= 1e-12


# The same bits always


def bits(arrays):
    return hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()


def everything():
    """J, K and the derivative with respect to coordinates, of three densities."""
    mol = jaxqc.Molecule(water_cluster(2), basis="6-31g**")
    density = jnp.asarray(densities(np.random.default_rng(5), mol.nao))
    weight = jnp.asarray(densities(np.random.default_rng(6), mol.nao))

    def value(coords):
        j, k = jk(mol.with_coords(coords), density)
        return jnp.vdot(weight, j - 0.5 * k)

    return bits([*jk(mol, density), jax.grad(value)(mol.coords)])


def test_same_bits_for_any_number_of_threads(monkeypatch):
    monkeypatch.setenv("JAXQC_NUM_THREADS", "1")
    first = everything()
    for n in (1, 2, 3, 5):
        monkeypatch.setenv("JAXQC_NUM_THREADS", str(n))
        assert everything() == first


def test_same_bits_in_another_process(tmp_path):
    here = everything()
    script = "import test_two_electron as t; print(t.everything())"
    folder = os.path.dirname(__file__)
    for threads in ("1", "3"):
        path = os.pathsep.join([folder, os.path.dirname(folder), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "JAXQC_NUM_THREADS": threads, "PYTHONPATH": path}
        output = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert output.stdout.strip().splitlines()[-1] == here


# JAX


def test_another_geometry_compiles_nothing():
    mol = small()
    density = jnp.eye(mol.nao)
    step = jax.jit(lambda mol: jk(mol, density))
    step(mol)
    moved = mol.with_coords(mol.coords + 0.1 * jnp.arange(6.0).reshape(2, 3))
    value = step(moved)
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]
    for v, e in zip(value, reference(moved.to_pyscf(), np.eye(mol.nao)), strict=True):
        assert error(np.asarray(v), e) <= 1e-11


def test_vmap_over_densities_and_coordinates():
    mol = small()
    density = jnp.asarray(densities(np.random.default_rng(7), mol.nao, "sg"))
    for v, e in zip(jax.vmap(lambda d: jk(mol, d))(density), jk(mol, density), strict=True):
        assert error(np.asarray(v), np.asarray(e)) <= 1e-13
    coords = mol.coords + jnp.array([0.0, 0.1])[:, None, None] * jnp.arange(6.0).reshape(2, 3)
    mapped = jax.vmap(lambda c, d: jk(mol.with_coords(c), d))(coords, density)
    for n in range(2):
        for v, e in zip(mapped, jk(mol.with_coords(coords[n]), density[n]), strict=True):
            assert error(np.asarray(v[n]), np.asarray(e)) <= 1e-13


def test_vmap_of_the_tensor_over_coordinates():
    mol = molecule("H 0 0 0; H 0 0 0.74", "6-31g**")
    coords = mol.coords + jnp.array([0.0, 0.1])[:, None, None] * jnp.arange(6.0).reshape(2, 3)
    mapped = jax.vmap(lambda c: eri(mol.with_coords(c)))(coords)
    for n in range(2):
        assert error(np.asarray(mapped[n]), np.asarray(eri(mol.with_coords(coords[n])))) <= 1e-14


def test_linear_and_self_adjoint_in_the_density():
    mol = small()
    p, d = jnp.asarray(densities(np.random.default_rng(8), mol.nao, "gg"))
    for which in (0, 1):

        def linear(x, which=which):
            return jk(mol, x, threshold=1e-16)[which]

        assert error(np.asarray(linear(2 * p - 3 * d)), np.asarray(2 * linear(p) - 3 * linear(d))) <= 1e-12
        assert error(np.asarray(jax.grad(lambda x: jnp.vdot(p, linear(x)))(d)), np.asarray(linear(p))) <= 1e-12
        value, tangent = jax.jvp(linear, (d,), (p,))
        assert error(np.asarray(tangent), np.asarray(linear(p))) <= 1e-12


def test_inside_loops_and_conditionals():
    mol = small()
    density = jnp.asarray(densities(np.random.default_rng(9), mol.nao, "s")[0])

    @jax.jit
    def loop(mol, density):
        return jax.lax.fori_loop(0, 3, lambda _, d: 0.1 * jk(mol, d)[0], density)

    expected = density
    for _ in range(3):
        expected = 0.1 * jk(mol, expected)[0]
    assert error(np.asarray(loop(mol, density)), np.asarray(expected)) <= 1e-12


# Errors


def test_shapes_of_what_is_returned():
    mol = small()
    d = jnp.eye(mol.nao)
    j, k = jk(mol, d, exchange=False)
    assert j.shape == d.shape and k is None
    j, k = jk(mol, jnp.stack([d, d]), coulomb=False)
    assert j is None and k.shape == (2, *d.shape)
    j, k = jk(mol, jnp.zeros((0, *d.shape)))
    assert j.shape == k.shape == (0, *d.shape)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": np.eye(3)}, r"density .*shape \(3, 3\).*must be \(18, 18\)|density .*shape"),
        ({"density": np.ones(4)}, "density .*shape"),
        ({"density": np.ones((1, 1, 4, 4))}, "density .*shape"),
        ({"coulomb": False, "exchange": False}, "neither J nor K"),
        ({"threshold": 0.0}, "threshold .*above 0"),
        ({"threshold": -1e-10}, "threshold .*above 0"),
        ({"threshold": float("nan")}, "threshold .*above 0"),
        ({"threshold": "tight"}, "threshold .*above 0"),
        ({"omega": float("nan")}, "omega .*magnitude"),
        ({"omega": float("inf")}, "omega .*magnitude"),
    ],
)
def test_arguments_without_meaning(arguments, message):
    mol = small()
    with pytest.raises(ValueError, match=message):
        jk(mol, **{"density": np.eye(mol.nao), **arguments})


def test_a_tensor_too_large_is_refused():
    mol = jaxqc.Molecule(water_cluster(10), basis="cc-pvtz")
    with pytest.raises(ValueError, match="GB .*jaxqc.integrals.jk"):
        eri(mol)


def test_shells_agree_with_libcint():
    # The normalisation that jk relies on, from the raw numbers of the basis library.
    mole = gto.M(atom="Cl 0 0 0; H 0 0 1.3", basis="cc-pvtz", verbose=0, spin=None)
    ours, theirs = ShellList.from_molecule(jaxqc.Molecule.from_pyscf(mole)), shell_list(mole)
    assert (ours.ls, ours.nprims) == (theirs.ls, theirs.nprims)
    for name in ("centers", "exponents", "coefficients"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-13, atol=1e-15)
