"""Graphs, schedules, slots and the register model of the generator."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyscf import gto

from jaxqc.ffi_kernels.rcg import __main__ as command
from jaxqc.ffi_kernels.rcg import allocator, cartesian, emit, graph, hrr, model, phase2, reference, report
from jaxqc.ffi_kernels.rcg.options import NOTHING, PAPER, Options
from jaxqc.ffi_kernels.rcg.schedule import SCHEDULES, peak_live, reach_scores, schedule

SMALL = [(0, 0, 0, 0), (1, 0, 1, 0), (1, 1, 1, 1), (2, 0, 1, 1), (2, 1, 2, 0), (2, 2, 1, 0)]


@pytest.mark.parametrize("l", range(9))
def test_spherical_matrix_equals_pyscf(l):
    expected = gto.cart2sph(l, normalized="sp")
    np.testing.assert_allclose(cartesian.spherical_matrix(l), expected, rtol=3e-15, atol=1e-15)
    assert np.array_equal(np.array(cartesian.spherical_matrix(l)) == 0, np.abs(expected) < 1e-14)


@pytest.mark.parametrize("l", range(2, 7))
def test_solid_harmonics_are_orthonormal_on_the_sphere(l):
    def moment(powers):  # integral of x^i y^j z^k over the unit sphere
        if any(p % 2 for p in powers):
            return 0.0
        return 2 * math.prod(math.gamma((p + 1) / 2) for p in powers) / math.gamma((sum(powers) + 3) / 2)

    matrix = np.array(cartesian.spherical_matrix(l))
    powers = cartesian.components(l)
    metric = [[moment(tuple(map(sum, zip(p, q, strict=True)))) for q in powers] for p in powers]
    np.testing.assert_allclose(matrix.T @ np.array(metric) @ matrix, np.eye(2 * l + 1), atol=1e-13)


def test_component_order_and_counts():
    assert cartesian.components(2) == ((2, 0, 0), (1, 1, 0), (1, 0, 1), (0, 2, 0), (0, 1, 1), (0, 0, 2))
    for la, lb in emit.pairs(6):
        assert len(cartesian.pair_components(la, lb)) == cartesian.ncomp(la, lb)


def test_classes_are_canonical():
    found = emit.classes(4)
    assert len(found) == len(set(found)) == 120
    for la, lb, lc, ld in found:
        assert la >= lb and lc >= ld and cartesian.ncomp(la, lb) >= cartesian.ncomp(lc, ld)
    assert len({frozenset([c[:2], c[2:]]) for c in found}) == 120


# Vertical recurrence


def contracted(cls, rule="greedy", kind="list", seed=0):
    """Spherical block of one contracted class through the graphs, and libcint's."""
    rng = np.random.default_rng(seed)
    labels = ["H1", "H2", "H3", "H4"]
    basis = {k: [[l, [float(rng.uniform(0.3, 2.0)), 0.7], [0.4, 0.5]]] for k, l in zip(labels, cls, strict=True)}
    atoms = [(k, tuple(map(float, rng.normal(size=3) * 0.7))) for k in labels]
    mol = gto.M(atom=atoms, basis=basis, unit="bohr", verbose=0)
    factor = {0: 0.282094791773878143, 1: 0.488602511902919921}
    shells = [
        reference.Shell(
            l,
            tuple(mol.atom_coord(k)),
            tuple(mol.bas_exp(k)),
            tuple(float(c) * factor.get(l, 1.0) for c in mol._libcint_ctr_coeff(k)[:, 0]),
        )
        for k, l in enumerate(cls)
    ]
    vertical = graph.vrr_graph(cls, rule)
    order = schedule(vertical.parents, kind)
    h = np.zeros((cartesian.ncomp(*cls[:2]), cartesian.ncomp(*cls[2:])))
    for f, parameters, _ in reference.primitives(shells, sum(cls)):
        values = graph.evaluate(vertical, f, parameters, order)
        h += np.reshape([values[k] for k in vertical.targets], h.shape)
    ab, cd = (np.subtract(shells[k].center, shells[k + 1].center) for k in (0, 2))
    bra, ket = hrr.hrr_graph(*cls[:2]), hrr.hrr_graph(*cls[2:])
    half = np.array([bra.evaluate(column, ab) for column in h.T])  # pyright: ignore[reportArgumentType]
    block = np.array([ket.evaluate(row, cd) for row in half.T])  # pyright: ignore[reportArgumentType]
    return block, mol.intor_by_shell("int2e_sph", (0, 1, 2, 3)).reshape(block.shape)


@pytest.mark.parametrize("rule", graph.RULES)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_rule_and_schedule_equals_libcint(rule, kind):
    for cls in SMALL:
        found, expected = contracted(cls, rule, kind)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize(
    "cls", [(2, 2, 2, 2), (3, 1, 2, 1), (4, 0, 4, 0), (3, 3, 2, 0), (4, 3, 2, 1)], ids=emit.class_name
)
def test_high_classes_equal_libcint(cls):
    found, expected = contracted(cls)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_boys_values():
    # F_0 = sqrt(pi/4t) erf(sqrt t); the others by Simpson's rule on their definition.
    x = np.linspace(0, 1, 20001)
    w = np.ones_like(x)
    w[1:-1:2], w[2:-1:2] = 4, 2
    for t in (0.0, 1e-9, 0.3, 4.0, 17.0, 40.0, 90.0):
        expected = [np.sum(w * x ** (2 * m) * np.exp(-t * x * x)) / 60000 for m in range(9)]
        np.testing.assert_allclose(reference.boys(8, t), expected, rtol=1e-9)


def test_node_counts_of_the_rules():
    """Counts that an independent prototype of the recurrence gave."""
    counts = {rule: [len(graph.vrr_graph(c, rule).nodes) for c in [(1, 1, 1, 1), (2, 2, 2, 2)]] for rule in graph.RULES}
    assert counts["greedy"] == [158, 2092]
    assert counts["paper"] == [176, 2885]
    assert counts["ket_smallest"] == [146, 2082]


def test_paper_rule_is_algorithm_one():
    def algorithm_one(a, c):
        axis = None
        for i in range(3):
            if c[i] > 0:
                axis = i + 3
            elif a[i] > 0:
                axis = i
        return graph.Step(graph.KET, axis - 3) if axis >= 3 else graph.Step(graph.BRA, axis)  # pyright: ignore[reportArgumentType, reportOptionalOperand]

    built = graph.vrr_graph((2, 1, 2, 0), "paper")
    for node, step in zip(built.nodes, built.steps, strict=True):
        assert step is None if node.total == 0 else step == algorithm_one(node.a, node.c)


def test_unknown_choices_are_refused():
    with pytest.raises(ValueError, match="rule was 'widest'"):
        graph.vrr_graph((0, 0, 0, 0), "widest")
    with pytest.raises(ValueError, match="kind was 'random'"):
        schedule([[]], "random")
    with pytest.raises(ValueError, match="tier was 'cloud'"):
        Options(tier="cloud")


# Schedules


@st.composite
def graphs(draw):
    """Random graphs, as lists of parents."""
    count = draw(st.integers(1, 30))
    parents = []
    for k in range(count):
        width = draw(st.integers(0, min(k, 4)))
        parents.append(
            sorted(draw(st.sets(st.integers(0, max(k - 1, 0)), min_size=width, max_size=width)))[: k and None]
        )
    return parents


def is_topological(parents, order):
    place = {k: t for t, k in enumerate(order)}
    return sorted(order) == list(range(len(parents))) and all(
        place[p] < place[k] for k, group in enumerate(parents) for p in group
    )


@settings(deadline=None, max_examples=150)
@given(graphs(), st.sampled_from(SCHEDULES))
def test_schedules_are_topological(parents, kind):
    assert is_topological(parents, schedule(parents, kind))


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("rule", graph.RULES)
def test_schedules_of_recurrences_are_topological(rule, kind):
    for cls in [(2, 2, 2, 2), (4, 1, 3, 0)]:
        parents = graph.vrr_graph(cls, rule).parents
        assert is_topological(parents, schedule(parents, kind))


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_reach_scores_by_brute_force(parents):
    consumers = [[k for k, group in enumerate(parents) if p in group] for p in range(len(parents))]

    def reach(k):
        return {k}.union(*(reach(c) for c in consumers[k]))

    expected = [sum(len(consumers[w]) - len(parents[w]) for w in reach(k)) for k in range(len(parents))]
    assert reach_scores(parents) == expected
    assert reach_scores(parents, block=7) == expected


@settings(deadline=None, max_examples=100)
@given(graphs(), st.sampled_from(SCHEDULES))
def test_peak_live_by_brute_force(parents, kind):
    order = schedule(parents, kind)
    place = {k: t for t, k in enumerate(order)}
    last = {k: max([place[k], *(place[c] for c, g in enumerate(parents) if k in g)]) for k in order}
    born = {k: 0 if not parents[k] else place[k] for k in order}
    expected = max(sum(born[k] <= t <= last[k] for k in order) for t in range(len(order)))
    # An input that nobody reads is given back at its own step.
    assert peak_live(parents, order) == expected


def test_list_schedule_needs_least():
    for cls in [(1, 1, 1, 1), (2, 1, 2, 1), (2, 2, 2, 2)]:
        for rule in graph.RULES:
            parents = graph.vrr_graph(cls, rule).parents
            peaks = {kind: peak_live(parents, schedule(parents, kind)) for kind in ("list", "paper", "level")}
            assert peaks["list"] <= peaks["paper"] <= peaks["level"]


# Slots


@settings(deadline=None, max_examples=200)
@given(graphs(), st.sampled_from(SCHEDULES), st.data())
def test_slots_never_overlap_and_reach_the_bound(parents, kind, data):
    order = schedule(parents, kind)
    kept = data.draw(st.sets(st.sampled_from(range(len(parents)))))
    values = allocator.lifetimes(parents, order, kept)
    packed = allocator.allocate(values)
    assert allocator.overlaps(values, packed) == []
    assert allocator.allocate(values, packing=False).total == len(parents)
    if not kept:
        assert packed.total <= peak_live(parents, order)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=30))
def test_blocks_never_overlap(triples):
    values = [allocator.Lifetime(birth, birth + length, size) for birth, length, size in triples]
    packed = allocator.allocate(values)
    assert packed.total <= sum(v.size for v in values)
    for (i, v), (j, w) in itertools.combinations(enumerate(values), 2):
        apart = packed.slots[i] + v.size <= packed.slots[j] or packed.slots[j] + w.size <= packed.slots[i]
        meet = v.birth < w.death and w.birth < v.death or v.birth == w.birth
        assert apart or not meet
    assert allocator.overlaps(values, packed) == []


def test_packed_buffer_holds_every_value():
    """Run a graph in its slots: every operand is still there when it is read."""
    for rule, kind in itertools.product(graph.RULES, SCHEDULES):
        parents = graph.vrr_graph((2, 1, 1, 1), rule).parents
        order = schedule(parents, kind)
        slots = allocator.allocate(allocator.lifetimes(parents, order)).slots
        buffer = {}
        for k in order:
            assert all(buffer[slots[p]] == p for p in parents[k])
            buffer[slots[k]] = k


# Horizontal recurrence


@pytest.mark.parametrize("pair", emit.pairs(6), ids=emit.class_name)
def test_horizontal_recurrence_is_the_polynomial_identity(pair):
    """At a point r, (r-A)^e goes to (r-A)^a (r-B)^b."""
    la, lb = pair
    rng = np.random.default_rng(la * 7 + lb)
    r, a, b = rng.normal(size=(3, 3))

    def monomials(x, powers):
        return np.array([math.prod(x**p) for p in powers])

    expected = np.outer(*(monomials(r - c, cartesian.components(l)) for c, l in ((a, la), (b, lb))))
    e = monomials(r - a, cartesian.pair_components(la, lb))
    ta, tb = (gto.cart2sph(l, normalized="sp") for l in pair)
    for mask in itertools.product((0, 1), repeat=2):
        target = (ta.T if mask[0] else np.eye(len(ta))) @ expected @ (tb if mask[1] else np.eye(len(tb)))
        for fused in (True, False):
            found = hrr.hrr_graph(la, lb, mask, fused).evaluate(list(e), list(a - b))  # pyright: ignore[reportArgumentType]
            scale = np.abs(e).max() * max(1, np.abs(a - b).max()) ** lb
            np.testing.assert_allclose(found, target.ravel(), rtol=0, atol=1e-13 * scale)
        given = hrr.hrr_graph(la, lb, mask, given=True)  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(
            given.evaluate(list(expected.ravel()), []), target.ravel(), rtol=0, atol=1e-13 * scale
        )


@pytest.mark.parametrize("pair", emit.pairs(4), ids=emit.class_name)
def test_transposed_graph_is_the_adjoint(pair):
    rng = np.random.default_rng(1)
    ab = list(rng.normal(size=3))
    for mask in itertools.product((0, 1), repeat=2):
        forward = hrr.hrr_graph(*pair, mask)  # pyright: ignore[reportCallIssue]
        x, y = rng.normal(size=len(forward.inputs)), rng.normal(size=len(forward.outputs))
        left = np.dot(forward.evaluate(list(x), ab), y)
        right = np.dot(forward.transposed().evaluate(list(y), ab), x)
        np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-11)


# Model and report


def test_seven_stages_shrink_step_by_step():
    cost = phase2.phase2((4, 4, 4, 4))
    assert [size for _, size in cost.stages][-1] == 9**4
    assert dict(phase2.phase2((4, 4, 4, 4), fusion=False).stages)["0000 ket"] == 15**4
    assert round(15**4 / 9**4, 1) == 7.7
    for cls in emit.classes(4):
        fused, unfused = phase2.phase2(cls), phase2.phase2(cls, fusion=False)
        assert fused.flops <= unfused.flops and fused.nodes <= unfused.nodes and fused.peak <= unfused.peak


def test_horizontal_cost_counts_the_graphs():
    """Nodes and instructions of (21|11) counted on the graphs of its columns and rows."""
    bra, ket = hrr.hrr_graph(2, 1), hrr.hrr_graph(1, 1)
    cost = phase2.phase2((2, 1, 1, 1))
    assert cost.flops == 9 * bra.flops + 15 * ket.flops
    assert cost.nodes == sum(n * sum(map(bool, g.terms)) for n, g in ((9, bra), (15, ket)))


def test_tier_follows_the_model_unless_told_otherwise():
    assert model.accumulated((2, 2, 2, 2)) == 961 and model.integrals((2, 2, 2, 2)) == 625
    assert model.registers((1, 1, 1, 1), 21) == 204 and model.registers_paper((2, 2, 1, 1), 50) == 550
    assert model.choose_tier((1, 1, 1, 1), 21) == "registers"
    assert model.choose_tier((2, 2, 2, 2), 100) == "buffered"
    assert model.choose_tier((2, 1, 2, 0), 35) == "buffered"
    assert model.choose_tier((2, 1, 2, 0), 35, spill_bytes=944) == "registers"
    assert model.choose_tier((1, 1, 1, 1), 21, spill_bytes=5000) == "buffered"
    assert model.choose_tier((2, 2, 2, 2), 100, Options(tier="registers"), spill_bytes=9999) == "registers"
    log = (
        "ptxas info    : Compiling entry function 'k1' for 'sm_90'\n"
        "ptxas info    : Function properties for k1\n"
        "    152 bytes stack frame, 256 bytes spill stores, 260 bytes spill loads\n"
        "ptxas info    : Function properties for k2\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    )
    assert model.spills_reported(log) == {"k1": 256, "k2": 0}


def test_report_rows_are_consistent():
    for row in report.report(2):
        cls = tuple(map(int, row.cls))
        assert row.nodes["greedy"] == len(graph.vrr_graph(cls).nodes)  # pyright: ignore[reportArgumentType]
        assert row.slots_packed <= row.peak_live["greedy/list"] <= row.slots
        assert row.slots_class_packed <= row.slots_class
        assert row.flops <= row.flops_unfused
    options = [report.report_row((2, 1, 1, 1), options=choice) for choice in (PAPER, NOTHING)]
    assert options[0].slots == 373 and options[1].slots_packed == options[1].slots


def test_report_command(capsys):
    assert command.main(["report", "--lmax", "1", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 6 and lines[2].split()[0] == "0000"
    assert command.main(["report", "--lmax", "1", "--jobs", "2", "--json", "--rules", "ket_first"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["cls"] for r in rows] == ["0000", "1000", "1010", "1100", "1110", "1111"]
    assert rows[-1]["nodes"] == {"greedy": 158, "ket_first": 146}
