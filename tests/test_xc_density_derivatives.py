"""Derivatives of densities on a grid and of potential matrices: kernels against plain JAX and finite differences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from two_electron_cases import INSTRUCTION_SETS, instruction_set
from xc_density_cases import COMPONENTS, layout_of, points_around, relative, small_mole, symmetric

import jaxqc
from jaxqc.systems import water_cluster
from jaxqc.xc import _oracle
from jaxqc.xc._cells import build_layout
from jaxqc.xc._density import density_features, potential_matrix

KINDS = ["lda", "gga", "mgga"]


class Case:
    """Random arrays, with the kernels and plain JAX as functions of them."""

    def __init__(self, kind, cart=False, nset=2, lmax=2):
        rng = np.random.default_rng(20)
        self.kind, self.cart, self.ncomp = kind, cart, COMPONENTS[kind]
        mole = small_mole(cart, lmax=lmax, natm=2)
        self.shells, self.layout = layout_of(mole, *points_around(rng, 40))
        self.density = jnp.asarray(symmetric(rng, nset, mole.nao))
        shape = (nset, self.ncomp, self.layout.points.shape[0])
        self.cotangent, self.other = jnp.asarray(rng.normal(size=(2, *shape)))
        self.matrix = jnp.asarray(symmetric(rng, nset, mole.nao))
        self.geometry = (self.shells.centers, self.shells.exponents, self.shells.coefficients, self.layout.points)
        self.change = tuple(jnp.asarray(rng.normal(size=x.shape)) for x in self.geometry)

    def _placed(self, centers, exponents, coefficients, points):
        shells = dataclasses.replace(self.shells, centers=centers, exponents=exponents, coefficients=coefficients)
        return shells, dataclasses.replace(self.layout, points=points)

    def features(self, density, *geometry):
        shells, layout = self._placed(*(geometry or self.geometry))
        return density_features(shells, layout, density, self.kind, cart=self.cart)

    def plain(self, density, *geometry):
        shells, layout = self._placed(*(geometry or self.geometry))
        density = 0.5 * (density + jnp.swapaxes(density, 1, 2))
        return _oracle.features(shells, layout.points, density, cart=self.cart, ncomp=self.ncomp)

    def potential(self, cotangent, *geometry):
        shells, layout = self._placed(*(geometry or self.geometry))
        return potential_matrix(shells, layout, cotangent, cart=self.cart)

    def plain_potential(self, cotangent, *geometry):
        return jax.vjp(lambda d: self.plain(d, *geometry), jnp.zeros_like(self.density))[1](cotangent)[0]


def same(value, expected, bound=1e-12):
    for v, e in zip(jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
        assert relative(v, e) <= bound


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_with_respect_to_everything(kind, cart):
    case = Case(kind, cart, lmax=3)

    def energy(features):
        return jax.jit(jax.grad(lambda d, *g: jnp.vdot(case.cotangent, features(d, *g)), argnums=(0, 1, 2, 3, 4)))(
            case.density, *case.geometry
        )

    value, expected = energy(case.features), energy(case.plain)
    same(value, expected)
    same(value[0], case.potential(case.cotangent))


@pytest.mark.parametrize("kind", KINDS)
def test_tangents_of_features_and_potential(kind):
    case = Case(kind)
    for kernel, plain, operand, change in (
        (case.features, case.plain, case.density, case.matrix),
        (case.potential, case.plain_potential, case.cotangent, case.other),
    ):
        arguments = (operand, *case.geometry), (change, *case.change)
        same(jax.jvp(jax.jit(kernel), *arguments), jax.jvp(jax.jit(plain), *arguments))


@pytest.mark.parametrize("kind", KINDS)
def test_cotangents_of_the_potential(kind):
    case = Case(kind)
    for weight in (case.matrix, case.matrix * jnp.arange(1.0 * case.matrix.shape[2])):  # symmetric, and not
        value = jax.jit(lambda w, c, *g: jax.vjp(case.potential, c, *g)[1](w))(weight, case.cotangent, *case.geometry)
        expected = jax.jit(lambda w, c, *g: jax.vjp(case.plain_potential, c, *g)[1](w))(
            weight, case.cotangent, *case.geometry
        )
        same(value, expected)


def pointwise(features):
    """A smooth function of the features that is not linear."""
    return jnp.sum(jnp.sin(0.1 * features)) + 1e-3 * jnp.sum(features[:, :1] ** 2 * features)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_of_an_energy(kind):
    case = Case(kind)

    def products(features):
        def gradient(d, c, p):
            g = (c, *case.geometry[1:3], p)
            return jax.grad(lambda d, c, p: pointwise(features(d, c, *g[1:3], p)), argnums=(0, 1, 2))(d, c, p)

        at = (case.density, case.geometry[0], case.geometry[3])
        along = (case.matrix, case.change[0], case.change[3])
        forward = jax.jit(lambda: jax.jvp(gradient, at, along)[1])()
        reverse = jax.jit(
            lambda: jax.grad(
                lambda *x: sum(jnp.vdot(a, b) for a, b in zip(gradient(*x), along, strict=True)), argnums=(0, 1, 2)
            )(*at)
        )()
        return forward, reverse

    value, expected = products(case.features), products(case.plain)
    same(value, expected, 1e-11)
    # The potential is symmetric in what plain JAX sees as two triangles: both ways give the same product.
    same(value[0], value[1], 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_the_slope(kind):
    case = Case(kind)
    step = 1e-4

    @jax.jit
    def energy(t):
        moved = [g + t * c for g, c in zip(case.geometry, case.change, strict=True)]
        return pointwise(case.features(case.density + t * case.matrix, *moved))

    numeric = (8 * (energy(step) - energy(-step)) - (energy(2 * step) - energy(-2 * step))) / (12 * step)
    assert float(jax.grad(energy)(0.0)) == pytest.approx(float(numeric), rel=1e-7)
    assert float(jax.jvp(energy, (0.0,), (1.0,))[1]) == pytest.approx(float(numeric), rel=1e-7)


def test_translation_of_everything_changes_nothing():
    case = Case("mgga")
    gradient = jax.grad(lambda c, p: pointwise(case.features(case.density, c, *case.geometry[1:3], p)), argnums=(0, 1))
    centers, points = gradient(case.geometry[0], case.geometry[3])
    assert np.max(np.abs(jnp.sum(centers, axis=0) + jnp.sum(points, axis=0))) <= 1e-11 * np.max(np.abs(centers))


@pytest.mark.parametrize("kind", KINDS)
def test_vmap(kind):
    case = Case(kind)
    many = jnp.stack([case.density, case.matrix, 2.0 * case.density])
    value = jax.jit(jax.vmap(case.features))(many)
    same(value, jnp.stack([case.features(d) for d in many]), 1e-14)
    matrices = jax.vmap(case.potential, in_axes=1, out_axes=1)(jnp.moveaxis(value, 0, 1))
    same(jnp.moveaxis(matrices, 1, 0), jnp.stack([case.potential(v) for v in value]), 1e-14)
    shifts = jnp.asarray([0.0, 0.1])
    moved = jax.vmap(lambda t: case.features(case.density, case.geometry[0] + t, *case.geometry[1:]))(shifts)
    same(moved[1], case.features(case.density, case.geometry[0] + 0.1, *case.geometry[1:]), 1e-14)


def test_jacobian_of_the_potential_is_symmetric():
    case = Case("gga", nset=1)
    index = jnp.triu_indices(case.density.shape[1])

    def energy(packed):
        d = jnp.zeros_like(case.density).at[0, index[0], index[1]].set(packed)
        return pointwise(case.features(d))

    hessian = jax.hessian(energy)(case.density[0][index])
    assert relative(hessian, hessian.T) <= 1e-12


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_instruction_set(kind, cart, isa):
    case = Case(kind, cart, lmax=4)
    at, along = (case.geometry[0], case.geometry[3]), (case.change[0], case.change[3])

    def moved(function, operand):
        return lambda c, p: function(operand, c, *case.geometry[1:3], p)

    with instruction_set(isa) as there:
        if not there:
            pytest.skip(f"this processor has no {isa}")
        value = [
            jax.vjp(moved(case.features, case.density), *at)[1](case.cotangent),
            jax.jvp(moved(case.features, case.density), at, along),
            jax.jvp(moved(case.potential, case.cotangent), at, along),
        ]
    expected = [
        jax.vjp(moved(case.plain, case.density), *at)[1](case.cotangent),
        jax.jvp(moved(case.plain, case.density), at, along),
        jax.jvp(moved(case.plain_potential, case.cotangent), at, along),
    ]
    same(value, expected)


@pytest.fixture(scope="module")
def water():
    symbols, coords = water_cluster(3)
    mol = jaxqc.Molecule(list(zip(symbols, map(tuple, coords), strict=True)), basis="def2-svp")
    grid = jaxqc.xc.Grid(mol, level=0)
    return mol, grid, jnp.asarray(0.1 * symmetric(np.random.default_rng(21), 2, mol.nao))


def derivatives(system, epsilon):
    """Gradient of an energy, and tangents of features and potential, for one layout."""
    mol, grid, density = system
    layout = build_layout(mol, grid.coords, grid.weights, epsilon=epsilon, row=48)
    rng = np.random.default_rng(22)
    change = jnp.asarray(rng.normal(size=mol.coords.shape))
    shape = (2, 5, layout.points.shape[0])
    cotangent = layout.weights * jnp.asarray(rng.normal(size=shape))

    def features(x):
        return density_features(mol.with_coords(x), layout, density, "mgga")

    def potential(x):
        return potential_matrix(mol.with_coords(x), layout, cotangent)

    gradient = jax.grad(lambda x: jnp.vdot(cotangent, features(x)))(mol.coords)
    tangent = layout.weights * jax.jvp(features, (mol.coords,), (change,))[1]
    return gradient, tangent, jax.jvp(potential, (mol.coords,), (change,))[1]


def test_gates_of_derivatives(water):
    exact = derivatives(water, 0.0)
    for epsilon, bound in ((1e-12, 1e-7), (1e-10, 1e-5)):
        gated = derivatives(water, epsilon)
        for g, e in zip(gated, exact, strict=True):
            assert 0 < float(jnp.max(jnp.abs(g - e))) <= bound


def test_same_derivatives_for_any_number_of_threads(water, monkeypatch):
    results = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("JAXQC_NUM_THREADS", threads)
        results.append(derivatives(water, 1e-12))
    for values in results[1:]:
        assert all(np.array_equal(v, r) for v, r in zip(values, results[0], strict=True))
