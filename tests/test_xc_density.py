"""Densities on a grid and potential matrices of the compiled kernels against PySCF and against plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from two_electron_cases import CENTERS, INSTRUCTION_SETS, contraction, instruction_set, mole, shell_list
from xc_density_cases import (
    COMPONENTS,
    layout_of,
    points_around,
    pyscf_features,
    pyscf_potential,
    relative,
    small_mole,
    symmetric,
)

import jaxqc
from jaxqc.systems import water_cluster
from jaxqc.xc import _oracle
from jaxqc.xc._cells import build_layout
from jaxqc.xc._density import density_features, potential_matrix

TIGHT = 1e-13


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request):
    with instruction_set(request.param) as there:
        if not there:
            pytest.skip(f"this processor has no {request.param}")
        yield request.param


def check(case, points, weights, kind="mgga", nset=1, **options):
    rng = np.random.default_rng(7)
    density = symmetric(rng, nset, case.nao)
    shells, layout = layout_of(case, points, weights, **options)
    value = density_features(shells, layout, jnp.asarray(density), kind, cart=bool(case.cart))
    expected = pyscf_features(case, points, density, kind)
    for c in range(COMPONENTS[kind]):
        assert relative(layout.to_grid(value)[:, c], expected[:, c]) <= TIGHT, (kind, c)
    cotangent = jnp.asarray(rng.normal(size=value.shape))
    matrix = potential_matrix(shells, layout, cotangent, cart=bool(case.cart))
    assert relative(matrix, jnp.swapaxes(matrix, 1, 2)) == 0
    left, right = float(jnp.vdot(cotangent, value)), float(jnp.vdot(matrix, jnp.asarray(density)))
    scale = float(jnp.sum(jnp.abs(cotangent * value)))
    assert abs(left - right) <= 1e-12 * scale
    assert relative(matrix, pyscf_potential(case, layout.points, cotangent)) <= TIGHT


@pytest.mark.parametrize("kind", ["lda", "gga", "mgga"])
@pytest.mark.parametrize("cart", [False, True])
def test_all_shells_up_to_g(isa, cart, kind):
    rng = np.random.default_rng(1)
    check(small_mole(cart, lmax=4), *points_around(rng, 101), kind=kind, nset=2)


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("l", range(7))
def test_one_shell(isa, l, cart):
    rng = np.random.default_rng(2)
    case = mole(CENTERS, [[contraction(rng, l, 2, 0.3, 2.0)]], cart)
    check(case, *points_around(rng, 50))


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("l", range(7))
def test_orbitals_are_those_of_pyscf(l, cart):
    rng = np.random.default_rng(3)
    case = mole(CENTERS, [[contraction(rng, l, 3, 0.3, 2.0)], [contraction(rng, l, 1, 0.3, 2.0)]], cart)
    points, _ = points_around(rng, 40)
    value = _oracle.orbitals(shell_list(case), jnp.asarray(points), cart=cart, gradient=True)
    assert relative(value, case.eval_gto("GTOval_cart_deriv1" if cart else "GTOval_sph_deriv1", points)) <= TIGHT


@pytest.mark.parametrize("n", [1, 2, 23, 24, 25, 47, 48, 49, 100])
def test_any_number_of_points(isa, n):
    rng = np.random.default_rng(4)
    check(small_mole(), *points_around(rng, n))


@pytest.mark.parametrize("row", [1, 8, 24, 40, 96, 200])
def test_any_length_of_rows(isa, row):
    rng = np.random.default_rng(5)
    check(small_mole(), *points_around(rng, 130), row=row)


@pytest.mark.parametrize("nset", [1, 2, 3, 9, 17])
def test_many_densities(isa, nset):
    rng = np.random.default_rng(6)
    check(small_mole(natm=2), *points_around(rng, 60), nset=nset)


def test_exponents_from_1e_minus_3_to_1e7(isa):
    exponents = [1e7, 3e4, 1e3, 40.0, 1.0, 1e-2, 1e-3]
    case = mole(CENTERS, [[[l, [e, 1.0]] for l in range(5) for e in exponents[l % 2 :: 2]]])
    rng = np.random.default_rng(8)
    near = CENTERS[0] + 10.0 ** rng.uniform(-5, 1.5, (90, 1)) * rng.normal(size=(90, 3))
    check(case, near, np.ones(90))


def test_contractions_that_share_a_centre(isa):
    rng = np.random.default_rng(9)
    shells = [[contraction(rng, l, 6, 0.05, 500.0, nctr=2) for l in range(3)] for _ in range(3)]
    check(mole(np.array([[0.1, 0.2, 0.3]] * 2 + [[0.1, 0.2, 1.3]]), shells), *points_around(rng, 70))


def test_grid_far_away_sees_nothing(isa):
    rng = np.random.default_rng(10)
    points, weights = points_around(rng, 60)
    for epsilon in (0.0, 1e-12):
        shells, layout = layout_of(small_mole(), points + 1e4, weights, epsilon=epsilon)
        density = jnp.asarray(symmetric(rng, 1, shells.nao_sph))
        value = density_features(shells, layout, density, "mgga")
        assert np.all(np.abs(value) < 1e-200)
        assert np.all(np.abs(potential_matrix(shells, layout, jnp.ones_like(value))) < 1e-200)
        assert epsilon == 0 or int(layout.density.overflow) == 0


def test_empty_grid(isa):
    shells, layout = layout_of(small_mole(), np.zeros((0, 3)), np.zeros(0))
    density = jnp.ones((2, shells.nao_sph, shells.nao_sph))
    value = density_features(shells, layout, density, "gga")
    assert value.shape == (2, 4, 0)
    assert np.all(np.asarray(potential_matrix(shells, layout, value)) == 0)


def test_only_the_symmetric_part_counts():
    rng = np.random.default_rng(11)
    shells, layout = layout_of(small_mole(), *points_around(rng, 60))
    general = jnp.asarray(rng.normal(size=(1, shells.nao_sph, shells.nao_sph)))
    a = density_features(shells, layout, general, "mgga")
    b = density_features(shells, layout, 0.5 * (general + jnp.swapaxes(general, 1, 2)), "mgga")
    assert np.array_equal(a, b)
    odd = density_features(shells, layout, general - jnp.swapaxes(general, 1, 2), "mgga")
    assert np.all(np.asarray(odd) == 0)


def test_ordering_and_padding():
    rng = np.random.default_rng(12)
    points, weights = points_around(rng, 100)
    case = small_mole()
    shells, layout = layout_of(case, points, weights, ordered=False)
    assert layout.points.shape == (144, 3)
    assert np.array_equal(layout.to_grid(layout.weights), weights)
    assert np.array_equal(layout.to_grid(layout.points.T), points.T)
    assert float(jnp.sum(layout.weights)) == pytest.approx(weights.sum(), rel=1e-14)
    assert sorted(np.asarray(layout.permutation)[:100]) == list(range(100))
    density = symmetric(rng, 1, case.nao)
    value = layout.to_grid(density_features(shells, layout, jnp.asarray(density), "gga"))
    assert relative(value, pyscf_features(case, points, density, "gga")) <= TIGHT
    shifted = layout.moved(jnp.asarray(points + 0.1), jnp.asarray(2 * weights))
    assert np.array_equal(shifted.to_grid(shifted.points.T), points.T + 0.1)
    assert np.array_equal(shifted.weights, 2 * layout.weights)


@pytest.mark.parametrize("where", ["density", "points", "weights", "centers", "exponents"])
def test_nan_goes_through(where):
    rng = np.random.default_rng(13)
    points, weights = points_around(rng, 60)
    shells, _ = layout_of(small_mole(), points, weights)
    arrays = {"centers": shells.centers, "exponents": shells.exponents}
    density = symmetric(rng, 1, shells.nao_sph)
    broken = {"points": points, "weights": weights, "density": density, **{k: np.array(v) for k, v in arrays.items()}}
    broken[where].reshape(-1)[3] = np.nan
    shells = type(shells)(shells.ls, shells.nprims, broken["centers"], broken["exponents"], shells.coefficients)
    layout = build_layout(
        shells, jnp.asarray(points), jnp.asarray(weights), cart=False, row=48, capacity=32, epsilon=1e-12
    )
    value = density_features(shells, layout, jnp.asarray(density), "gga")
    assert np.all(np.isnan(value))


def test_a_list_that_does_not_fit_gives_nan():
    rng = np.random.default_rng(14)
    shells, layout = layout_of(small_mole(natm=4), *points_around(rng, 60), capacity=5)
    assert int(layout.density.overflow) == shells.nshell > layout.density.capacity
    density = jnp.asarray(symmetric(rng, 1, shells.nao_sph))
    value = density_features(shells, layout, density, "gga")
    assert np.all(np.isnan(value))
    assert np.all(np.isnan(potential_matrix(shells, layout, jnp.ones_like(value))))


def test_rows_without_weight_are_left_out():
    rng = np.random.default_rng(15)
    points, weights = points_around(rng, 96)
    weights[48:] = 0
    shells, layout = layout_of(small_mole(), points, weights)
    assert np.array_equal(np.asarray(layout.density.count) > 0, [True, False])
    value = density_features(shells, layout, jnp.asarray(symmetric(rng, 1, shells.nao_sph)), "lda")
    assert np.all(np.asarray(value)[..., :48] != 0) and np.all(np.asarray(value)[..., 48:] == 0)


@pytest.fixture(scope="module")
def water():
    symbols, coords = water_cluster(4)
    mol = jaxqc.Molecule(list(zip(symbols, map(tuple, coords), strict=True)), basis="def2-svp")
    grid = jaxqc.xc.Grid(mol, level=0)
    rng = np.random.default_rng(16)
    occupied = rng.normal(size=(mol.nao, 20))
    overlap = np.asarray(jaxqc.integrals.overlap(mol))
    lower = np.linalg.cholesky(occupied.T @ overlap @ occupied)
    occupied = occupied @ np.linalg.inv(lower).T
    return mol, grid, jnp.asarray(2 * occupied @ occupied.T)[None]


@pytest.mark.parametrize(("epsilon", "bound"), [(1e-8, 1e-4), (1e-10, 1e-6), (1e-12, 1e-8), (1e-14, 1e-10)])
@pytest.mark.parametrize("row", [48, 192])
def test_gates_keep_the_promise(water, row, epsilon, bound):
    mol, grid, density = water
    dense = build_layout(mol, grid.coords, grid.weights, epsilon=0.0, row=row)
    gated = build_layout(mol, grid.coords, grid.weights, epsilon=epsilon, row=row)
    assert int(gated.density.overflow) <= mol.nshell == int(dense.density.overflow)
    exact = density_features(mol, dense, density, "mgga")
    error = dense.weights * (density_features(mol, gated, density, "mgga") - exact)
    assert float(jnp.sum(jnp.abs(error[:, 0]))) <= bound
    assert float(jnp.sum(jnp.abs(error))) <= 30 * bound
    cotangent = dense.weights * jnp.sin(jnp.arange(1.0 * exact.size)).reshape(exact.shape)
    change = potential_matrix(mol, gated, cotangent) - potential_matrix(mol, dense, cotangent)
    assert float(jnp.max(jnp.abs(change))) <= bound


def test_gates_do_cut(water):
    mol, grid, _ = water
    counts = [
        float(jnp.mean(build_layout(mol, grid.coords, grid.weights, epsilon=e, row=48).density.count))
        for e in (1e-14, 1e-12, 1e-10, 1e-8)
    ]
    assert counts == sorted(counts, reverse=True) and counts[-1] < 0.9 * counts[0]


def test_lists_are_sorted_upper_bounds(water):
    mol, grid, _ = water
    layout = build_layout(mol, grid.coords, grid.weights, epsilon=1e-12, row=48)
    count, shell, bound = (np.asarray(x) for x in (layout.density.count, layout.density.shell, layout.density.bound))
    phi = mol.to_pyscf().eval_gto("GTOval_sph_deriv1", np.asarray(layout.points))
    first = mol.to_pyscf().ao_loc_nr()
    size = np.sqrt(np.max([phi[0] ** 2, np.sum(phi[1:] ** 2, axis=0)], axis=0)).reshape(-1, 48, mol.nao).max(axis=1)
    for r in range(len(count)):
        listed = bound[r, : count[r]]
        assert np.all(np.diff(listed) <= 0)
        for k in range(count[r]):
            s = shell[r, k] & (2**20 - 1)
            assert size[r, first[s] : first[s + 1]].max() <= bound[r, k]
    functions = [sum(first[s + 1] - first[s] for s in shell[r, : count[r]] & (2**20 - 1)) for r in range(len(count))]
    assert np.all(np.diff(np.asarray(functions)[np.asarray(layout.density.order)]) <= 0)


def test_same_bits_for_any_number_of_threads(water, monkeypatch):
    mol, grid, density = water
    results = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("JAXQC_NUM_THREADS", threads)
        layout = build_layout(mol, grid.coords, grid.weights, epsilon=1e-12, row=48)
        value = density_features(mol, layout, density, "mgga")
        results.append((np.asarray(value), np.asarray(potential_matrix(mol, layout, value))))
    for value, matrix in results[1:]:
        assert np.array_equal(value, results[0][0]) and np.array_equal(matrix, results[0][1])


def test_instruction_sets_agree(water):
    mol, grid, density = water
    layout = build_layout(mol, grid.coords, grid.weights, epsilon=1e-12)
    values = []
    for name in INSTRUCTION_SETS:
        with instruction_set(name) as there:
            if there:
                values.append(density_features(mol, layout, density, "mgga"))
                assert relative(values[-1], values[0]) <= 1e-13


def test_layout_inside_jit(water):
    mol, grid, density = water

    @jax.jit
    def step(mol, points, weights, density):
        layout = build_layout(mol, points, weights, row=48)
        return density_features(mol, layout, density, "gga"), layout.weights

    inside, weights = step(mol, grid.coords, grid.weights, density)
    layout = build_layout(mol, grid.coords, grid.weights, row=48)
    assert np.array_equal(weights, layout.weights)
    assert relative(inside, density_features(mol, layout, density, "gga")) <= 1e-13
