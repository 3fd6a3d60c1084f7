"""Derivatives of one-electron matrices: libcint's derivative integrals, finite differences, and every mode of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import gto

import jaxqc
from jaxqc.integrals import dipole, kinetic, nuclear, overlap
from jaxqc.integrals._derivative_shells import center_map, center_shells, shell_tangents
from jaxqc.integrals._one_electron import integrals
from jaxqc.integrals._shells import ShellList

OPERATORS = {"overlap": overlap, "kinetic": kinetic, "nuclear": nuclear, "dipole": dipole}


def fluoride():
    return jaxqc.Molecule("H 0 0 0.1; F 0 0.2 0.9", basis="6-31g**")


def five_point(function, h):
    """Central difference of order h^4 at 0."""
    near, far = function(h) - function(-h), function(2 * h) - function(-2 * h)
    return (8 * near - far) / (12 * h)


def matrix_derivative(mole, kind):
    """d/dR_A of a matrix, (natm, 3, nao, nao), from libcint's integrals over nabla on the bra."""
    intor = {"overlap": "int1e_ipovlp", "kinetic": "int1e_ipkin", "nuclear": "int1e_ipnuc"}[kind]
    bra = -mole.intor(intor)
    result = np.zeros((mole.natm, *bra.shape))
    for atom, (_, _, start, stop) in enumerate(mole.aoslice_by_atom()):
        result[atom, :, start:stop] += bra[:, start:stop]
        if kind == "nuclear":
            with mole.with_rinv_at_nucleus(atom):
                result[atom] -= mole.atom_charge(atom) * mole.intor("int1e_iprinv")
        result[atom] += np.swapaxes(result[atom], -1, -2).copy()
    return result


@pytest.mark.parametrize("kind", ["overlap", "kinetic", "nuclear"])
@pytest.mark.parametrize(
    ("atom", "basis", "cart"),
    [
        ("O 0 0 0; H 0 0 1.8; H 1.8 0 0.2", "cc-pvtz", False),
        ("O 0 0 0; H 0 0 1.8; ghost-H 1.8 0 0.2", "6-31g**", True),
        ("C 0.1 -0.2 0.3; N 0.4 1.1 0.9", [[l, [1.7, 0.5], [0.4, 0.6], [0.1, -0.3]] for l in range(7)], False),
    ],
)
def test_coordinate_jacobian_equals_libcint(kind, atom, basis, cart):
    mole = gto.M(atom=atom, basis=basis, cart=cart, unit="bohr", spin=None, verbose=0)
    mol = jaxqc.Molecule.from_pyscf(mole)
    function = jax.jit(lambda coords: OPERATORS[kind](mol.with_coords(coords)))
    got = jnp.moveaxis(jax.jacfwd(function)(mol.coords), (-2, -1), (0, 1))
    expected = matrix_derivative(mole, kind)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=2e-12 * max(1.0, np.abs(expected).max()))
    # The reverse mode takes other routes through the kernels.
    g = np.random.default_rng(2).normal(size=(mol.nao, mol.nao))
    gradient = jax.jit(jax.grad(lambda coords, g: jnp.sum(g * function(coords))))(mol.coords, jnp.asarray(g))
    expected = np.einsum("axij,ij->ax", expected, g)
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=0, atol=1e-11 * max(1.0, np.abs(expected).max()))


def along_a_line(kinds, argument):
    """A function of t: sum(W X(x + t d)) over some matrices, with x the coordinates, exponents or coefficients."""
    mol = fluoride()
    rng = np.random.default_rng(7)
    weights = [jnp.asarray(rng.normal(size=jax.eval_shape(OPERATORS[kind], mol).shape)) for kind in kinds]
    start = getattr(mol, argument)
    direction = jnp.asarray(rng.normal(size=start.shape)) * (start if argument == "exponents" else 1.0) * 0.3

    def function(t):
        moved = getattr(mol, f"with_{argument}")(start + t * direction)
        return sum(jnp.sum(w * OPERATORS[kind](moved)) for kind, w in zip(kinds, weights, strict=True))

    return jax.jit(function)


@pytest.mark.parametrize(
    ("kinds", "argument"),
    [
        *[([kind], "coords") for kind in OPERATORS],
        (["overlap", "kinetic", "dipole"], "exponents"),
        (["nuclear"], "exponents"),
        (list(OPERATORS), "coefficients"),
    ],
)
def test_first_and_second_derivatives_equal_differences(kinds, argument):
    function = along_a_line(kinds, argument)
    gradient = jax.jit(jax.grad(function))
    forward = jax.jit(lambda t: jax.jvp(function, (t,), (1.0,))[1])
    first = float(gradient(0.0))
    assert first == pytest.approx(five_point(lambda t: float(function(t)), 3e-3), rel=1e-7, abs=1e-7)
    assert float(forward(0.0)) == pytest.approx(first, rel=1e-11)
    second = float(jax.jit(jax.jacfwd(gradient))(0.0))
    assert second == pytest.approx(five_point(lambda t: float(gradient(t)), 3e-3), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("kind", ["overlap", "kinetic", "nuclear"])
def test_third_coordinate_derivatives(kind):
    mol = jaxqc.Molecule("H 0 0 0; H 0.1 0.3 0.7", basis="6-31g**")
    rng = np.random.default_rng(11)
    weights = jnp.asarray(rng.normal(size=(mol.nao, mol.nao)))
    direction = jnp.asarray(rng.normal(size=(2, 3)))

    def function(t):
        return jnp.sum(weights * OPERATORS[kind](mol.with_coords(mol.coords + t * direction)))

    hessian = jax.jit(jax.jacfwd(jax.grad(function)))
    third = float(jax.jit(jax.grad(jax.jacfwd(jax.grad(function))))(0.0))
    assert third == pytest.approx(five_point(lambda t: float(hessian(t)), 2e-3), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("kind", ["overlap", "kinetic", "nuclear"])
def test_hessian_is_symmetric_and_invariant_under_translation(kind):
    mol = jaxqc.Molecule("H 0 0 0; H 0.1 0.3 0.7", basis="cc-pvdz")
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(mol.nao, mol.nao)))

    def function(coords):
        return jnp.sum(weights * OPERATORS[kind](mol.with_coords(coords)))

    hessian = np.asarray(jax.jit(jax.jacrev(jax.grad(function)))(mol.coords))
    forward = np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(function)))(mol.coords))
    np.testing.assert_allclose(hessian, forward, rtol=0, atol=1e-11)
    np.testing.assert_allclose(hessian.reshape(6, 6), hessian.reshape(6, 6).T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(hessian.sum(axis=2), 0.0, rtol=0, atol=1e-11)


def test_dipole_moves_with_its_origin():
    mol = fluoride()
    jacobian = jax.jacfwd(lambda origin: dipole(mol, origin))(jnp.zeros(3))
    expected = -np.einsum("xy,ij->xijy", np.eye(3), np.asarray(overlap(mol)))
    np.testing.assert_allclose(np.asarray(jacobian), expected, rtol=0, atol=1e-14)


def test_overlap_stays_normalised_whatever_the_exponents():
    mol = fluoride()
    gradient = jax.grad(lambda e: jnp.sum(jnp.diagonal(overlap(mol.with_exponents(e)))))(mol.exponents)
    np.testing.assert_allclose(np.asarray(gradient), 0.0, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", OPERATORS)
def test_vmap_and_jit_equal_a_loop(kind):
    mol = fluoride()
    shifts = np.random.default_rng(4).normal(size=(3, 2, 3)) * 0.1
    coords = mol.coords[None] + jnp.asarray(shifts)

    def total(x):
        return jnp.sum(OPERATORS[kind](mol.with_coords(x)) ** 2)

    np.testing.assert_allclose(
        np.asarray(jax.jit(jax.vmap(lambda x: OPERATORS[kind](mol.with_coords(x))))(coords)),
        np.stack([np.asarray(OPERATORS[kind](mol.with_coords(x))) for x in coords]),
        rtol=0,
        atol=1e-13,
    )
    np.testing.assert_allclose(
        np.asarray(jax.jit(jax.vmap(jax.grad(total)))(coords)),
        np.stack([np.asarray(jax.grad(total)(x)) for x in coords]),
        rtol=1e-11,
        atol=1e-11,
    )


def count_integrals(jaxpr):
    """Numbers of integral calls, by kind and order, in a jaxpr and all inside it."""
    counts = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "jaxqc_one_electron":
            key = (equation.params["kind"], equation.params["order"])
            counts[key] = counts.get(key, 0) + 1
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                for key, count in count_integrals(getattr(inner, "jaxpr", inner)).items():
                    counts[key] = counts.get(key, 0) + count
    return counts


def test_a_coordinate_gradient_computes_coordinate_derivatives_only():
    mol = fluoride()
    gradient = jax.grad(lambda x: jnp.sum(nuclear(mol.with_coords(x))))
    counts = count_integrals(jax.make_jaxpr(gradient)(mol.coords).jaxpr)
    # The matrix over derivative shells, and the transposed operator of first order: nothing else.
    assert counts[("weights", 1)] == 1
    assert counts[("nuclear", 0)] <= 2
    assert set(counts) == {("nuclear", 0), ("weights", 1)}


def random_shells(rng, ls):
    nprims = tuple(1 + k % 3 for k in range(len(ls)))
    total = sum(nprims)
    return ShellList(
        ls,
        nprims,
        jnp.asarray(rng.normal(size=(len(ls), 3))),
        jnp.asarray(rng.uniform(0.2, 2.0, total)),
        jnp.asarray(rng.normal(size=total)),
    )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_derivative_shells_equal_differences_on_any_axis(which):
    """d/dt of integrals with one list moved along a line, for each of its three arrays, in both places."""
    rng = np.random.default_rng(which)
    a, b = random_shells(rng, (0, 2, 1, 3)), random_shells(rng, (1, 0, 4))
    fields = ("centers", "exponents", "coefficients")
    start = getattr(a, fields[which])
    direction = jnp.asarray(rng.normal(size=start.shape))
    changes = [direction if k == which else None for k in range(3)]
    (tangent,) = shell_tangents(a, *changes)
    integral = functools.partial(integrals, "kinetic", 0)

    def moved(t):
        arrays = [getattr(a, f) + (t * direction if k == which else 0.0) for k, f in enumerate(fields)]
        return np.asarray(integral(ShellList(a.ls, a.nprims, *arrays), b))

    expected = five_point(moved, 1e-3)
    got = tangent.contract(integral(tangent.shells, b), 0)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    got = tangent.contract(integral(b, tangent.shells), 1)
    np.testing.assert_allclose(np.asarray(got), expected.T, rtol=0, atol=1e-9 * np.abs(expected).max())
    stack = jnp.stack([integral(tangent.shells, b)] * 2, axis=1)
    np.testing.assert_allclose(
        np.asarray(tangent.contract(stack, -3)[:, 1]), np.asarray(got.T), rtol=0, atol=1e-12 * np.abs(expected).max()
    )
    # expand is the transpose of contract
    x = jnp.asarray(rng.normal(size=(5, tangent.shells.nao_cart)))
    y = jnp.asarray(rng.normal(size=(5, a.nao_cart)))
    left, right = jnp.sum(tangent.contract(x, 1) * y), jnp.sum(x * tangent.expand(y, 1))
    assert float(left) == pytest.approx(float(right), rel=1e-12)


def test_only_s_shells_have_no_lowered_ones():
    shells = random_shells(np.random.default_rng(0), (0, 0))
    derivative = center_shells(shells)
    assert derivative.ls == (1, 1)
    assert center_map(shells.ls).nout == 6
    assert center_map(shells.ls).nin == 6
