"""Exchange-correlation kernels on an NVIDIA GPU against plain JAX, element by element."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc import systems
from jaxqc.gpu import Step, call, int64
from jaxqc.integrals._shells import ShellList
from jaxqc.xc import _cuda, _oracle, build_layout, density_features
from jaxqc.xc._cuda_units import rows_unit
from jaxqc.xc._density import potential_matrix
from jaxqc.xc._grid_becke import reference_fractions
from jaxqc.xc._grid_hilbert import hilbert_order
from jaxqc.xc._grid_partition import partition_fractions

pytestmark = pytest.mark.gpu

NCOMP = {"lda": 1, "gga": 4, "mgga": 5}
WATER = "O 0 0 0.1; H 0 0.7 -0.4; H 0.1 -0.7 -0.5"


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


def _cloud(mol, n, seed=0):
    """Points around the atoms with weights of all sizes, a block of them without weight."""
    rng = np.random.default_rng(seed)
    owner = np.asarray(mol.coords)[rng.integers(mol.natm, size=n)]
    points = owner + rng.normal(size=(n, 3)) * rng.uniform(0.05, 2.5, size=(n, 1))
    weights = 10.0 ** rng.uniform(-6, 0, size=n)
    weights[300:600] = 0.0
    return jnp.asarray(points), jnp.asarray(weights)


def _matrices(mol, nset, seed=1):
    m = np.random.default_rng(seed).normal(size=(nset, mol.nao, mol.nao))
    return jnp.asarray(m + m.transpose(0, 2, 1))


def _relative(a, b):
    return float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))


@pytest.mark.parametrize("kind", ["lda", "gga", "mgga"])
@pytest.mark.parametrize("nset", [1, 2, 3])
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize(
    ("atoms", "basis"), [(WATER, "def2-svp"), ("Ne 0 0 0; H 0 0.8 1.1; H 0.3 -0.8 0.9", "cc-pvqz")]
)
def test_density_and_potential_are_those_of_plain_jax(atoms, basis, cart, nset, kind):
    if nset == 3 and kind != "gga":
        pytest.skip("covered by one and two sets")
    mol = jaxqc.Molecule(atoms, basis=basis, cart=cart)
    points, weights = _cloud(mol, 1500)
    layout = build_layout(mol, points, weights, epsilon=0.0, ordered=False)
    shells = ShellList.from_molecule(mol)
    density = _matrices(mol, nset)
    got = density_features(mol, layout, density, kind)
    live = jnp.repeat(jnp.max(layout.weights.reshape(-1, 64), axis=1) > 0, 64)
    want = jnp.where(live, _oracle.features(shells, layout.points, density, cart=cart, ncomp=NCOMP[kind]), 0.0)
    for c in range(NCOMP[kind]):
        assert _relative(got[:, c], want[:, c]) < 1e-12
    cotangent = jnp.asarray(np.random.default_rng(2).normal(size=got.shape)) * live.astype(jnp.float64)
    v = potential_matrix(mol, layout, cotangent)
    _, transpose = jax.vjp(
        lambda d: _oracle.features(
            shells, layout.points, 0.5 * (d + jnp.swapaxes(d, 1, 2)), cart=cart, ncomp=NCOMP[kind]
        ),
        density,
    )
    assert _relative(v, transpose(cotangent)[0]) < 1e-12
    assert abs(float(jnp.vdot(v, density) / jnp.vdot(cotangent, got) - 1.0)) < 1e-11
    transposed = jax.vjp(lambda d: density_features(mol, layout, d, kind), density)[1](cotangent)[0]
    assert _relative(transposed, v) < 1e-13


@pytest.mark.parametrize("kind", ["lda", "gga", "mgga"])
@pytest.mark.parametrize("cart", [False, True])
def test_gradients_are_those_of_plain_jax(cart, kind):
    mol = jaxqc.Molecule("Ne 0 0 0; H 0 0.8 1.1; H 0.3 -0.8 0.9", basis="cc-pvqz", cart=cart)
    points, weights = _cloud(mol, 600)
    layout = build_layout(mol, points, weights, epsilon=0.0, ordered=False)
    shells = ShellList.from_molecule(mol)
    density = _matrices(mol, 2)
    cotangent = np.random.default_rng(4).normal(size=(2, NCOMP[kind], layout.points.shape[0])) * np.asarray(
        layout.weights > 0
    )

    def contracted(centers, at):
        part = ShellList(shells.ls, shells.nprims, centers, shells.exponents, shells.coefficients)
        return jnp.vdot(cotangent, _oracle.features(part, at, density, cart=cart, ncomp=NCOMP[kind]))

    want = jax.grad(contracted, argnums=(0, 1))(shells.centers, layout.points)
    got = jax.jit(lambda d, c: _cuda.gradient(shells, cart, layout.points, layout.density, d, c, 0.0))(
        density, jnp.asarray(cotangent)
    )
    for a, b in zip(got, want, strict=True):
        assert _relative(a, b) < 1e-11


@pytest.mark.parametrize("kind", ["gga", "mgga"])
def test_long_lists(kind):
    """Every size class, up to lists longer than shared memory holds."""
    mol = jaxqc.Molecule("; ".join(f"Ne {0.5 * k} 0 0" for k in range(16)), basis="cc-pvqz")  # 880 functions
    points, weights = _cloud(mol, 700)
    shells = ShellList.from_molecule(mol)
    for nshell in (36, 60, 100, 150, 200, shells.nshell):
        part = _first_shells(shells, nshell)
        layout = build_layout(part, points, weights, epsilon=0.0, ordered=False, cart=False)
        nao = part.nao_sph
        m = np.random.default_rng(3).normal(size=(2, nao, nao))
        density = jnp.asarray(m + m.transpose(0, 2, 1))
        got = density_features(part, layout, density, kind, cart=False)
        live = jnp.repeat(jnp.max(layout.weights.reshape(-1, 64), axis=1) > 0, 64)
        want = jnp.where(live, _oracle.features(part, layout.points, density, cart=False, ncomp=NCOMP[kind]), 0.0)
        for c in range(NCOMP[kind]):
            assert _relative(got[:, c], want[:, c]) < 1e-11, nao
        cotangent = jnp.asarray(np.random.default_rng(2).normal(size=got.shape)) * live.astype(jnp.float64)
        v = potential_matrix(part, layout, cotangent, cart=False)
        plain = functools.partial(_plain, part, layout.points, NCOMP[kind])
        _, transpose = jax.vjp(plain, density)
        assert _relative(v, transpose(cotangent)[0]) < 1e-11, nao


def _plain(shells, points, ncomp, density):
    symmetric = 0.5 * (density + jnp.swapaxes(density, 1, 2))
    return _oracle.features(shells, points, symmetric, cart=False, ncomp=ncomp)


def _first_shells(shells, n):
    nprim = sum(shells.nprims[:n])
    return ShellList(
        shells.ls[:n], shells.nprims[:n], shells.centers[:n], shells.exponents[:nprim], shells.coefficients[:nprim]
    )


def test_lists_keep_every_shell_that_matters():
    mol = jaxqc.Molecule(systems.water_cluster(5), basis="def2-svp")
    points, weights = _cloud(mol, 4000)
    layout = build_layout(mol, points, weights, ordered=False)
    density = _matrices(mol, 1) / 2
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
    points, weights = _cloud(mol, 512)
    layout = build_layout(mol, points, weights, ordered=False, capacity=4)
    got = density_features(mol, layout, _matrices(mol, 1), "gga")
    assert bool(jnp.isnan(got).any())
    assert bool(jnp.isnan(potential_matrix(mol, layout, jnp.ones_like(got))).any())


def test_fixed_point_potential_is_reproducible():
    mol = jaxqc.Molecule(systems.water_cluster(5), basis="def2-svp")
    points, weights = _cloud(mol, 20000)
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
    points, weights = _cloud(mol, 2000)
    layout = build_layout(mol, points, weights, ordered=False)

    @jax.jit
    def loop(density):
        def body(k, d):
            f = density_features(mol, layout, d, "gga")
            v = potential_matrix(mol, layout, f * layout.weights)
            return d + 1e-9 * v / (1.0 + jnp.max(jnp.abs(v))) @ jnp.ones((mol.nao, mol.nao))

        return jax.lax.fori_loop(0, 10, body, density)

    density = _matrices(mol, 1)
    once = loop(density)
    np.testing.assert_allclose(np.asarray(loop(density)), np.asarray(once), rtol=0, atol=1e-13)
    assert bool(jnp.isfinite(once).all())


def test_a_launch_that_fails_is_an_error_that_names_kernel_and_cause():
    unit = rows_unit(0, False)
    step = Step(unit, "xc_basis", 64, (int64(0),) * 7, grid=1, shared=10**6)
    with pytest.raises(Exception, match="xc_basis.*CUDA_ERROR_INVALID_VALUE"):
        jax.block_until_ready(
            jax.jit(lambda x: call("jaxqc_test", [step], [jax.ShapeDtypeStruct(x.shape, x.dtype)], x))(jnp.zeros(4))
        )


def test_nan_is_passed_on():
    mol = jaxqc.Molecule(WATER, basis="def2-svp")
    points, weights = _cloud(mol, 512)
    layout = build_layout(mol, points, weights, ordered=False)
    density = _matrices(mol, 1).at[0, 3, 3].set(jnp.nan)
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
    plain = jax.jit(lambda c, p: reference_fractions(c, p, owner, radii, partition=partition))
    got = partition_fractions(mol.coords, points, owner, radii, partition=partition)
    want = plain(mol.coords, points)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-11, atol=1e-18)
    seed = jnp.asarray(np.random.default_rng(1).normal(size=len(points)))
    pulled = jax.vjp(lambda c, p: partition_fractions(c, p, owner, radii, partition=partition), mol.coords, points)[1](
        seed
    )
    expected = jax.vjp(plain, mol.coords, points)[1](seed)
    for a, b in zip(pulled, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-11 * float(jnp.max(jnp.abs(b)) + 1))
