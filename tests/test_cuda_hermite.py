"""The Coulomb engine of the GPU: its generated bodies and tables, and its kernels run thread by thread on the CPU."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import scf
from two_electron_cases import CENTERS, contraction, mole, shell_list

from jaxqc.ffi_kernels.rcg.hermite import emit_hermite, hermite_components, parts
from jaxqc.gpu import build
from jaxqc.integrals import _cuda_hermite as hermite
from jaxqc.integrals import _cuda_hermite_units as units
from jaxqc.integrals import _cuda_self_test as self_test
from jaxqc.integrals._boys_table import boys_table
from jaxqc.integrals._jk import jk
from jaxqc.integrals._shells import ShellList


def _derivatives(g, r, top):
    """R_tuv of all orders up to `top` by the recurrence, all m."""
    table: dict[tuple[int, ...], float] = {(0, 0, 0, m): g[m] for m in range(top + 1)}
    for component in hermite_components(top)[1:]:
        axis = next(d for d in range(3) if component[d])
        n = component[axis]
        one, two = (tuple(k - by * (d == axis) for d, k in enumerate(component)) for by in (1, 2))
        for m in range(top + 1 - sum(component)):
            table[(*component, m)] = r[axis] * table[(*one, m + 1)]
            if n > 1:
                table[(*component, m)] += (n - 1) * table[(*two, m + 1)]
    return {c: table[(*c, 0)] for c in hermite_components(top)}


@pytest.mark.parametrize(("bra", "ket", "sets", "size"), [(0, 0, 1, 9), (1, 2, 2, 9), (3, 2, 1, 9), (4, 4, 1, 36)])
def test_bodies_are_sums_of_derivatives(bra, ket, sets, size):
    rng = np.random.default_rng(bra + ket)
    g, (x, y, z) = rng.normal(size=bra + ket + 1), rng.normal(size=3)
    tables = _derivatives(g, (x, y, z), bra + ket)
    a, b = hermite_components(bra), hermite_components(ket)
    h = rng.normal(size=(sets, len(b)))
    rows = [[tables[tuple(np.add(p, q))] for q in b] for p in a]
    want = h @ np.array(rows).T
    got = np.zeros_like(want)
    for places, ket_places in itertools.product(parts(bra, size), parts(ket, size)):
        acc = np.zeros(sets * len(places))
        text, flops = emit_hermite("f", [a[k] for k in places], [(k, b[k]) for k in ket_places], sets, len(b))
        body = text[text.index("{") + 1 : text.rindex("}")].replace("const T ", "").replace(";", "")
        names = {"acc": acc, "h": h.ravel(), "g": g, "x": x, "y": y, "z": z, "T": float}
        exec("\n".join(map(str.strip, body.splitlines())), names)
        got[:, list(places)] += acc.reshape(sets, -1)
        assert flops >= 2 * sets * len(places) * len(ket_places)
    assert np.max(np.abs(got - want)) < 1e-12 * np.max(np.abs(want))


@pytest.mark.parametrize("size", [1, 7, 36])
def test_parts_hold_every_component_once(size):
    split = parts(4, size)
    assert sorted(k for part in split for k in part) == list(range(35)) and max(map(len, split)) <= size


@pytest.mark.parametrize(("single", "extent", "tolerance"), [(False, 36, 1e-15), (True, 18, 2e-7)])
def test_tables_hold_the_boys_function(single, extent, tolerance):
    tables, want = units.boys_tables(16, single), boys_table(16)
    for n in range(17):
        t = np.arange(len(want)) / 8
        scaled = t * 15.5 / (extent + 2 * n)
        row = np.rint(scaled).astype(int)
        inside = scaled < 15.5
        powers = (scaled - row)[inside, None] ** np.arange(tables.shape[2])
        values = np.sum(tables[n, row[inside]].astype(float) * powers, axis=1)
        assert np.max(np.abs(values - want[inside, 1 + n])) < tolerance


def _prepared(mol, emulator, monkeypatch):
    monkeypatch.setattr(hermite, "call", emulator.call)
    shells = shell_list(mol)
    plan = hermite.plan(shells.ls, shells.nprims, bool(mol.cart))
    operands = [jnp.asarray(x) for x in (shells.centers, shells.exponents, shells.coefficients)]
    return plan, hermite.prepare(plan, operands[0], operands[1], operands[2])


def _density(mol, n):
    m = np.random.default_rng(mol.nao).normal(size=(n, mol.nao, mol.nao))
    return m + m.transpose(0, 2, 1)


def _reference(mol, density, omega=0.0):
    with mol.with_range_coulomb(omega):
        return np.asarray(scf.hf.get_jk(mol, np.asarray(density), hermi=1, with_k=False)[0])


def _mole(ls, cart, shared=2):
    """Shells of several kinds: contracted and single, with shared primitives, far and coincident centres."""
    rng = np.random.default_rng(len(ls))
    shells = [[contraction(rng, l, 1 + (k + l) % 3, 0.2, 30.0, shared if l == 0 else 1) for l in ls] for k in range(3)]
    centers = np.array([CENTERS[0] + 30.0, CENTERS[0] + 30.0, CENTERS[1] + 31.0])
    return mole(centers, shells, cart)


def test_matrices_of_s_and_p_shells_are_those_of_pyscf(emulator, monkeypatch):
    mol = _mole((0, 0, 1), False)
    plan, pairs = _prepared(mol, emulator, monkeypatch)
    density = jnp.asarray(_density(mol, 2))
    want = _reference(mol, density)
    scale = np.max(np.abs(want))
    assert np.max(np.abs(hermite.coulomb(plan, pairs, density) - want)) < 1e-12 * scale
    loose = np.max(np.abs(hermite.coulomb(plan, pairs, density, hermite.Options(threshold=1e-8)) - want))
    assert 1e-13 < loose < 1e-5
    halves = hermite.Options(omega=0.4, parts=2)
    attenuated = sum(hermite.coulomb(plan, pairs, density, halves, part) for part in range(2))
    assert np.max(np.abs(attenuated - _reference(mol, density, 0.4))) < 1e-12 * scale


def test_fresh_kernels_that_differ_from_those_of_the_cpu_are_refused(monkeypatch):
    """The kernels themselves pass this test on a device; here others stand for them, right and wrong ones."""
    verify = self_test.verify_coulomb.__wrapped__  # nothing of this is to be remembered
    error = 0.0

    def coulomb(plan, shells, density, options):
        j = jk(shells, density, cart=plan.cart, coulomb=True, exchange=False, omega=0.0, threshold=options.threshold)[0]
        return j.at[0, 2, 1].multiply(1.0 + error)

    shells = self_test._shells((0, 1))
    monkeypatch.setattr(hermite, "prepare", lambda _, *operands: ShellList(shells.ls, shells.nprims, *operands))
    monkeypatch.setattr(hermite, "coulomb", coulomb)
    verify((0, 1), False, 1)
    error = 1e-8
    with pytest.raises(RuntimeError, match="l = 0, 1"):
        verify((0, 1), False, 1)


def _norms(l, p):
    """Coulomb norms of the Hermite Gaussians of exponent p up to order l; shape `(len(p), nherm)`."""
    orders = np.array(hermite_components(l))
    product = np.array([[np.prod(np.arange(1, 2 * n, 2)) for n in c] for c in orders]).prod(axis=1)
    n = orders.sum(axis=1)
    return np.sqrt(2 * np.pi**2.5 / np.sqrt(2) * p[:, None] ** (n - 2.5) * product / (2 * n + 1))


@pytest.mark.parametrize(
    "ls", [(0, 0, 1), pytest.param((0, 2), marks=pytest.mark.slow), pytest.param((3,), marks=pytest.mark.slow)]
)
def test_single_precision_errs_by_less_than_its_bound(ls, emulator, monkeypatch):
    mol = _mole(ls, False)
    plan, pairs = _prepared(mol, emulator, monkeypatch)
    kets = hermite._kets(plan, pairs, jnp.asarray(_density(mol, 2)), True, None)
    single, double = (hermite._sums(plan, pairs, kets, 2, hermite.Options(0.0, 1e-30, s), 0) for s in (1e60, 0.0))
    total = sum(float(t[0]) for t in kets[2].values())
    for l in plan.sizes:
        live, p = np.asarray(pairs.bounds[l]) > 0, np.asarray(pairs.places[l])[:, 0]
        error = np.abs(np.asarray(single[l]) - np.asarray(double[l])).reshape(len(p), 2, -1).max(axis=1)
        error *= 2 * np.pi**2.5 / p[:, None]
        assert 1e-10 < np.max((error / (total * _norms(l, p)))[live]) < 1.0 / hermite.SINGLE


def test_primitives_of_several_shells_count_once(emulator, monkeypatch):
    mol = _mole((0, 0, 1), False)
    plan, pairs = _prepared(mol, emulator, monkeypatch)
    first = np.asarray(pairs.first)
    coordinates = np.round(np.column_stack([mol.atom_coords()[[mol.bas_atom(k) for k in range(mol.nbas)]]]), 12)
    want = len({(mol.bas_angular(k), *coordinates[k], e) for k in range(mol.nbas) for e in mol.bas_exp(k)})
    assert len(set(first)) == want < len(first)
    live = {l: int(np.sum(np.asarray(b) > 0)) for l, b in pairs.bounds.items()}
    assert sum(live.values()) <= want * (want + 1) // 2 and min(live.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ls", "cart", "n"),
    [((0, 2), False, 1), ((1, 2), True, 2), ((0, 3), False, 1), ((0, 4), False, 1), ((4,), True, 1), ((1,), False, 3)],
)
def test_matrices_of_higher_shells_are_those_of_the_cpu(ls, cart, n, emulator, monkeypatch):
    mol = _mole(ls, cart)
    plan, pairs = _prepared(mol, emulator, monkeypatch)
    density = jnp.asarray(_density(mol, n))
    # Not PySCF's: from g on they are off by 1e-11 of the largest element here.
    options = {"coulomb": True, "exchange": False, "omega": 0.0, "threshold": 1e-18}
    want = np.asarray(jk(shell_list(mol), density, cart=cart, **options)[0])
    for single, tolerance in ((0.0, 1e-12), (hermite.SINGLE, 2e-12), (1e30, 1e-5)):
        got = np.asarray(hermite.coulomb(plan, pairs, density, hermite.Options(single=single)))
        assert np.max(np.abs(got - want)) < tolerance * np.max(np.abs(want))


# Bytes of spills that a kernel may have; its registers are bounded for more warps on purpose.
_SPILL = 400


@pytest.mark.parametrize(
    ("top", "sets"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(4, 1, marks=pytest.mark.slow)]
)
def test_kernels_stay_within_their_resources(top, sets, fresh_kernels):
    orders = tuple(range(top + 1))
    todo = [s.unit for l in orders for s in units.sweeps(l, orders, sets)]
    for unit, built in zip(todo, build(todo, 90), strict=True):
        used = built.resources()["hermite_coulomb"]
        assert used["registers"] * 32 * units.WARPS * dict(unit.defines)["MINB"] <= 65536, (unit.name, used)
        assert used["spill"] <= _SPILL, (unit.name, used)
    others = [units.UNIQUE, *(units.pair_unit(a, b, False) for a in range(top // 2 + 1) for b in range(a + 1))]
    for unit, built in zip(others, build(others, 90), strict=True):
        assert set(built.resources()) == set(unit.kernels)
