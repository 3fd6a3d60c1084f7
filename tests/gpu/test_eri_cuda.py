"""J and K on an NVIDIA GPU: every class against the CPU's kernels, and whole builds where programs use them."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_cuda_eri as emulated
from pyscf import scf

import jaxqc
from jaxqc import systems
from jaxqc.gpu import _launch
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals._cuda_classes import Variant

pytestmark = pytest.mark.gpu

LMAX = {False: 4, True: 3}  # of spherical and Cartesian functions


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


def _classes(cart):
    return emulated.all_classes(*range(LMAX[cart] + 1))


@pytest.fixture(scope="module")
def everything():
    """Shells of all kinds on two places, spherical and Cartesian, all kernels compiled."""
    _launch.load([cuda_classes.kernel(*c, Variant(cart)).unit for cart in LMAX for c in _classes(cart)])
    return {cart: emulated.Case(tuple(range(lmax + 1)), ncenter=2, cart=cart) for cart, lmax in LMAX.items()}


@pytest.mark.parametrize(
    ("cart", "bra", "ket"), [(cart, *c) for cart in LMAX for c in _classes(cart)], ids=emulated.label
)
def test_each_class_is_that_of_the_cpu(cart, bra, ket, everything):
    emulated.check_class(everything[cart], bra, ket)


@pytest.mark.parametrize("bra", [(5, 0), (5, 5), (6, 2), (6, 6)], ids=emulated.label)
def test_classes_of_h_and_i_are_those_of_the_cpu(bra):
    emulated.check_class(emulated.Case(tuple(dict.fromkeys(bra)), ncenter=2, most=1), bra, bra)


@pytest.mark.parametrize("omega", [0.0, 0.4])
@pytest.mark.parametrize("kinds", ["s", "gs", "gas"])
def test_any_number_of_densities_of_any_symmetry(kinds, omega):
    emulated.test_any_number_of_densities_of_any_symmetry(kinds, omega, "")


@pytest.mark.parametrize("which", ["density", "centers", "exponents", "coefficients"])
def test_operands_that_are_no_numbers_give_none(which):
    emulated.test_operands_that_are_no_numbers_give_none(which, np.nan)


def test_sums_in_fixed_point_are_the_same_in_any_order():
    case, variant = emulated.case(0, 1, 2, ncenter=4), Variant(False, deterministic=True)
    classes = emulated.all_classes(0, 1, 2)
    density = case.densities("s")
    first = case.blocked(density, variant, classes)
    for order in (classes, classes[::-1]):
        again = case.blocked(density, variant, order)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    emulated.assert_close(first, case.reference(density))


# Whole builds: a cluster of water molecules.


@pytest.fixture(scope="module")
def water():
    mol = jaxqc.Molecule(list(zip(*systems.water_cluster(5), strict=True)), basis="cc-pvdz")
    return mol, jnp.asarray(scf.hf.init_guess_by_minao(mol.to_pyscf()))


def _error(got, want):
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("basis", ["cc-pvdz", "cc-pvtz"])
def test_matrices_are_those_of_pyscf(basis):
    mol = jaxqc.Molecule(list(zip(*systems.water_cluster(5 if basis == "cc-pvdz" else 2), strict=True)), basis=basis)
    mole = mol.to_pyscf()
    rng = np.random.default_rng(0)
    density = scf.hf.init_guess_by_minao(mole) + 0.1 * rng.normal(size=(mol.nao, mol.nao))
    want = scf.hf.get_jk(mole, density, hermi=0)
    assert _error(jaxqc.integrals.jk(mol, jnp.asarray(density)), want) < 1e-10


@pytest.mark.parametrize("omega", [-0.11, -0.6])
def test_short_range_exchange_is_that_of_pyscf(omega):
    """Two clusters: quartets are left out for their distance, as well."""
    symbols, coords = systems.water_cluster(3)
    far = np.asarray(coords) + np.array([18.0, 3.0, 5.0])
    mol = jaxqc.Molecule(list(zip([*symbols] * 2, [*np.asarray(coords), *far], strict=True)), basis="6-31g**")
    mole, rng = mol.to_pyscf(), np.random.default_rng(0)
    density = scf.hf.init_guess_by_minao(mole) + 0.1 * rng.normal(size=(mol.nao, mol.nao))
    want = scf.hf.get_jk(mole, density, hermi=0, omega=omega)
    assert _error(jaxqc.integrals.jk(mol, jnp.asarray(density), omega=omega), want) < 1e-10


def test_the_same_inside_jit_loops_and_batches(water):
    mol, density = water
    moved = jnp.asarray(mol.coords) * jnp.array([1.0, 1.05])[:, None, None]

    def build(coords, density):
        return [x for x in jaxqc.integrals.jk(mol.with_coords(coords), density) if x is not None]

    want = [build(c, density) for c in moved]
    compiled = jax.jit(build)
    for coords, expected in zip(moved, want, strict=True):
        assert _error(compiled(coords, density), expected) < 1e-12
    batch = jax.jit(jax.vmap(build, in_axes=(0, None)))(moved, density)
    assert _error(batch, [jnp.stack(x) for x in zip(*want, strict=True)]) < 1e-12

    def step(state):
        n, density = state
        return n + 1, density - 0.01 * build(mol.coords, density)[1]

    plain = (0, density)
    for _ in range(3):
        plain = step(plain)
    looped = jax.jit(lambda d: jax.lax.while_loop(lambda s: s[0] < 3, step, (0, d)))(density)
    assert _error(looped[1:], plain[1:]) < 1e-12


def test_other_work_on_the_device_does_no_harm(water):
    mol, density = water
    build = jax.jit(lambda d: jaxqc.integrals.jk(mol, d))
    want = build(density)
    matrix = jnp.asarray(np.random.default_rng(1).normal(size=(4000, 4000)))
    multiply = jax.jit(lambda x: x @ x / 4000.0)
    expected, done, products = multiply(matrix), threading.Event(), []

    def work():
        while not done.is_set():
            products.append(_error([multiply(matrix)], [expected]))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        errors = [_error(build(density), want) for _ in range(50)]
    finally:
        done.set()
        thread.join()
    assert max(errors) < 1e-12 and products and max(products) == 0.0


def test_a_derivative_with_respect_to_the_density_is_a_build(water):
    mol, density = water
    other = density[::-1, ::-1]
    tangent = jax.jvp(lambda d: jaxqc.integrals.jk(mol, d), (density,), (other,))[1]
    assert _error(tangent, jaxqc.integrals.jk(mol, other)) < 1e-12


def test_memory_is_bounded(water, monkeypatch):
    mol, density = water
    want = jaxqc.integrals.jk(mol, density, symmetric=True)
    monkeypatch.setenv("JAXQC_MEMORY", repr((jaxqc.integrals.jk_memory(mol, symmetric=True) - 1) / 2**30))
    assert _error(jax.jit(lambda d: jaxqc.integrals.jk(mol, d, symmetric=True))(density), want) < 1e-11
    monkeypatch.setenv("JAXQC_MEMORY", "1e-6")
    with pytest.raises(ValueError, match="may take"):
        jax.jit(lambda d: jaxqc.integrals.jk(mol, d, symmetric=True))(density)
