"""Derivatives of J and K: against libcint's derivative integrals, finite differences and each other."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto
from two_electron_cases import (
    CENTERS,
    INSTRUCTION_SETS,
    contraction,
    densities,
    function_ls,
    instruction_set,
    mole,
    shell_list,
)

import jaxqc
from jaxqc.integrals import _jk, eri, overlap


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request):
    with instruction_set(request.param) as there:
        if not there:
            pytest.skip(f"this processor has no {request.param}")
        yield request.param


def jk(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
    """`jaxqc.integrals.jk`, typed as if it never returned None."""
    return jaxqc.integrals.jk(*arguments, **keywords)


def gradient(mole, density, weight_j, weight_k, omega=0.0, threshold=1e-16, coulomb=True, exchange=True):
    """The compiled derivative of tr(Pj J) + tr(Pk K) with respect to the centre of each shell; (nshell, 3)."""
    shells = shell_list(mole)
    out = _jk._gradient.bind(
        shells.centers,
        shells.exponents,
        shells.coefficients,
        density,
        weight_j,
        weight_k,
        jnp.zeros(1, jnp.int32),
        layout=(shells.ls, shells.nprims),
        cart=mole.cart,
        coulomb=coulomb,
        exchange=exchange,
        omega=float(omega),
        threshold=threshold,
        symmetric=False,
        parts=1,
    )
    return np.asarray(out)


def derivative_integrals(mole, omega=0.0):
    """(nabla i, j | k l) of libcint; (3, nao, nao, nao, nao)."""
    with mole.with_range_coulomb(omega):
        return mole.intor("int2e_ip1").reshape(3, *(mole.nao,) * 4)


def by_pair(integrals):
    """The derivative integrals once for each pair of functions that a matrix can be contracted with, that pair last."""
    pairs = {"kl": integrals, "jk": integrals.transpose(0, 1, 4, 2, 3), "jl": integrals.transpose(0, 1, 3, 2, 4)}
    return {name: np.ascontiguousarray(t).reshape(*t.shape[:3], -1) for name, t in pairs.items()}


def expected_gradient(mole, integrals, density, weight_j, weight_k):
    """What `gradient` returns, from all derivative integrals: minus nabla moves the centre."""
    total = np.zeros((mole.nao, 3))

    def add(name, inner, outer):
        nonlocal total
        total = total - np.einsum("xia,ia->ix", integrals[name] @ inner.ravel(), outer)

    # The sum over n of pj_ij d_lk + pk_il d_jk with nabla on i, j, k and l in turn.
    for d, pj, pk in zip(density, weight_j, weight_k, strict=True):
        if np.any(pj):
            add("kl", d.T, pj + pj.T)
            add("kl", pj, d + d.T)
        if np.any(pk):
            add("jk", d, pk)
            add("jl", pk, d)
            add("jk", pk.T, d.T)
            add("jl", d.T, pk.T)
    starts = [0]
    for shell in range(mole.nbas):
        size = np.diff(mole.ao_loc_nr())[shell] // mole.bas_nctr(shell)
        starts += [starts[-1] + size * (k + 1) for k in range(mole.bas_nctr(shell))]
    return np.add.reduceat(total, starts[:-1], axis=0)


def relative(value, expected):
    return float(np.max(np.abs(value - expected)) / max(1.0, np.max(np.abs(expected))))


def check_gradient(case, kinds="sag", omega=0.0, tolerance=1e-11):
    rng = np.random.default_rng(1)
    density, pj, pk = (densities(rng, case.nao, kinds) for _ in range(3))
    integrals = by_pair(derivative_integrals(case, omega))
    value = gradient(case, density, pj, pk, omega)
    assert relative(value, expected_gradient(case, integrals, density, pj, pk)) <= tolerance
    assert np.max(np.abs(np.sum(value, axis=0))) <= 1e-10 * max(1.0, np.max(np.abs(value)))


@pytest.mark.parametrize("omega", [0.0, 0.4])
@pytest.mark.parametrize("cart", [False, True])
def test_every_class_up_to_f(isa, cart, omega):
    rng = np.random.default_rng(0)
    shells = [[contraction(rng, l, 1 + (l + k) % 3, 0.3, 3.0) for l in range(4)] for k in range(2)]
    case = mole(CENTERS, shells, cart)
    integrals, of = by_pair(derivative_integrals(case, omega)), function_ls(case)
    pairs = list(itertools.combinations_with_replacement(range(4), 2))
    errors = {}
    for bra, ket in itertools.combinations_with_replacement(pairs, 2):
        # Only (ab|cd) with ab in bra and cd in ket meets these, for J; for K all that mix them.
        masks = [(of[:, None] == a) & (of[None, :] == b) for a, b in (bra, ket)]
        weight, density = (rng.normal(size=(1, case.nao, case.nao)) * (m | m.T) for m in masks)
        none = np.zeros_like(weight)
        for name, pj, pk in (("J", weight, none), ("K", none, weight)):
            value = gradient(case, density, pj, pk, omega)
            errors[name, bra, ket] = relative(value, expected_gradient(case, integrals, density, pj, pk))
    assert len(errors) == 110
    bad = {key: value for key, value in errors.items() if not value <= 1e-11}
    assert not bad


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("ls", [((4, 0), (1,)), ((4,), (4,)), ((4, 2), (3,)), ((5,), (1, 0)), ((6,), (2,))])
def test_samples_with_g_and_higher(isa, ls, cart):
    rng = np.random.default_rng(2)
    shells = [[contraction(rng, l, 1 + l % 2, 0.3, 1.0) for l in of_center] for of_center in ls]
    check_gradient(mole(0.6 * CENTERS, shells, cart))


@pytest.mark.parametrize("nprims", [(1, 2, 3, 4, 5), (7, 6, 1)])
def test_contractions_of_different_lengths(isa, nprims):
    rng = np.random.default_rng(3)
    check_gradient(mole(CENTERS, [[contraction(rng, l, n, 0.2, 4.0) for l, n in enumerate(nprims[:3])]] * 3))


def test_general_contractions(isa):
    rng = np.random.default_rng(4)
    check_gradient(mole(CENTERS, [[contraction(rng, l, 4, 0.1, 9.0, nctr=2) for l in range(3)] for _ in range(2)]))


def test_tight_exponents(isa):
    shells = [[[l, [e, 1.0]] for l in range(2) for e in (1e6, 1e3, 1.0, 1e-2)] for _ in range(2)]
    check_gradient(mole(CENTERS, shells))


def test_distant_and_coincident_centers(isa):
    rng = np.random.default_rng(5)
    shells = [[contraction(rng, l, 2, 0.05, 3.0) for l in range(3)] for _ in range(3)]
    check_gradient(mole(np.array([[0, 0, 0], [0, 0, 0], [9.0, 12.0, 20.0]]), shells))


@pytest.mark.parametrize("kinds", ["s", "a", "g", "ag", "sgsg"])
def test_densities_of_any_symmetry(isa, kinds):
    rng = np.random.default_rng(6)
    check_gradient(mole(CENTERS, [[contraction(rng, l, 2, 0.3, 3.0) for l in range(3)] for _ in range(2)]), kinds)


@pytest.mark.parametrize("n", range(1, 10))
def test_any_number_of_pairs(isa, n):
    rng = np.random.default_rng(7)
    shells = [[contraction(rng, k % 2, 1, 0.3, 3.0) for k in range(n)], [contraction(rng, 1, 2, 0.3, 3.0)]]
    check_gradient(mole(CENTERS, shells))


def test_one_matrix_alone():
    rng = np.random.default_rng(8)
    case = mole(CENTERS, [[contraction(rng, l, 2, 0.3, 3.0) for l in range(3)] for _ in range(2)])
    density, pj, pk = (densities(rng, case.nao, "sg") for _ in range(3))
    none = np.zeros_like(pj)
    empty = none[:0]
    only_j = gradient(case, density, pj, empty, exchange=False)
    only_k = gradient(case, density, empty, pk, coulomb=False)
    assert relative(only_j, gradient(case, density, pj, none)) <= 1e-13
    assert relative(only_k, gradient(case, density, none, pk)) <= 1e-13
    assert relative(only_j + only_k, gradient(case, density, pj, pk)) <= 1e-12


def test_screening_of_derivatives():
    # At the default threshold the error of a gradient stays near the threshold's.
    one = gto.M(atom="O 0 0 0.1; H 0 0.757 0.587; H 0.2 -0.757 0.587", verbose=0).atom_coords()
    atoms = [("OHH"[k % 3], tuple(one[k % 3] + (k // 3) * np.array([6.0, 1.0, 2.0]))) for k in range(9)]
    case = gto.M(atom=atoms, basis="6-31g*", unit="bohr", verbose=0)
    density, pj, pk = (densities(np.random.default_rng(9), case.nao, "s") for _ in range(3))
    exact = gradient(case, density, pj, pk, threshold=1e-20)
    for threshold in (1e-13, 1e-11, 1e-9):
        assert relative(gradient(case, density, pj, pk, threshold=threshold), exact) <= 100 * threshold


# Through JAX


def molecule(basis="6-31g**", cart=False):
    return jaxqc.Molecule.from_pyscf(gto.M(atom="O 0 0 0; H 0.3 0.8 0.6", basis=basis, cart=cart, spin=1, verbose=0))


def objective(nao, seed=0, omega=0.0):
    """tr(Pj J) + tr(Pk K) of random dense matrices as a function of the molecule."""
    density, pj, pk = (jnp.asarray(d) for d in densities(np.random.default_rng(seed), nao, "ggg"))

    def value(mol):
        j, k = jk(mol, density, omega=omega, threshold=1e-16)
        return jnp.vdot(pj, j) + jnp.vdot(pk, k)

    return value


def central(function, x, direction, step):
    """Derivative along a direction from four points; error of order step^4."""
    near = function(x + step * direction) - function(x - step * direction)
    far = function(x + 2 * step * direction) - function(x - 2 * step * direction)
    return (8 * near - far) / (12 * step)


@pytest.mark.parametrize("omega", [0.0, 0.3, -0.3])
@pytest.mark.parametrize("cart", [False, True])
def test_coordinates_against_finite_differences(cart, omega):
    mol = molecule(cart=cart)
    value = objective(mol.nao, omega=omega)
    f = jax.jit(lambda coords: value(mol.with_coords(coords)))
    direction = jnp.asarray(np.random.default_rng(1).normal(size=mol.coords.shape))
    reverse = jnp.vdot(jax.grad(f)(mol.coords), direction)
    assert abs(reverse - central(f, mol.coords, direction, 1e-3)) <= 1e-8 * max(1.0, abs(reverse))


def test_forward_is_reverse():
    mol = molecule("cc-pvdz")
    value = objective(mol.nao, seed=2)
    f = jax.jit(lambda coords: value(mol.with_coords(coords)))
    direction = jnp.asarray(np.random.default_rng(3).normal(size=mol.coords.shape))
    forward = jax.jvp(f, (mol.coords,), (direction,))[1]
    assert abs(forward - jnp.vdot(jax.grad(f)(mol.coords), direction)) <= 1e-10 * max(1.0, abs(forward))


def test_density_and_coordinates_together():
    mol = molecule("sto-3g")
    d0, p = (jnp.asarray(x) for x in densities(np.random.default_rng(4), mol.nao, "gg"))

    def value(coords, density):
        j, k = jk(mol.with_coords(coords), density, threshold=1e-16)
        return jnp.vdot(p, j - 0.3 * k)

    by_coords, by_density = jax.grad(value, (0, 1))(mol.coords, d0)
    j, k = jk(mol, p, threshold=1e-16)
    np.testing.assert_allclose(by_density, j - 0.3 * k, atol=1e-11)
    np.testing.assert_allclose(by_coords, jax.grad(lambda c: value(c, d0))(mol.coords), atol=1e-11)


@pytest.mark.parametrize("leaf", ["exponents", "coefficients"])
def test_basis_parameters_against_finite_differences(leaf):
    mol = molecule("6-31g**")
    value = objective(mol.nao, seed=5)
    replace = getattr(type(mol), f"with_{leaf}")
    x = getattr(mol, leaf)
    f = jax.jit(lambda x: value(replace(mol, x)))
    slope = jax.grad(f)(x)
    for seed in range(2):
        direction = x * jnp.asarray(np.random.default_rng(seed).normal(size=x.shape))
        expected = central(f, x, direction, 1e-3)
        assert abs(jnp.vdot(slope, direction) - expected) <= 1e-8 * max(1.0, abs(expected))
        assert abs(jax.jvp(f, (x,), (direction,))[1] - expected) <= 1e-8 * max(1.0, abs(expected))


@pytest.mark.parametrize("mode", ["forward over reverse", "reverse over reverse", "forward over forward"])
def test_second_derivatives(mode):
    mol = molecule("sto-3g")
    value = objective(mol.nao, seed=6)
    f = jax.jit(lambda coords: value(mol.with_coords(coords)))
    rng = np.random.default_rng(7)
    u, v = (jnp.asarray(rng.normal(size=mol.coords.shape)) for _ in range(2))
    slope = jax.jit(lambda c: jnp.vdot(jax.grad(f)(c), u))
    expected = central(slope, mol.coords, v, 1e-3)
    if mode == "forward over reverse":
        second = jax.jvp(slope, (mol.coords,), (v,))[1]
    elif mode == "reverse over reverse":
        second = jnp.vdot(jax.grad(slope)(mol.coords), v)
    else:
        second = jax.jvp(lambda c: jax.jvp(f, (c,), (u,))[1], (mol.coords,), (v,))[1]
    assert abs(second - expected) <= 1e-8 * max(1.0, abs(expected))


def test_mixed_second_derivative_with_respect_to_density():
    mol = molecule("sto-3g")
    d, p, change = (jnp.asarray(x) for x in densities(np.random.default_rng(8), mol.nao, "ggg"))

    def value(coords, density):
        j, k = jk(mol.with_coords(coords), density, threshold=1e-16)
        return jnp.vdot(p, j + k)

    slope = jax.grad(value)
    mixed = jax.jvp(lambda density: slope(mol.coords, density), (d,), (change,))[1]
    np.testing.assert_allclose(mixed, slope(mol.coords, change), atol=1e-10)
    back = jax.grad(lambda density: jnp.vdot(mol.coords, slope(mol.coords, density)))(d)
    assert abs(jnp.vdot(back, change) - jnp.vdot(mol.coords, mixed)) <= 1e-10


def test_mixed_second_derivative_with_respect_to_exponents():
    mol = molecule("sto-3g")
    value = objective(mol.nao, seed=9)

    def slope(exponents):
        return jax.grad(lambda c: value(mol.with_exponents(exponents).with_coords(c)))(mol.coords)

    direction = mol.exponents * jnp.asarray(np.random.default_rng(10).normal(size=mol.exponents.shape))
    tangent = jax.jit(lambda e: jax.jvp(slope, (e,), (direction,))[1])(mol.exponents)
    expected = central(jax.jit(slope), mol.exponents, direction, 1e-3)
    assert relative(np.asarray(tangent), np.asarray(expected)) <= 1e-8


@pytest.mark.parametrize("omega", [0.0, 0.3, -0.3])
def test_tensor_against_libcint_and_finite_differences(omega):
    mol = molecule("6-31g**")
    direction = jnp.asarray(np.random.default_rng(11).normal(size=mol.coords.shape))
    tangent = jax.jvp(lambda c: eri(mol.with_coords(c), omega=omega), (mol.coords,), (direction,))[1]
    mole = mol.to_pyscf()
    if omega >= 0:
        owner = np.repeat(np.arange(mol.natm), np.diff(mol.aoslice, axis=1)[:, 0])
        moved = -np.einsum("xijkl,ix->ijkl", derivative_integrals(mole, omega), np.asarray(direction)[owner])
        moved = moved + moved.transpose(1, 0, 2, 3)
        assert relative(np.asarray(tangent), moved + moved.transpose(2, 3, 0, 1)) <= 1e-11
    else:
        f = jax.jit(lambda c: eri(mol.with_coords(c), omega=omega))
        assert relative(np.asarray(tangent), np.asarray(central(f, mol.coords, direction, 1e-3))) <= 1e-9


def test_vmap_and_jit_of_the_gradient():
    mol = molecule("6-31g**")
    value = objective(mol.nao, seed=12)
    slope = jax.grad(lambda coords: value(mol.with_coords(coords)))
    coords = mol.coords + jnp.array([0.0, 0.05, 0.1])[:, None, None] * jnp.arange(6.0).reshape(2, 3)
    mapped = jax.jit(jax.vmap(slope))(coords)
    for n in range(3):
        assert relative(np.asarray(mapped[n]), np.asarray(slope(coords[n]))) <= 1e-12


def test_another_geometry_compiles_nothing():
    mol = molecule("6-31g**")
    value = objective(mol.nao, seed=13)
    slope = jax.jit(jax.grad(lambda coords: value(mol.with_coords(coords))))
    slope(mol.coords)
    slope(mol.coords + 0.1 * jnp.arange(6.0).reshape(2, 3))
    assert slope._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]


def invariant(mol):
    """A scalar that does not depend on where the molecule is and how it is turned: J and K of the inverse overlap."""
    density = jnp.linalg.inv(overlap(mol))
    j, k = jk(mol, density, threshold=1e-16)
    return jnp.vdot(density, j - 0.25 * k)


@pytest.mark.parametrize("cart", [False, True])
def test_translation_rotation_and_permutation(cart):
    mole = gto.M(atom="O 0 0 0; H 0.3 0.8 0.6; F -0.9 0.4 1", basis="6-31g**", cart=cart, verbose=0)
    mol = jaxqc.Molecule.from_pyscf(mole)
    evaluate = jax.jit(jax.value_and_grad(lambda coords: invariant(mol.with_coords(coords))))
    value, slope = evaluate(mol.coords)
    scale = float(jnp.max(jnp.abs(slope)))
    assert float(jnp.max(jnp.abs(jnp.sum(slope, axis=0)))) <= 1e-10 * scale
    torque = jnp.sum(jnp.cross(mol.coords, slope), axis=0)
    assert float(jnp.max(jnp.abs(torque))) <= 1e-10 * scale
    turn = jnp.asarray(np.linalg.qr(np.random.default_rng(14).normal(size=(3, 3)))[0])
    turned, turned_slope = evaluate(mol.coords @ turn.T + jnp.array([3.0, -2.0, 11.0]))
    assert abs(turned - value) <= 1e-11 * abs(value)
    assert float(jnp.max(jnp.abs(turned_slope - slope @ turn.T))) <= 1e-10 * scale
    order = [2, 0, 1]
    atoms = [(mole.atom_symbol(i), mole.atom_coord(i)) for i in order]
    other = jaxqc.Molecule.from_pyscf(gto.M(atom=atoms, basis="6-31g**", cart=cart, unit="bohr", verbose=0))
    moved = jax.grad(lambda coords: invariant(other.with_coords(coords)))(other.coords)
    assert float(jnp.max(jnp.abs(moved - slope[jnp.array(order)]))) <= 1e-10 * scale
