"""Shell pairs as the GPU's two-electron kernels read them, made thread by thread on the CPU, against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxqc.gpu import build
from jaxqc.integrals import _cuda_pairs as cuda_pairs

THRESHOLD = 1e-13


@pytest.fixture
def emulated(emulator, monkeypatch):
    monkeypatch.setattr(cuda_pairs, "call", emulator.call)


class Basis:
    """Random shells: (l, number of primitives, centre) each."""

    def __init__(self, shells, cart=False, seed=0, low=0.08, high=3e3):
        rng = np.random.default_rng(seed)
        self.ls, self.nprims = tuple(s[0] for s in shells), tuple(s[1] for s in shells)
        self.centers = np.array([s[2] for s in shells], float)
        self.exponents = np.exp(rng.uniform(np.log(low), np.log(high), sum(self.nprims)))
        self.coefficients = rng.normal(size=len(self.exponents)) * self.exponents**0.75
        self.cart = cart
        self.plan = cuda_pairs.plan(self.ls, self.nprims, cart)
        self.begin = np.concatenate([[0], np.cumsum(self.nprims)])
        sizes = [(l + 1) * (l + 2) // 2 if cart else 2 * l + 1 for l in self.ls]
        self.ao = np.concatenate([[0], np.cumsum(sizes)])

    def products(self, i, j):
        """Rows (p, P, c/p, 1/p, 2a) of a pair based on shell i by falling size, the sizes, and the terms of its HRR."""
        part = [slice(self.begin[s], self.begin[s + 1]) for s in (i, j)]
        a, b = self.exponents[part[0]][:, None], self.exponents[part[1]][None]
        c = self.coefficients[part[0]][:, None] * self.coefficients[part[1]][None]
        centre, other = self.centers[i], self.centers[j]
        r = np.linalg.norm(centre - other)
        p = a + b
        c = c * np.exp(-a * b / p * r * r)
        reach = [r * b / p + p**-0.5, r * a / p + p**-0.5]
        size = abs(c) * p**-1.25 * reach[0] ** self.ls[i] * reach[1] ** self.ls[j]
        terms = np.sum(5 * abs(c) * p**-1.25 * reach[0] ** self.ls[i] * (reach[0] + r) ** self.ls[j])
        at = [(a * x + b * y) / p for x, y in zip(centre, other, strict=True)]
        rows = np.array([p, *at, c / p, 1 / p, 2 * a + 0 * b]).reshape(7, -1)
        if self.halved(i, j):
            near = np.broadcast_to(i > j, p.shape) if r == 0 else (a > b) | ((a == b) & (i > j))
            size = np.where(near, size, 0.0)
        keep = np.flatnonzero(size.ravel() > 2e-16)
        keep = keep[np.argsort(-size.ravel()[keep], kind="stable")]
        return rows[:, keep], size.ravel(), terms if self.ls[j] else 0.0

    def halved(self, i, j):
        """Whether (i, j) has the products near i only, and (j, i) is listed as well."""
        return i != j and self.ls[i] == self.ls[j] >= 4 and self.nprims[i] * self.nprims[j] > 1

    def pairs(self):
        """Pairs as they are to be listed, but for their order."""
        all_pairs = [(i, j) for i in range(len(self.ls)) for j in range(i + 1)]
        return all_pairs + [p for p in all_pairs if self.halved(*p)]

    def may_be_based_on(self, i, j):
        """Whether the pair may be listed with shell i first."""
        if self.halved(i, j):
            return True
        if self.ls[i] != self.ls[j]:
            return self.ls[i] > self.ls[j]
        preferred, other = max(i, j), min(i, j)
        terms, others = self.products(preferred, other)[2], self.products(other, preferred)[2]
        if abs(terms - others) <= 1e-9 * terms:
            return True  # decided by a rounding
        return i == (other if terms > 100 and others < terms else preferred)

    def prepare(self, schwarz, threshold=THRESHOLD):
        run = jax.jit(lambda x, e, c: cuda_pairs.prepare(self.plan, x, e, c, threshold, schwarz))
        out = run(jnp.asarray(self.centers), jnp.asarray(self.exponents), jnp.asarray(self.coefficients))
        return jax.tree.map(np.asarray, out)


def estimate(pairs):
    """A bound in place of the Schwarz bound, from the primitives of unsorted pairs."""
    m = jnp.arange(pairs.prims.shape[1] // 32, dtype=np.int32)
    live = m < pairs.info[:, 3:]
    at = jnp.where(live, pairs.info[:, 2:3] + 32 * m, 0)
    p, c = pairs.prims[0, at], pairs.prims[4, at]
    return jnp.log(jnp.sum(jnp.where(live, 5 * jnp.abs(c) * p**-0.25, 0.0), axis=1)).astype(jnp.float32)


def random_shells(seed, n, lmax, spread, most=4):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(max(1, n // 3), 3)) * spread
    return [
        (int(rng.integers(lmax + 1)), int(rng.integers(1, most + 1)), centers[rng.integers(len(centers))])
        for _ in range(n)
    ]


CASES = {
    "random": Basis(random_shells(0, 26, 4, 2.0)),
    "Cartesian": Basis(random_shells(1, 26, 4, 2.0), cart=True, seed=1),
    "one shell": Basis([(0, 3, (0.1, 0.2, 0.3))]),
    "one function": Basis([(2, 1, (0.1, 0.2, 0.3))]),
    "uncontracted": Basis(random_shells(2, 30, 3, 1.0, most=1)),
    "one place": Basis([(l, 3, (1.0, 2.0, 3.0)) for l in (0, 1, 1, 2, 3, 0)], seed=3),
    "long contractions": Basis([(k % 3, 12 + k, (0.3 * k, 0.1, 0.2 * k)) for k in range(8)], seed=4),
    "far apart": Basis([(k % 3, 1 + k % 4, (7.0 * k, 0.0, 0.0)) for k in range(20)], seed=5, low=0.3),
    "tight and diffuse": Basis([(1 + k % 2, 2, (1.5 * k, 0.0, 0.0)) for k in range(8)], seed=6, low=1e-2, high=1e6),
}


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", CASES)
def test_all_pairs_are_listed_with_their_primitives(name):
    basis = CASES[name]
    seen = []

    def schwarz(pairs):
        jax.debug.callback(lambda p: seen.append(jax.tree.map(np.asarray, p)), pairs)
        return estimate(pairs)

    pairs = basis.prepare(schwarz)
    jax.effects_barrier()
    for listed in (seen[0], pairs):
        _check_pairs(basis, listed)
    _check_order(basis, seen[0], pairs)


def _check_pairs(basis, pairs):
    """What is said of each pair, and that primitives do not overlap."""
    plan = basis.plan
    listed = [(int(i), int(j)) for i, j in pairs.shells]
    assert sorted((max(p), min(p)) for p in listed) == sorted(basis.pairs()) and len(set(listed)) == len(listed)
    assert plan.npair == len(listed) and all(basis.may_be_based_on(*p) for p in listed)
    tiles = pairs.info[:, 2] - np.arange(plan.npair) % 32
    assert np.all(tiles == np.repeat(tiles[::32], 32)[: plan.npair]) and np.all(tiles % 32 == 0)
    rows = np.concatenate([np.diff(tiles[::32]) // 32, [plan.capacity // 32 - tiles[-1] // 32]])
    assert np.all(pairs.info[:, 3] <= np.repeat(rows, 32)[: plan.npair])
    for (i, j), info, centers in zip(listed, pairs.info, pairs.centers, strict=True):
        assert tuple(info[:2]) == (basis.ao[i], basis.ao[j])
        assert np.array_equal(centers, np.concatenate([basis.centers[i], basis.centers[i] - basis.centers[j]]))
        want, size, _ = basis.products(i, j)
        got = pairs.prims[:, info[2] + 32 * np.arange(info[3])]
        if not info[3]:
            continue  # none matters, or the pair is dropped
        near = np.sum(abs(size / 2e-16 - 1) < 1e-9)  # to be kept or not by a rounding
        assert abs(info[3] - want.shape[1]) <= near
        np.testing.assert_allclose(got, want[:, : info[3]], rtol=1e-12, atol=1e-14)
        most = pairs.info[:, 3][tiles == info[2] // 32 * 32].max()
        free = pairs.prims[:, info[2] + 32 * np.arange(info[3], most)]
        assert np.all(free == np.array([1, *basis.centers[i], 0, 1, 0])[:, None])


def _check_order(basis, unsorted, pairs):
    """Classes, buckets, bounds and the end of each class."""
    plan, edges = basis.plan, np.array([*cuda_pairs.BUCKETS, 1 << 30])
    assert [c[:2] for c in plan.classes] == [(a, b) for a in range(5) for b in range(a + 1) if {a, b} <= set(basis.ls)]
    counts = {tuple(s): c for s, c in zip(unsorted.shells, unsorted.info[:, 3], strict=True)}
    bounds = dict(zip(counts, np.asarray(estimate(unsorted)), strict=True))
    largest = max(bounds.values())
    least = np.log(THRESHOLD / 1e3) - max(largest, np.log(10))
    for (la, lb, first, count), groups in zip(plan.classes, pairs.groups, strict=True):
        assert groups[0] == first and np.all(np.diff(groups) >= 0) and groups[-1] <= first + count
        members = pairs.shells[first : first + count]
        assert all((basis.ls[i], basis.ls[j]) == (la, lb) for i, j in members)
        for k, (pair, bound) in enumerate(zip(members, pairs.bound[first : first + count], strict=True)):
            dropped = first + k >= groups[-1]
            assert dropped == (bounds[tuple(pair)] <= least) and pairs.info[first + k, 3] == (
                0 if dropped else counts[tuple(pair)]
            )
            assert bound == (np.float32(-1e30) if dropped else bounds[tuple(pair)])
        for bucket, (begin, end) in enumerate(zip(groups, groups[1:], strict=False)):
            of_pairs = np.searchsorted(edges, pairs.info[begin:end, 3])
            assert np.all(of_pairs == plan.nbucket - 1 - bucket)
            assert np.all(np.diff(pairs.bound[begin:end]) <= 0)


@pytest.mark.usefixtures("emulated")
def test_bounds_that_are_no_numbers_are_seen_and_left_out():
    basis = CASES["random"]
    for bad in (np.nan, np.inf):
        pairs = basis.prepare(lambda pairs, bad=bad: estimate(pairs).at[jnp.array([0, 40])].set(bad))
        assert np.isnan(pairs.bound).sum() == 2
        live = np.concatenate([np.arange(g[0], g[-1]) for g in pairs.groups])
        assert np.all(np.isfinite(pairs.bound[live])) and not np.any(pairs.info[np.isnan(pairs.bound), 3])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("field", ["centers", "exponents", "coefficients"])
def test_operands_that_are_no_numbers_do_no_harm(field, bad):
    basis = Basis(random_shells(7, 12, 2, 2.0))
    getattr(basis, field)[3] = bad
    pairs = basis.prepare(estimate)
    assert np.all((pairs.info[:, 2] >= 0) & (pairs.info[:, 2] + 32 * (pairs.info[:, 3] - 1) < basis.plan.capacity))


def test_the_capacity_suffices_and_is_not_idle():
    """Random orders within the rules, against the places that are set aside."""
    rng = np.random.default_rng(0)
    edges = np.array([*cuda_pairs.BUCKETS, 1 << 30])
    for basis in CASES.values():
        plan = basis.plan
        products = np.array([[a * b for b in basis.nprims] for a in basis.nprims])
        kinds = {c[:2]: [] for c in plan.classes}
        for i, j in basis.pairs():
            kinds[max(basis.ls[i], basis.ls[j]), min(basis.ls[i], basis.ls[j])].append(products[i, j])
        for trial in range(20):
            counts = [np.array(kinds[c[:2]]) for c in plan.classes]
            if trial:
                counts = [np.minimum(rng.integers(0, rng.integers(1, 500) + 1, len(c)), c) for c in counts]
            counts = [rng.permutation(c) for c in counts]
            counts = np.concatenate([c[np.argsort(-np.searchsorted(edges, c), kind="stable")] for c in counts])
            rows = np.pad(counts, (0, -len(counts) % 32)).reshape(-1, 32).max(axis=1)
            assert 32 * rows.sum() <= plan.capacity
        assert (
            plan.capacity
            <= 1.5 * products[np.tril_indices(len(products))].sum() + 32 * len(plan.classes) * products.max()
        )


def test_too_many_primitives_are_refused():
    with pytest.raises(ValueError, match="smaller basis"):
        cuda_pairs.plan((0, 0), (2000, 2000), False)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_density_bounds_are_the_largest_elements_of_blocks(cart, n):
    basis = Basis(random_shells(8, 14, 4, 2.0), cart=cart)
    rng = np.random.default_rng(1)
    nao = basis.ao[-1]
    density = rng.normal(size=(n, nao, nao)) * 10.0 ** rng.uniform(-40, 1, size=(nao, nao))
    density[:, : basis.ao[1]] = 0.0
    got, top = jax.jit(lambda d: cuda_pairs.density_bounds(basis.ls, cart, d))(density)
    size = abs(density).max(axis=0)
    want = np.maximum.reduceat(np.maximum.reduceat(size, basis.ao[:-1], 0), basis.ao[:-1], 1)
    want = np.log(np.maximum(want, np.exp(-60.0)))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert got.dtype == top.dtype == jnp.float32 and float(top) == float(jnp.max(got)) and top.shape == ()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_blocks_become_a_dense_matrix_plus_its_transpose(cart, sign):
    basis = Basis(random_shells(9, 20, 4, 2.0), cart=cart)
    nao, ao = int(basis.ao[-1]), basis.ao
    dense = np.random.default_rng(2).normal(size=(2, nao, nao))
    blocked = np.empty((2, nao * nao))
    for i, k in np.ndindex(len(basis.ls), len(basis.ls)):
        block = dense[:, ao[i] : ao[i + 1], ao[k] : ao[k + 1]].reshape(2, -1)
        begin = ao[i] * nao + ao[k] * (ao[i + 1] - ao[i])
        blocked[:, begin : begin + block.shape[1]] = block
    got = jax.jit(lambda b: cuda_pairs.unblock(basis.ls, cart, b, sign))(blocked)
    assert np.array_equal(got, dense + sign * dense.transpose(0, 2, 1))


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_need_no_stack(arch, fresh_kernels):
    resources = build([cuda_pairs.UNIT], arch)[0].resources()
    assert set(resources) == set(cuda_pairs.UNIT.kernels)
    for used in resources.values():
        assert used["spill"] == used["stack"] == 0 and used["registers"] <= 80
