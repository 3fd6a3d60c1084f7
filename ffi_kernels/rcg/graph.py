"""The vertical recurrence of a class (la lb|lc ld) as an explicit graph.

A node (a, c, m) is the auxiliary integral [a0|c0]^(m). Lowering it along one of at most six axes gives its two to five
parents; the choice of axis, made here by a *rule*, shapes the graph. Bra, axis i (the ket is alike):

    [a+1_i|c]^m = PA_i [a|c]^m + WP_i [a|c]^(m+1)
                  + a_i/2p ([a-1_i|c]^m - rho/p [a-1_i|c]^(m+1)) + c_i/2(p+q) [a|c-1_i]^(m+1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .cartesian import Component, pair_components, raised

Class = tuple[int, int, int, int]
BRA, KET = 0, 1


class Node(NamedTuple):
    """The auxiliary integral [a0|c0]^(m)."""

    a: Component
    c: Component
    m: int

    @property
    def total(self) -> int:
        return sum(self.a) + sum(self.c)


class Step(NamedTuple):
    """The side (BRA or KET) and Cartesian axis along which a node is lowered."""

    side: int
    axis: int


@dataclass(frozen=True)
class Graph:
    """A recurrence graph in a topological order (by level).

    Attributes:
        nodes: the auxiliary integrals; the position of a node is its number.
        steps: the axis of each node, None for the Boys values [00|00]^(m).
        parents: numbers of the parents of each node in the order of the recurrence:
            same m, m+1, then [lowered twice, same with m+1], then [other side lowered], as many as there are.
        targets: numbers of the nodes that were asked for.
    """

    nodes: tuple[Node, ...]
    steps: tuple[Step | None, ...]
    parents: tuple[tuple[int, ...], ...]
    targets: tuple[int, ...]


def legal_steps(node: Node) -> list[Step]:
    """All axes along which a node can be lowered, ket first, z before y before x."""
    return [Step(side, i) for side, powers in ((KET, node.c), (BRA, node.a)) for i in (2, 1, 0) if powers[i]]


def parent_nodes(node: Node, step: Step) -> list[Node]:
    """The two to five parents of a node lowered along ``step``, in the order that :class:`Graph` states."""
    a, c, m = node
    i = step.axis
    if step.side == BRA:
        low = raised(a, i, -1)
        result = [Node(low, c, m), Node(low, c, m + 1)]
        if low[i]:
            lower = raised(low, i, -1)
            result += [Node(lower, c, m), Node(lower, c, m + 1)]
        if c[i]:
            result.append(Node(low, raised(c, i, -1), m + 1))
    else:
        low = raised(c, i, -1)
        result = [Node(a, low, m), Node(a, low, m + 1)]
        if low[i]:
            lower = raised(low, i, -1)
            result += [Node(a, lower, m), Node(a, lower, m + 1)]
        if a[i]:
            result.append(Node(raised(a, i, -1), low, m + 1))
    return result


def _paper(node: Node) -> Step:
    """Algorithm 1 of the FusionRCG paper: for each axis ket before bra; z overrides y overrides x."""
    for i in (2, 1, 0):
        if node.c[i]:
            return Step(KET, i)
        if node.a[i]:
            return Step(BRA, i)
    raise AssertionError("a Boys value has no step")


def _none(node: Node) -> Step:
    """The conventional order that the paper compares with: bra before ket, x before y before z."""
    return min(legal_steps(node))


def _ket_smallest(node: Node) -> Step:
    """Ket before bra, the smallest power first."""
    powers = node.c if any(node.c) else node.a
    side = KET if any(node.c) else BRA
    return Step(side, min((i for i in (2, 1, 0) if powers[i]), key=lambda i: powers[i]))


_LOCAL_RULES: dict[str, Callable[[Node], Step]] = {
    "paper": _paper,
    "ket_first": lambda node: legal_steps(node)[0],
    "ket_smallest": _ket_smallest,
    "bra_first": lambda node: max(legal_steps(node), key=lambda s: (s.side == BRA, s.axis)),
    "none": _none,
}

RULES = ("greedy", *_LOCAL_RULES)
"""Axis rules: greedy adds the fewest new nodes at each node and is the default; paper is Algorithm 1; none is the
conventional order."""


def vrr_targets(cls: Class) -> list[Node]:
    """The nodes [e0|f0]^(0) that the horizontal recurrence of a class needs, f fastest."""
    la, lb, lc, ld = cls
    return [Node(e, f, 0) for e in pair_components(la, lb) for f in pair_components(lc, ld)]


def gradient_targets(cls: Class) -> list[Node]:
    """The nodes that first derivatives of a class need: [e|f], [e+-1_i|f] and [e|f-1_i], without repetition."""
    result = dict.fromkeys(vrr_targets(cls))
    for e, f, _ in list(result):
        for i in range(3):
            result[Node(raised(e, i), f, 0)] = None
            if e[i]:
                result[Node(raised(e, i, -1), f, 0)] = None
            if f[i]:
                result[Node(e, raised(f, i, -1), 0)] = None
    return list(result)


def build_graph(targets: Iterable[Node], rule: str = "greedy") -> Graph:
    """The graph of everything that ``targets`` need under an axis rule.

    Raises:
        ValueError: the rule is unknown.
    """
    if rule not in RULES:
        raise ValueError(f"build_graph: rule was {rule!r}; it must be one of {', '.join(RULES)}.")
    wanted = list(dict.fromkeys(targets))
    chosen: dict[Node, tuple[Step | None, list[Node]]] = {}
    needed = set(wanted)
    levels: dict[int, set[Node]] = {}
    for node in wanted:
        levels.setdefault(node.total, set()).add(node)
    local = _LOCAL_RULES.get(rule)
    # A parent is one or two levels below its child: going down by level sees every consumer of a node before it.
    for total in range(max(levels), -1, -1):
        for node in sorted(levels.get(total, ()), key=lambda n: (n.m, n.a, n.c)):
            if total == 0:
                chosen[node] = (None, [])
                continue
            if local is not None:
                step = local(node)
                parents = parent_nodes(node, step)
            else:
                options = [(step, parent_nodes(node, step)) for step in legal_steps(node)]
                step, parents = min(options, key=lambda o: (sum(p not in needed for p in o[1]), len(o[1])))
            chosen[node] = (step, parents)
            for parent in parents:
                if parent not in needed:
                    needed.add(parent)
                    levels.setdefault(parent.total, set()).add(parent)
    nodes = tuple(sorted(chosen, key=lambda n: (n.total, sum(n.c), n.m, n.a, n.c)))
    number = {node: k for k, node in enumerate(nodes)}
    return Graph(
        nodes=nodes,
        steps=tuple(chosen[n][0] for n in nodes),
        parents=tuple(tuple(number[p] for p in chosen[n][1]) for n in nodes),
        targets=tuple(number[n] for n in wanted),
    )


def vrr_graph(cls: Class, rule: str = "greedy") -> Graph:
    """The vertical recurrence graph of a class (la lb|lc ld)."""
    return build_graph(vrr_targets(cls), rule)


def gradient_graph(cls: Class, rule: str = "greedy") -> Graph:
    """The vertical recurrence graph of the first derivatives of a class."""
    return build_graph(gradient_targets(cls), rule)


def factors(node: Node, step: Step) -> tuple[int, int]:
    """The integers (a_i, c_i) of the recurrence: powers of the lowered node along the axis, own and other side."""
    own, other = (node.a, node.c) if step.side == BRA else (node.c, node.a)
    return own[step.axis] - 1, other[step.axis]


def flops(graph: Graph) -> int:
    """Floating-point instructions of one evaluation (a fused multiply-add counts once), 2 + 2 + 1 per node."""
    # The numbers of parents 2, 3, 4, 5 cost 2, 3, 4, 5 instructions: PA, WP, the pair of lower terms, the cross term.
    return sum(len(p) for p in graph.parents)


def evaluate(graph: Graph, boys: Sequence[float], parameters: Mapping[str, float], order: Iterable[int]) -> list[float]:
    """Values of all nodes, computed in ``order`` in plain floats: the reference meaning of a graph.

    Arguments:
        boys: f[m], Boys values times the prefactor.
        parameters: ``pax .. wqz``, ``half_p``, ``half_q``, ``half_pq``, ``rho_p``, ``rho_q``.
        order: node numbers; a KeyError shows that it is not topological.
    """
    value: dict[int, float] = {}
    for k in order:
        node, step, parents = graph.nodes[k], graph.steps[k], [value[p] for p in graph.parents[k]]
        if step is None:
            value[k] = boys[node.m]
            continue
        x = "xyz"[step.axis]
        shift, weight, half, rho = (
            ("pa", "wp", "half_p", "rho_p") if step.side == BRA else ("qc", "wq", "half_q", "rho_q")
        )
        lower, cross = factors(node, step)
        total = parameters[shift + x] * parents[0] + parameters[weight + x] * parents[1]
        if lower:
            total += lower * parameters[half] * (parents[2] - parameters[rho] * parents[3])
        if cross:
            total += cross * parameters["half_pq"] * parents[-1]
        value[k] = total
    return [value[k] for k in range(len(graph.nodes))]
