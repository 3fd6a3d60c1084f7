"""J and K of large molecules on a GPU: from the same quartets, or J from Hermite Gaussians; kernels run on the CPU."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import two_electron_cases as cases

from jaxqc.integrals import _cuda_hermite as cuda_hermite
from jaxqc.integrals import _cuda_jk as cuda_jk
from jaxqc.integrals import _cuda_pairs as cuda_pairs
from jaxqc.integrals import _cuda_split as cuda_split
from jaxqc.integrals._shells import ShellList


@pytest.fixture(autouse=True)
def _emulated(emulator, monkeypatch):
    for module in (cuda_hermite, cuda_jk, cuda_pairs):
        monkeypatch.setattr(module, "call", emulator.call)


def _shells(mole):
    host = cases.shell_list(mole)
    return ShellList(host.ls, host.nprims, *map(jnp.asarray, (host.centers, host.exponents, host.coefficients)))


def _chain(n, ls, rng):
    """Atoms in a line, and a density that couples neighbours only."""
    centers = np.array([[0.0, 0.1 * (k % 2), 3.0 * k] for k in range(n)])
    mole = cases.mole(centers, [[cases.contraction(rng, l, 2 - l, 0.3, 4.0) for l in ls] for _ in range(n)])
    atom = np.repeat([k for k in range(n)], mole.nao // n)
    density = cases.densities(rng, mole.nao, "s") * (np.abs(atom[:, None] - atom) < 2)
    return mole, _shells(mole), density


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("kinds", ["sas"])
def test_both_ways_give_the_matrices_of_libcint(apart, kinds, parts, monkeypatch):
    monkeypatch.setattr(cuda_split, "SHELLS", 1)
    monkeypatch.setattr(cuda_split, "_RATIO", 0.0 if apart else np.inf)
    rng = np.random.default_rng(0)
    mole, shells, _ = _chain(3, (0, 0), rng)
    density = cases.densities(rng, mole.nao, kinds)
    settings: dict[str, Any] = dict(coulomb=True, exchange=True, omega=0.0, threshold=1e-16, symmetric=False)
    operands = (shells.centers, shells.exponents, shells.coefficients, jnp.asarray(density))
    layout, found = (shells.ls, shells.nprims), []
    for part in range(parts):
        at = jnp.full(1, part, jnp.int32)
        found.append(cuda_jk.lowered(*operands, at, layout=layout, cart=False, parts=parts, **settings))
    for got, want in zip((sum(x) for x in zip(*found, strict=True)), cases.reference(mole, density), strict=True):
        assert np.max(np.abs(got - want)) < 1e-12 * np.max(np.abs(want))


def test_counted_work_is_that_of_all_quartets_under_each_bound():
    threshold, rng = 1e-9, np.random.default_rng(1)
    mole, shells, density = _chain(9, (0, 1), rng)
    plan = cuda_pairs.plan(shells.ls, shells.nprims, False)
    operands = (shells.centers, shells.exponents, shells.coefficients)
    pairs = cuda_pairs.prepare(plan, *operands, threshold, lambda p: cuda_jk.schwarz(plan, p))
    bounds = cuda_pairs.density_bounds(plan.ls, False, jnp.asarray(density))[0]
    live = int(np.sum(np.asarray(pairs.info)[:, 3] > 0))
    both, exchange = cuda_split.work(plan, pairs, bounds, threshold, samples=live)
    # by hand: Schwarz bounds from libcint, the largest elements of blocks
    eri = mole.intor("int2e")
    first = mole.ao_loc
    blocks = [slice(a, b) for a, b in zip(first[:-1], first[1:], strict=True)]
    q = np.array([[np.sqrt(np.max(np.abs(np.einsum("ijij->ij", eri[a, b, a, b])))) for b in blocks] for a in blocks])
    d = np.array([[np.max(np.abs(density[0, a, b])) for b in blocks] for a in blocks])
    found, kept = np.asarray(pairs.shells), np.asarray(pairs.info)[:, 3]
    size = np.array([[1, 3][l] for l in shells.ls])
    want = np.zeros(2)
    for (i, j), m in zip(found, kept, strict=True):
        for (k, l), n in zip(found, kept, strict=True):
            largest = np.array([4.0 * max(d[i, j], d[k, l]), max(d[i, k], d[i, l], d[j, k], d[j, l])])
            asked = q[i, j] * q[k, l] * np.array([largest.max(), largest[1]]) > threshold
            want += asked * (m * n * size[i] * size[j] * size[k] * size[l])
    assert want[0] > 1.3 * want[1] > 0
    np.testing.assert_allclose([both, exchange], want, rtol=1e-3)
    few = cuda_split.work(plan, pairs, bounds, threshold, samples=live // 3)
    assert few[0] / few[1] == pytest.approx(want[0] / want[1], rel=0.15)
