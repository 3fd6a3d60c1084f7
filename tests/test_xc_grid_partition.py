"""The compiled partition of space against its definition, and its derivatives against finite differences."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc.integrals._library import load
from jaxqc.systems import polyglycine, water_cluster
from jaxqc.xc._grid import Grid, place
from jaxqc.xc._grid_becke import reference_fractions
from jaxqc.xc._grid_partition import partition_fractions, partition_work
from jaxqc.xc._grid_template import grid_template

PARTITIONS = ["becke", "ssf"]
CASES = {
    "one": ("He 0.1 0.2 0.3", 0),
    "water": ("O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24", 0),
    "mixed": ("O 0 0 0; H 0 0 0.96; I 3 3 3; Na 1 2 3; GHOST-H 0 0 0; Cl -2 1 0; H 1 1 -1", 1),
    "far": ("O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24; He 0 0 529; He 0 20 0", 0),
    "cluster": (water_cluster(5), 0),
}


def molecule(atoms, spin=0):
    return jaxqc.Molecule(atoms, basis="sto-3g", spin=spin)


def problem(name):
    """Coordinates, points (those of a grid, the nuclei, and some far away), owners, radii."""
    atoms, spin = CASES[name]
    mol = molecule(atoms, spin)
    template = grid_template(mol, 0)
    grid = place(template, mol.coords)
    natm = mol.natm
    away = jnp.asarray(np.random.default_rng(1).normal(size=(40, 3)) * 40)
    points = jnp.concatenate([grid.coords, mol.coords, away, away[:1] * 100])
    owner = jnp.concatenate([grid.atom, jnp.arange(natm, dtype=jnp.int32), jnp.arange(41, dtype=jnp.int32) % natm])
    return mol.coords, points, owner, jnp.asarray(template.size_radii)


def compiled(owner, radii, partition):
    return lambda coords, points: partition_fractions(coords, points, owner, radii, partition=partition)


def reference(owner, radii, partition):
    return lambda coords, points: reference_fractions(coords, points, owner, radii, partition=partition)


def exact_fraction(coords, point, owner, radii, partition):
    """The definition in 60 decimal digits, in terms of nu as the papers write it."""
    with localcontext() as context:
        context.prec = 60
        exact = [[Decimal(float(x)) for x in row] for row in coords]
        at = [Decimal(float(x)) for x in point]
        u = [Decimal(float(x)) for x in radii]

        def distance(a, b):
            return sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Decimal(0)).sqrt()

        def share(i, j):
            mu = (distance(at, exact[i]) - distance(at, exact[j])) / distance(exact[i], exact[j])
            a = (u[j] / u[i] - u[i] / u[j]) / 4
            a = max(min(a, Decimal("0.5")), Decimal("-0.5"))
            nu = mu + a * (1 - mu * mu)
            if partition == "becke":
                for _ in range(3):
                    nu = (3 * nu - nu**3) / 2
                return (1 - nu) / 2
            x = nu / Decimal("0.64")
            if abs(x) >= 1:
                return Decimal(1 if x < 0 else 0)
            return (1 - (35 * x - 35 * x**3 + 21 * x**5 - 5 * x**7) / 16) / 2

        products = []
        for i in range(len(exact)):
            product = Decimal(1)
            for j in range(len(exact)):
                if j != i:
                    product *= share(i, j)
            products.append(product)
        return float(products[owner] / sum(products))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_small_fractions_keep_their_relative_precision(partition):
    coords, points, owner, radii = problem("far")
    values = np.asarray(compiled(owner, radii, partition)(coords, points))
    chosen = np.random.default_rng(2).choice(len(values), 60, replace=False)
    small = np.flatnonzero((values > 1e-19) & (values < 1e-3))[::5][:40]
    assert len(small) > 5
    for k in np.concatenate([chosen, small]):
        exact = exact_fraction(coords, points[k], int(owner[k]), radii, partition)
        np.testing.assert_allclose(values[k], exact, rtol=1e-12, atol=1.1e-20)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", CASES)
def test_values(name, partition):
    coords, points, owner, radii = problem(name)
    value = compiled(owner, radii, partition)(coords, points)
    expected = reference(owner, radii, partition)(coords, points)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1.1e-20)
    assert np.isfinite(value).all() and (np.asarray(value) <= 1 + 1e-15).all()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_fractions_of_all_atoms_add_up_to_one(partition):
    coords, points, _, radii = problem("mixed")
    total = sum(
        compiled(jnp.full(len(points), k, jnp.int32), radii, partition)(coords, points) for k in range(len(coords))
    )
    np.testing.assert_allclose(total, 1, rtol=1e-14)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", CASES)
def test_first_derivatives(name, partition):
    """Forward and reverse mode against JAX's derivative of the definition, and against each other."""
    coords, points, owner, radii = problem(name)
    rng = np.random.default_rng(3)
    rates = tuple(jnp.asarray(rng.normal(size=x.shape)) for x in (coords, points))
    cotangent = jnp.asarray(rng.normal(size=owner.shape))
    functions = [kind(owner, radii, partition) for kind in (compiled, reference)]
    forward, expected = (jax.jvp(f, (coords, points), rates)[1] for f in functions)
    np.testing.assert_allclose(forward, expected, rtol=1e-11, atol=1e-13)
    reverse, expected = (jax.vjp(f, coords, points)[1](cotangent) for f in functions)
    for bar, expected_bar in zip(reverse, expected, strict=True):
        np.testing.assert_allclose(bar, expected_bar, rtol=1e-11, atol=1e-12)
    product = sum(jnp.vdot(bar, rate) for bar, rate in zip(reverse, rates, strict=True))
    np.testing.assert_allclose(jnp.vdot(cotangent, forward), product, rtol=1e-11, atol=1e-11)


def smooth(mol, template, partition):
    """A smooth functional of a grid: a sum of Gaussians on the nuclei, integrated, and squared somewhere."""

    def value(coords):
        grid = place(template, coords, partition)
        square = jnp.sum((grid.coords[:, None] - coords) ** 2, axis=-1)
        density = jnp.sum(jnp.exp(-0.7 * square), axis=-1)
        return grid.weights @ density ** (4 / 3)

    return value


@pytest.mark.parametrize("partition", PARTITIONS)
def test_gradient_of_an_integral_against_finite_differences(partition):
    mol = molecule("O 0 0 0.1; H 0 0 0.96; H 0.93 0.1 -0.24; Na 1 2 3; GHOST-H -1 0 0", spin=1)
    value = jax.jit(smooth(mol, grid_template(mol, 0), partition))
    gradient = np.asarray(jax.grad(value)(mol.coords))
    step = 1e-3
    for atom, axis in [(0, 0), (1, 2), (3, 1), (4, 0)]:
        shift = jnp.zeros_like(mol.coords).at[atom, axis].set(step)
        f = [float(value(mol.coords + k * shift)) for k in (-2, -1, 1, 2)]
        numerical = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
        np.testing.assert_allclose(gradient[atom, axis], numerical, rtol=1e-7, atol=1e-8)
    # Moving everything changes nothing.
    np.testing.assert_allclose(gradient.sum(axis=0), 0, atol=1e-11)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_second_derivatives(partition):
    mol = molecule("O 0 0 0.1; H 0 0 0.96; H 0.93 0.1 -0.24")
    value = jax.jit(smooth(mol, grid_template(mol, (12, 26)), partition))
    gradient = jax.jit(jax.grad(value))
    direction = jnp.asarray(np.random.default_rng(4).normal(size=mol.coords.shape))
    step = 1e-4
    numerical = (gradient(mol.coords + step * direction) - gradient(mol.coords - step * direction)) / (2 * step)
    forward = jax.jvp(gradient, (mol.coords,), (direction,))[1]
    np.testing.assert_allclose(forward, numerical, rtol=1e-5, atol=1e-6)
    if partition == "ssf":
        reverse = jax.grad(lambda x: jnp.vdot(gradient(x), direction))(mol.coords)
        np.testing.assert_allclose(reverse, forward, rtol=1e-10, atol=1e-10)
        return
    over_forward = jax.grad(lambda x: jax.jvp(value, (x,), (direction,))[1])(mol.coords)
    np.testing.assert_allclose(over_forward, forward, rtol=1e-10, atol=1e-10)


def test_jacobians_in_both_modes():
    mol = molecule("O 0 0 0.1; H 0 0 0.96; H 0.93 0.1 -0.24")
    template = grid_template(mol, (4, 14))
    forward = jax.jacfwd(lambda x: place(template, x).weights)(mol.coords)
    reverse = jax.jacrev(lambda x: place(template, x).weights)(mol.coords)
    np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-12)
    assert np.abs(forward).max() > 0.01


def test_a_grid_that_does_not_move():
    mol = molecule("O 0 0 0.1; H 0 0 0.96; H 0.93 0.1 -0.24")
    template = grid_template(mol, 0)
    gradient = jax.grad(lambda x: place(template, x, moving=False).weights.sum())(mol.coords)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_points_on_nuclei_and_centres_at_one_place(partition):
    coords = jnp.asarray([[0.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 2.0], [1000.0, 0.0, 0.0]])
    owner = jnp.asarray([0, 1, 2, 3, 0], jnp.int32)
    points = jnp.concatenate([coords, jnp.asarray([[0.0, 0.0, 1.0]])])
    f = compiled(owner, jnp.ones(4), partition)
    values = f(coords, points)
    np.testing.assert_allclose(values, [1, 1 / 2, 1 / 2, 1, 1 / 3], rtol=1e-14)
    for bar in jax.vjp(f, coords, points)[1](jnp.ones(5)):
        assert np.isfinite(bar).all()
    assert np.isfinite(jax.jvp(f, (coords, points), (coords, points))[1]).all()


def test_an_atom_alone_has_all_space_and_no_derivative():
    coords, points, owner, radii = problem("one")
    f = compiled(owner, radii, "becke")
    np.testing.assert_array_equal(f(coords, points), 1)
    for bar in jax.vjp(f, coords, points)[1](jnp.ones(len(points))):
        np.testing.assert_array_equal(bar, 0)


def test_coordinates_that_are_no_numbers():
    coords, points, owner, radii = problem("water")
    assert np.isnan(compiled(owner, radii, "becke")(coords.at[0, 0].set(jnp.nan), points)).all()


@pytest.mark.parametrize("partition", PARTITIONS)
def test_moved_turned_and_renamed(partition):
    coords, points, owner, radii = problem("mixed")
    expected = compiled(owner, radii, partition)(coords, points)
    turn, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))
    turned = compiled(owner, radii, partition)(coords @ turn + 3.0, points @ turn + 3.0)
    np.testing.assert_allclose(turned, expected, rtol=1e-9, atol=1e-13)
    names = np.random.default_rng(6).permutation(len(coords))
    place_of = jnp.asarray(np.argsort(names), jnp.int32)
    renamed = compiled(place_of[owner], radii[names], partition)(coords[names], points)
    np.testing.assert_allclose(renamed, expected, rtol=1e-13, atol=1e-20)


def test_sets_of_instructions_agree():
    coords, points, owner, radii = problem("cluster")
    library = load()
    cotangent = jnp.ones(len(owner))
    results = {}
    try:
        for name in (b"baseline", b"avx2", b"avx512"):
            if library.jaxqc_select_isa(name):
                f = compiled(owner, radii, "becke")
                results[name] = (f(coords, points), *jax.vjp(f, coords, points)[1](cotangent))
                jax.block_until_ready(results[name])
    finally:
        library.jaxqc_select_isa(b"auto")
    for result in results.values():
        for value, expected in zip(result, results[b"baseline"], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-13)


def test_the_same_numbers_on_any_number_of_threads(monkeypatch):
    coords, points, owner, radii = problem("cluster")
    f = compiled(owner, radii, "becke")
    results = []
    for threads in ("1", "4"):
        monkeypatch.setenv("JAXQC_NUM_THREADS", threads)
        results.append(jax.vjp(f, coords, points)[1](jnp.ones(len(owner))))
    for one, four in zip(*results, strict=True):
        np.testing.assert_array_equal(one, four)


def work(atoms, partition):
    """Steps evaluated for one point, and the number of atoms."""
    mol = molecule(atoms)
    grid = Grid(mol, 0)
    radii = jnp.asarray(grid.template.size_radii)
    steps = partition_work(mol.coords, grid.coords, grid.atom, radii, partition=partition)
    return steps / len(grid), mol.natm


def test_the_cost_grows_with_the_number_of_points():
    """Stratmann: the steps for one point do not depend on the length of a chain. Becke: far fewer than all pairs."""
    small, _ = work(polyglycine(15), "ssf")
    large, natm = work(polyglycine(45), "ssf")
    assert large < 1.3 * small < 600
    becke, _ = work(polyglycine(45), "becke")
    assert becke < 20 * natm < 0.1 * natm**2
