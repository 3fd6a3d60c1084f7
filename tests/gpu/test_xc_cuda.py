"""Exchange-correlation kernels on an NVIDIA GPU against plain JAX, element by element."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc import systems
from jaxqc.gpu import Step, call, int64
from jaxqc.gpu._launch import architecture, load
from jaxqc.integrals._shells import ShellList
from jaxqc.xc import _cuda, _oracle, build_layout, density_features
from jaxqc.xc import _cuda_units as units
from jaxqc.xc._density import potential_matrix
from jaxqc.xc._grid_becke import reference_fractions
from jaxqc.xc._grid_hilbert import hilbert_order
from jaxqc.xc._grid_partition import partition_fractions

pytestmark = pytest.mark.gpu

NCOMP = {"lda": 1, "gga": 4, "mgga": 5}
WATER = "O 0 0 0.1; H 0 0.7 -0.4; H 0.1 -0.7 -0.5"
NEON = "Ne 0 0 0; H 0 0.8 1.1; H 0.3 -0.8 0.9"


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


def _cloud(centers, n, seed=0):
    """Points around the centres with weights of all sizes, a block of them without weight."""
    rng = np.random.default_rng(seed)
    owner = np.asarray(centers)[rng.integers(len(centers), size=n)]
    points = owner + rng.normal(size=(n, 3)) * rng.uniform(0.05, 2.5, size=(n, 1))
    weights = 10.0 ** rng.uniform(-6, 0, size=n)
    weights[300:600] = 0.0
    return jnp.asarray(points), jnp.asarray(weights)


def _matrices(nao, nset, seed=1):
    m = np.random.default_rng(seed).normal(size=(nset, nao, nao))
    return jnp.asarray(m + m.transpose(0, 2, 1))


def _relative(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def _plain(shells, cart, ncomp, points, density, cotangent):
    """Features by plain JAX, and the derivatives of <cotangent, features> to centres, points and density."""

    def features(centers, at, d):
        part = ShellList(shells.ls, shells.nprims, centers, *map(jnp.asarray, constants))
        return _oracle.features(part, at, 0.5 * (d + jnp.swapaxes(d, 1, 2)), cart=cart, ncomp=ncomp)

    def both(centers, at, d, c):
        out, pullback = jax.vjp(features, centers, at, d)
        return out, pullback(c)

    constants = [np.asarray(x) for x in (shells.exponents, shells.coefficients)]
    return _on_cpu(both, shells.centers, points, density, cotangent)


def _on_cpu(function, *arguments):
    """Compiled in one program for the CPU, which takes JAX far less time than for a GPU."""
    arguments = [np.asarray(x) for x in arguments]
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(np.asarray, jax.jit(function)(*arguments))


def _inputs(shells, cart, kind, nset, n, seed):
    """Layout, densities, and cotangents that are 0 in rows without weight."""
    points, weights = _cloud(np.asarray(shells.centers), n)
    layout = build_layout(shells, points, weights, epsilon=0.0, ordered=False, cart=cart)
    live = np.repeat(np.asarray(layout.weights).reshape(-1, 64).max(axis=1) > 0, 64) * 1.0
    density = np.asarray(_matrices(shells.nao_cart if cart else shells.nao_sph, nset))
    cotangent = np.random.default_rng(seed).normal(size=(nset, NCOMP[kind], len(live))) * live
    return layout, live, density, cotangent


def _compile(shells, cart, kind, capacity, sets=(1, 2)):
    """Compiles the kernels that a test needs beside each other."""
    nao = shells.nao_cart if cart else shells.nao_sph
    key = (architecture(), nao, capacity, max(shells.ls), cart, NCOMP[kind])
    classes = [c for n in sets for c, *_ in units.density_plan(*key, n)]
    classes += [*units.potential_classes(*key, False), *units.gradient_classes(*key)]
    load([c.unit for c in classes])


def _check(shells, cart, kind, sets, n, tolerance):
    """Features and potential against plain JAX, element by element, for the first 1, 2 ... of the densities."""
    layout, live, density, cotangent = _inputs(shells, cart, kind, max(sets), n, 2)
    _compile(shells, cart, kind, layout.density.capacity, sets)
    want, (_, _, matrix) = _plain(shells, cart, NCOMP[kind], layout.points, density, cotangent)

    @jax.jit
    def run(layout, d, c):
        f, pullback = jax.vjp(lambda d: density_features(shells, layout, d, kind, cart=cart), d)
        return f, potential_matrix(shells, layout, c, cart=cart), pullback(c)[0]

    for nset in sets:
        d, c = density[:nset], cotangent[:nset]
        got, v, transposed = (np.asarray(x) for x in run(layout, d, c))
        for k in range(NCOMP[kind]):
            assert _relative(got[:, k], want[:nset, k] * live) < tolerance, (nset, k)
        assert _relative(v, matrix[:nset]) < tolerance, nset
        assert abs(np.vdot(v, d) / np.vdot(c, got) - 1.0) < 1e-11
        assert _relative(transposed, v) < 1e-13


@pytest.mark.parametrize("kind", ["lda", "gga", "mgga"])
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize(("atoms", "basis"), [(WATER, "def2-svp"), (NEON, "cc-pvqz")])
def test_density_and_potential_are_those_of_plain_jax(atoms, basis, cart, kind):
    shells = ShellList.from_molecule(jaxqc.Molecule(atoms, basis=basis, cart=cart))
    _check(shells, cart, kind, (1, 2, 3) if kind == "gga" else (1, 2), 1500, 1e-12)


@pytest.mark.parametrize("kind", ["lda", "gga", "mgga"])
@pytest.mark.parametrize("cart", [False, True])
def test_gradients_are_those_of_plain_jax(cart, kind):
    shells = ShellList.from_molecule(jaxqc.Molecule(NEON, basis="cc-pvqz", cart=cart))
    layout, _, density, cotangent = _inputs(shells, cart, kind, 2, 600, 4)
    _compile(shells, cart, kind, layout.density.capacity)
    _, want = _plain(shells, cart, NCOMP[kind], layout.points, density, cotangent)
    got = jax.jit(lambda d, c: _cuda.gradient(shells, cart, layout.points, layout.density, d, c, 0.0))(
        density, cotangent
    )
    for a, b in zip(got, want[:2], strict=True):
        assert _relative(np.asarray(a), b) < 1e-11


@pytest.mark.parametrize("kind", ["gga", "mgga"])
def test_long_lists(kind):
    """Every size class, up to lists longer than shared memory holds."""
    mol = jaxqc.Molecule("; ".join(f"Ne {0.5 * k} 0 0" for k in range(16)), basis="cc-pvqz")  # 880 functions
    shells = ShellList.from_molecule(mol)
    for nshell in (36, 60, 100, 150, 200, shells.nshell):
        _check(_first_shells(shells, nshell), False, kind, (2,), 700, 1e-11)


def _first_shells(shells, n):
    nprim = sum(shells.nprims[:n])
    return ShellList(
        shells.ls[:n], shells.nprims[:n], shells.centers[:n], shells.exponents[:nprim], shells.coefficients[:nprim]
    )


def test_lists_keep_every_shell_that_matters():
    mol = jaxqc.Molecule(systems.water_cluster(5), basis="def2-svp")
    points, weights = _cloud(mol.coords, 4000)
    layout = build_layout(mol, points, weights, ordered=False)
    density = _matrices(mol.nao, 1) / 2
    exact = _oracle.features(ShellList.from_molecule(mol), layout.points, density, cart=False, ncomp=4)
    got = density_features(mol, layout, density, "gga")
    assert float(jnp.sum(layout.weights * jnp.max(jnp.abs(got - exact), axis=(0, 1)))) < 1e-8
    for lists in (layout.density, layout.potential):
        count, bound, shell = (np.asarray(x) for x in (lists.count, lists.bound, lists.shell))
        assert int(lists.overflow) == count.max() <= lists.capacity
        for row in range(len(count)):
            assert np.all(np.diff(bound[row, : count[row]]) <= 0)
            assert len(set(shell[row, : count[row]] & 0xFFFFF)) == count[row]
        order = np.asarray(lists.order)[: len(count)]
        assert sorted(order) == list(range(len(count)))


def test_a_list_that_is_too_short_gives_nan():
    mol = jaxqc.Molecule(WATER, basis="def2-svp")
    points, weights = _cloud(mol.coords, 512)
    layout = build_layout(mol, points, weights, ordered=False, capacity=4)
    got = density_features(mol, layout, _matrices(mol.nao, 1), "gga")
    assert bool(jnp.isnan(got).any())
    assert bool(jnp.isnan(potential_matrix(mol, layout, jnp.ones_like(got))).any())


def test_fixed_point_potential_is_reproducible():
    mol = jaxqc.Molecule(systems.water_cluster(5), basis="def2-svp")
    points, weights = _cloud(mol.coords, 20000)
    layout = build_layout(mol, points, weights, ordered=False)
    c = jnp.asarray(np.random.default_rng(5).normal(size=(1, 4, layout.points.shape[0]))) * layout.weights
    shells = ShellList.from_molecule(mol)

    def fixed(deterministic):
        f = jax.jit(lambda c: _cuda.potential(shells, False, layout.points, layout.potential, c, 1e-12, deterministic))
        return f(c)

    first = np.asarray(fixed(True))
    assert all(np.array_equal(first, np.asarray(fixed(True))) for _ in range(5))
    np.testing.assert_allclose(first, np.asarray(fixed(False)), rtol=0, atol=1e-9)


def test_inside_loops_next_to_other_work():
    mol = jaxqc.Molecule(WATER, basis="def2-svp")
    points, weights = _cloud(mol.coords, 2000)
    layout = build_layout(mol, points, weights, ordered=False)

    @jax.jit
    def loop(density):
        def body(k, d):
            f = density_features(mol, layout, d, "gga")
            v = potential_matrix(mol, layout, f * layout.weights)
            return d + 1e-9 * v / (1.0 + jnp.max(jnp.abs(v))) @ jnp.ones((mol.nao, mol.nao))

        return jax.lax.fori_loop(0, 10, body, density)

    density = _matrices(mol.nao, 1)
    once = loop(density)
    np.testing.assert_allclose(np.asarray(loop(density)), np.asarray(once), rtol=0, atol=1e-13)
    assert bool(jnp.isfinite(once).all())


def test_a_launch_that_fails_is_an_error_that_names_kernel_and_cause():
    unit = units.rows_unit(0, False)
    step = Step(unit, "xc_basis", 64, (int64(0),) * 7, grid=1, shared=10**6)
    with pytest.raises(Exception, match="xc_basis.*CUDA_ERROR_INVALID_VALUE"):
        jax.block_until_ready(
            jax.jit(lambda x: call("jaxqc_test", [step], [jax.ShapeDtypeStruct(x.shape, x.dtype)], x))(jnp.zeros(4))
        )


def test_nan_is_passed_on():
    mol = jaxqc.Molecule(WATER, basis="def2-svp")
    points, weights = _cloud(mol.coords, 512)
    layout = build_layout(mol, points, weights, ordered=False)
    density = _matrices(mol.nao, 1).at[0, 3, 3].set(jnp.nan)
    assert bool(jnp.isnan(density_features(mol, layout, density, "gga")).any())
    c = jnp.ones((1, 4, layout.points.shape[0])).at[0, 0, 5].set(jnp.nan)
    assert bool(jnp.isnan(potential_matrix(mol, layout, c)).any())


@pytest.mark.parametrize("partition", ["becke", "ssf"])
@pytest.mark.parametrize("name", ["atom", "water", "cluster", "ghost"])
def test_partition_is_that_of_plain_jax(name, partition):
    atoms = {
        "atom": "Ne 0 0 0",
        "water": WATER,
        "cluster": systems.water_cluster(15),
        "ghost": "O 0 0 0.1; H 0 0.7 -0.4; H 0.1 -0.7 -0.5; ghost-O 0 0 0.1",
    }[name]
    mol = jaxqc.Molecule(atoms, basis="sto-3g")
    grid = jaxqc.xc.Grid(mol, level=1)
    keep = slice(None, None, max(1, len(grid.coords) // 4000))
    owner, radii = grid.atom[keep], jnp.asarray(np.random.default_rng(0).uniform(0.6, 1.8, size=mol.natm))
    points = jnp.concatenate([grid.coords[keep], mol.coords[:1]])
    owner = jnp.concatenate([owner, jnp.zeros(1, owner.dtype)])
    order = jax.jit(hilbert_order)(points)
    points, owner = points[order], owner[order]
    seed = jnp.asarray(np.random.default_rng(1).normal(size=len(points)))

    def shares(function, coords, points, owner, radii, seed):
        found, pullback = jax.vjp(lambda c, p: function(c, p, owner, radii, partition=partition), coords, points)
        return found, pullback(seed)

    arguments = (mol.coords, points, owner, radii, seed)
    got, pulled = shares(partition_fractions, *arguments)
    want, expected = _on_cpu(functools.partial(shares, reference_fractions), *arguments)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-11, atol=1e-18)
    for a, b in zip(pulled, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-9, atol=1e-11 * (np.abs(b).max() + 1))
