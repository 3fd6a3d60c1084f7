"""One-electron matrices against libcint through PySCF, element by element."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto

import jaxqc
from jaxqc.integrals import _library, dipole, eri, jk, kinetic, nuclear, overlap
from jaxqc.integrals._one_electron import integrals
from jaxqc.integrals._shells import (
    ShellList,
    cartesian_offsets,
    cartesian_to_spherical,
    cartesian_to_spherical_matrix,
    spherical_offsets,
)

OPERATORS = {
    "overlap": (overlap, "int1e_ovlp"),
    "kinetic": (kinetic, "int1e_kin"),
    "nuclear": (nuclear, "int1e_nuc"),
    "dipole": (dipole, "int1e_r"),
}


def contracted(max_l, exponents):
    weights = [0.5, 0.6, -0.3, 0.2]
    return [[l, *[[e, c] for e, c in zip(exponents, weights, strict=False)]] for l in range(max_l + 1)]


def assert_matrices_agree(mole, tolerance=1e-12):
    """|difference| <= tolerance max(1, sqrt(X_ii X_jj)): absolute, but for the large elements of tight functions."""
    mol = jaxqc.Molecule.from_pyscf(mole)
    for name, (function, intor) in OPERATORS.items():
        expected = mole.intor(intor)
        scale = np.sqrt(np.abs(np.diagonal(expected, axis1=-2, axis2=-1)))
        scale = np.maximum(1.0, scale[..., :, None] * scale[..., None, :])
        error = np.max(np.abs(np.asarray(function(mol)) - expected) / scale)
        assert error <= tolerance, (name, error)


def mole(atom, basis, **kwargs):
    kwargs = {"unit": "bohr", **kwargs}
    result = gto.M(atom=atom, basis=basis, verbose=0, spin=None, **kwargs)
    return result


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("distance", [0.05, 1.7, 5.0])
def test_every_pair_of_angular_momenta_up_to_i(distance, cart):
    # Much further apart libcint loses digits at high l; test_one_electron_precision.py goes there.
    x, y, z = distance * np.array([0.48, 0.6, 0.64])
    assert_matrices_agree(mole(f"C 0.1 -0.2 0.3; N {x} {y} {z}", contracted(6, [1.7, 0.4, 0.1]), cart=cart))


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("distance", [0.3, 2.0, 30.0])
def test_tight_and_diffuse_exponents(distance, cart):
    # Only s and p: with 1e6 beside 1e-2 libcint itself loses digits at higher l (see test_one_electron_precision.py).
    assert_matrices_agree(mole(f"C 0.1 -0.2 0.3; N 0 0 {distance}", contracted(1, [1e6, 1e3, 1.0, 1e-2]), cart=cart))


@pytest.mark.parametrize(
    ("atom", "basis", "cart"),
    [
        ("O 0 0 0; H 0 0 1.8; H 1.8 0 0", "sto-3g", False),
        ("O 0 0 0; H 0 0 1.8; H 1.8 0 0", "6-31g**", True),
        ("C 0 0 0; H 0 0 2; F 2.1 0.3 0; Cl -1 3 0", "cc-pvdz", False),  # general contractions
        ("Ne 0 0 0; Ar 0 0 6", "cc-pvqz", False),
        ("O 0 0 0; H 0 0 1.8; H 1.8 0 0", "cc-pv5z", False),
        ("Fe 0 0 0; C 0 0 3.4; O 0 0 5.6", "def2-tzvp", False),
        ("O 0 0 0; ghost-O 0 0 3; ghost-H 1 0 3", "aug-cc-pvdz", False),
        ("He 0 0 0", "sto-3g", False),
    ],
)
def test_molecules(atom, basis, cart):
    assert_matrices_agree(mole(atom, basis, cart=cart))


def test_dipole_about_another_origin():
    water = mole("O 0 0 0; H 0 0 1.8; H 1.8 0 0", "6-31g*")
    mol = jaxqc.Molecule.from_pyscf(water)
    with water.with_common_orig((0.3, -2.0, 11.0)):
        expected = water.intor("int1e_r")
    np.testing.assert_allclose(np.asarray(dipole(mol, (0.3, -2.0, 11.0))), expected, rtol=0, atol=1e-12)


def test_matrices_are_exactly_symmetric_and_the_same_in_every_run():
    mol = jaxqc.Molecule("O 0 0 0; H 0 0 0.9; H 0.9 0 0.1", basis="cc-pvtz", cart=True)
    for function, _ in OPERATORS.values():
        matrix = np.asarray(function(mol))
        np.testing.assert_array_equal(matrix, np.swapaxes(matrix, -1, -2))
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(function(mol)), matrix)


def test_two_different_lists():
    first = mole("O 0 0 0; H 0 0 1.8", "cc-pvdz", cart=True, charge=1)
    second = mole("N 1 1 0; H 0.2 0 1.8", "6-31g*", cart=True)
    a = ShellList.from_molecule(jaxqc.Molecule.from_pyscf(first))
    b = ShellList.from_molecule(jaxqc.Molecule.from_pyscf(second))
    got = integrals("multipole", 0, a, b, jnp.zeros(3))[0]
    np.testing.assert_allclose(np.asarray(got), gto.intor_cross("int1e_ovlp_cart", first, second), rtol=0, atol=1e-13)
    got = integrals("kinetic", 0, a, b)
    np.testing.assert_allclose(np.asarray(got), gto.intor_cross("int1e_kin_cart", first, second), rtol=0, atol=1e-13)


@pytest.mark.parametrize("order", [2, 3])
def test_higher_multipoles(order):
    water = mole("O 0 0 0; H 0 0 1.8; H 1.8 0 0.4", "6-31g**", cart=True)
    shells = ShellList.from_molecule(jaxqc.Molecule.from_pyscf(water))
    origin = (0.2, -0.1, 0.5)
    with water.with_common_orig(origin):
        full = water.intor({2: "int1e_rr", 3: "int1e_rrr"}[order]).reshape((3,) * order + (water.nao,) * 2)
    powers = [(x, y, order - x - y) for x in range(order, -1, -1) for y in range(order - x, -1, -1)]
    expected = np.stack([full[(0,) * x + (1,) * y + (2,) * z] for x, y, z in powers])
    for second in (None, shells):
        got = integrals("multipole", order, shells, second, jnp.asarray(origin))
        np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=1e-12)


def test_nuclear_weights_is_the_transpose_of_nuclear():
    """sum_ab G_ab V_ab(w) = sum_C w_C V*_C(G), with and without symmetry, at orders 0 to 2."""
    rng = np.random.default_rng(5)
    mol = jaxqc.Molecule("O 0 0 0; H 0 0 0.9; H 0.9 0 0.1", basis="cc-pvdz", cart=True)
    shells = ShellList.from_molecule(mol)
    points = jnp.asarray(rng.normal(size=(11, 3)))
    g = jnp.asarray(rng.normal(size=(mol.nao, mol.nao)))
    for order, ncomp in ((0, 1), (1, 3), (2, 6)):
        w = jnp.asarray(rng.normal(size=(11, ncomp)))
        for second in (None, shells):
            left = jnp.sum(g * integrals("nuclear", order, shells, second, points, w))
            right = jnp.sum(w * integrals("weights", order, shells, second, points, g))
            assert float(left) == pytest.approx(float(right), rel=1e-12)


def test_nuclear_field_and_field_gradient_operators():
    """Orders 1 and 2 of the operator are derivatives of the potential of a unit charge: int1e_rinv by differences."""
    water = mole("O 0 0 0; H 0 0 1.8; H 1.8 0 0.4", "6-31g*", cart=True)
    shells = ShellList.from_molecule(jaxqc.Molecule.from_pyscf(water))
    point, h = np.array([0.4, 0.9, -0.2]), 2e-3

    def potential(shift):
        with water.with_rinv_origin(point + shift):
            return water.intor("int1e_rinv")

    unit = np.eye(3) * h
    for axis in range(3):
        weights = jnp.asarray(np.eye(3)[[axis]])
        got = integrals("nuclear", 1, shells, None, jnp.asarray(point)[None], weights)
        step = unit[axis]
        near, far = potential(step) - potential(-step), potential(2 * step) - potential(-2 * step)
        np.testing.assert_allclose(np.asarray(got), (8 * near - far) / (12 * h), rtol=0, atol=1e-8)
    xy = integrals("nuclear", 2, shells, None, jnp.asarray(point)[None], jnp.asarray([[0.0, 1.0, 0, 0, 0, 0]]))
    step = unit[0], unit[1]
    expected = potential(step[0] + step[1]) - potential(step[0] - step[1])
    expected = (expected - potential(step[1] - step[0]) + potential(-step[0] - step[1])) / (4 * h * h)
    np.testing.assert_allclose(np.asarray(xy), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("l", range(9))
def test_spherical_transformation(l):
    np.testing.assert_allclose(
        cartesian_to_spherical_matrix(l), gto.cart2sph(l, normalized="sp"), rtol=1e-13, atol=1e-14
    )


def test_spherical_map_is_block_diagonal():
    ls = (0, 2, 1, 4, 0)
    cart, sph = cartesian_offsets(ls), spherical_offsets(ls)
    dense = np.zeros((cart[-1], sph[-1]))
    for k, l in enumerate(ls):
        dense[cart[k] : cart[k + 1], sph[k] : sph[k + 1]] = gto.cart2sph(l, normalized="sp")
    array = np.random.default_rng(0).normal(size=(2, cart[-1], 3))
    got = cartesian_to_spherical(ls)(jnp.asarray(array), 1)
    np.testing.assert_allclose(np.asarray(got), np.einsum("aib,ij->ajb", array, dense), rtol=0, atol=1e-13)
    back = cartesian_to_spherical(ls).transpose(got, -2)
    np.testing.assert_allclose(np.asarray(back), np.einsum("ajb,ij->aib", got, dense), rtol=0, atol=1e-13)


def test_another_geometry_compiles_nothing():
    mol = jaxqc.Molecule("O 0 0 0; H 0 0 0.9; H 0.9 0 0.1", basis="sto-3g")
    traces = []

    @jax.jit
    def matrices(mol):
        traces.append(None)
        return overlap(mol) + kinetic(mol) + nuclear(mol)

    first = matrices(mol)
    second = matrices(mol.with_coords(mol.coords * 1.1))
    assert len(traces) == 1
    assert float(jnp.max(jnp.abs(first - second))) > 1e-3


def test_too_high_an_order_is_refused():
    shells = ShellList((20,), (1,), jnp.zeros((1, 3)), jnp.ones(1), jnp.ones(1))
    with pytest.raises(ValueError, match="l_a = 20, l_b = 20, order = 1"):
        integrals("nuclear", 1, shells, None, jnp.zeros((1, 3)), jnp.ones((1, 3)))


def test_missing_library_and_missing_handler(monkeypatch, tmp_path):
    with pytest.raises(ImportError, match="no handler 'jaxqc_nonsense'"):
        _library.handler("jaxqc_nonsense")
    _library.register(["jaxqc_nonsense"])  # silent: only use is an error
    monkeypatch.setenv("JAXQC_CPU_LIBRARY", str(tmp_path / "nowhere.so"))
    with pytest.raises(ImportError, match="JAXQC_CPU_LIBRARY"):
        _library._library_path()


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    mol = jaxqc.Molecule("O 0 0 0; H 0 0 0.9; H 0.9 0 0.1", basis="cc-pvtz")
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(mol.nao, mol.nao)))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(weights * nuclear(mol.with_coords(x)))))
    values = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("JAXQC_NUM_THREADS", threads)
        values.append((np.asarray(nuclear(mol)), np.asarray(kinetic(mol)), np.asarray(gradient(mol.coords))))
    for one, other in zip(values[0] * 2, values[1] + values[2], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("function", [overlap, kinetic, nuclear, dipole])
@pytest.mark.parametrize("other", [None, "water.xyz", np.eye(3)])
def test_something_else_than_a_molecule_is_refused(function, other):
    with pytest.raises(TypeError, match=rf"Argument mol of jaxqc.integrals.{function.__name__} must be a jaxqc.Mol"):
        function(other)
    with pytest.raises(TypeError, match="must be a jaxqc.Molecule"):
        function(mole("He 0 0 0", "sto-3g"))
    with pytest.raises(TypeError, match="Argument mol of jaxqc.integrals.jk must be a jaxqc.Molecule"):
        jk(other, jnp.eye(1))
    with pytest.raises(TypeError, match="Argument mol of jaxqc.integrals.eri must be a jaxqc.Molecule"):
        eri(other)


def test_leaves_of_several_molecules_or_in_single_precision_are_refused():
    mol = jaxqc.Molecule("He 0 0 0; He 0 0 2", "sto-3g")
    with pytest.raises(ValueError, match=r"coords .* \(1, 2, 3\).* jax.vmap"):
        overlap(jax.tree.map(lambda x: x[None], mol))
    with pytest.raises(TypeError, match="coords .* must be float64, but they are float32"):
        overlap(jax.tree.map(lambda x: x.astype(jnp.float32), mol))
    stack = jax.tree.map(lambda x: x[None], mol)
    np.testing.assert_allclose(jax.vmap(overlap)(stack)[0], overlap(mol), rtol=1e-14)


@pytest.mark.parametrize(
    ("origin", "error"),
    [((1.0, 2.0), ValueError), (0.0, ValueError), (np.zeros((1, 3)), ValueError), ((0.0, 0.0, np.nan), ValueError)]
    + [("xyz", TypeError), (None, TypeError), ((1j, 0j, 0j), TypeError), ((1.0, (2.0, 3.0)), TypeError)],
)
def test_origin_that_is_not_a_point_is_refused(origin, error):
    with pytest.raises(error, match="Argument origin of jaxqc.integrals.dipole must be three real numbers in Bohr"):
        dipole(jaxqc.Molecule("He 0 0 0", "sto-3g"), origin)


def test_integers_and_traced_points_are_origins():
    mol = jaxqc.Molecule("He 0 0 0", "sto-3g")
    expected = dipole(mol, (1.0, 2.0, 3.0))
    for origin in ((1, 2, 3), np.array([1, 2, 3], np.int32), np.array([1, 2, 3], np.float32)):
        np.testing.assert_array_equal(dipole(mol, origin), expected)
    np.testing.assert_array_equal(jax.jit(lambda o: dipole(mol, o))(jnp.array([1.0, 2.0, 3.0])), expected)


def test_double_precision_switched_off_is_one_sentence():
    mol = jaxqc.Molecule("He 0 0 0", "sto-3g")
    jax.config.update("jax_enable_x64", False)
    try:
        for function in (overlap, kinetic, nuclear, dipole):
            with pytest.raises(RuntimeError, match="needs double precision, which was switched off in JAX"):
                function(mol)
        for function in (eri, lambda mol: jk(mol, jnp.eye(1)), jaxqc.energy, jaxqc.scf):
            with pytest.raises(RuntimeError, match="needs double precision, which was switched off in JAX"):
                function(mol)
        with pytest.raises(RuntimeError, match="jaxqc.Molecule needs double precision"):
            jaxqc.Molecule("He 0 0 0", "sto-3g")
    finally:
        jax.config.update("jax_enable_x64", True)
