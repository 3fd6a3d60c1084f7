"""The horizontal recurrence of one side of a class, fused with the spherical transformation, as a linear graph.

    (a b+1_i| = (a+1_i b| + AB_i (a b|,    AB = A - B

takes the contracted (e0| of total la..la+lb to (ab|. The two bits of ``mask`` say which of a and b leave as spherical
functions. Fused, each index is transformed as soon as the recurrence is done with it, one index after the other, so
that the block shrinks before the other side of the integral is touched; the operators act on disjoint pairs of indices
and commute (Eqs. 11 to 17 of the FusionRCG paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .cartesian import Component, components, ncart, nsph, pair_components, raised, spherical_matrix


class Term(NamedTuple):
    """``coefficient`` times AB[axis] (where axis is not None) times the value of node ``source``."""

    coefficient: float
    axis: int | None
    source: int


@dataclass(frozen=True)
class LinearGraph:
    """A linear map as a graph: node k is the sum of ``terms[k]``; a node without terms is an input or zero.

    Attributes:
        terms: the terms of each node; sources come before the nodes that read them.
        inputs: the nodes that hold the input vector, in its order.
        outputs: the nodes that hold the output vector, in its order; None is an entry that is always zero.
    """

    terms: tuple[tuple[Term, ...], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(dict.fromkeys(t.source for t in group)) for group in self.terms)

    @property
    def flops(self) -> int:
        """Instructions of one evaluation, a fused multiply-add counted once."""
        total = 0
        for group in self.terms:
            products = sum(t.axis is not None or t.coefficient != 1.0 for t in group)
            # The first product of a sum without a plain term is a multiplication, every other term one instruction.
            total += len(group) - 1 + (products == len(group)) if group else 0
        return total

    def evaluate(self, values: Sequence[float], ab: Sequence[float]) -> list[float]:
        """The output vector for an input vector and the vector AB, in plain floats."""
        known = dict(zip(self.inputs, values, strict=True))
        for k, group in enumerate(self.terms):
            if group:
                known[k] = sum(t.coefficient * (1.0 if t.axis is None else ab[t.axis]) * known[t.source] for t in group)
        return [0.0 if k is None else known[k] for k in self.outputs]

    def transposed(self) -> LinearGraph:
        """The graph of the adjoint map, every edge reversed."""
        count = len(self.terms)
        number = {k: count - 1 - k for k in range(count)}
        terms: list[list[Term]] = [[] for _ in range(count)]
        for k, group in enumerate(self.terms):
            for t in group:
                terms[number[t.source]].append(Term(t.coefficient, t.axis, number[k]))
        outputs = tuple(None if k is None else number[k] for k in self.outputs)
        if len(set(outputs)) != len(outputs) or any(k is not None and terms[k] for k in outputs):
            return _with_input_nodes(terms, outputs, tuple(number[k] for k in self.inputs))
        return _pruned(terms, [k for k in outputs if k is not None], [number[k] for k in self.inputs])


def _with_input_nodes(
    terms: list[list[Term]], sources: tuple[int | None, ...], outputs: tuple[int, ...]
) -> LinearGraph:
    """Give each entry of the input vector a node of its own in front, where the old node also has other terms."""
    shift = len(sources)
    moved = [[Term(t.coefficient, t.axis, t.source + shift) for t in group] for group in terms]
    for position, k in enumerate(sources):
        if k is not None:
            moved[k].insert(0, Term(1.0, None, position))
    return _pruned([[] for _ in sources] + moved, list(range(shift)), [k + shift for k in outputs])


def _pruned(terms: Sequence[Sequence[Term]], inputs: list[int], outputs: list[int]) -> LinearGraph:
    """Without nodes that only copy another node or lead nowhere."""
    alias = list(range(len(terms)))
    for k, group in enumerate(terms):
        if len(group) == 1 and group[0].coefficient == 1.0 and group[0].axis is None:
            alias[k] = alias[group[0].source]
    used = {alias[k] for k in outputs} | set(inputs)
    for k in range(len(terms) - 1, -1, -1):
        if k in used:
            used.update(alias[t.source] for t in terms[k])
    kept = sorted(used)
    number = {k: n for n, k in enumerate(kept)}
    given = set(inputs)
    return LinearGraph(
        terms=tuple(tuple(t._replace(source=number[alias[t.source]]) for t in terms[k]) for k in kept),
        inputs=tuple(number[k] for k in inputs),
        outputs=tuple(number[alias[k]] if terms[alias[k]] or alias[k] in given else None for k in outputs),
    )


Pair = tuple[Component, Component]


def _recurrence_axes(la: int, lb: int) -> dict[Pair, int]:
    """The axis along which each (a, b) with |b| > 0 is lowered: level by level the one with the fewest new parents."""
    level: dict[Pair, None] = dict.fromkeys((a, b) for a in components(la) for b in components(lb))
    axes: dict[Pair, int] = {}
    for _ in range(lb):
        below: dict[Pair, None] = {}
        for a, b in level:

            def new_parents(i: int, a: Component = a, b: Component = b, below: dict[Pair, None] = below) -> int:
                low = raised(b, i, -1)
                return ((raised(a, i), low) not in below) + ((a, low) not in below)

            axis = min((i for i in (2, 1, 0) if b[i]), key=new_parents)
            low = raised(b, axis, -1)
            axes[a, b] = axis
            below[raised(a, axis), low] = None
            below[a, low] = None
        level = below
    return axes


def _bra_index_first(la: int, lb: int) -> bool:
    """Whether transforming a before b costs fewer instructions than b before a."""
    work = {l: sum(bool(c) for row in spherical_matrix(l) for c in row) for l in (la, lb)}
    return ncart(lb) * work[la] + nsph(la) * work[lb] < ncart(la) * work[lb] + nsph(lb) * work[la]


def hrr_graph(la: int, lb: int, mask: tuple[int, int] = (1, 1), fused: bool = True, given: bool = False) -> LinearGraph:
    """The map (e0| -> (ab| of one side; outputs (a, b) with b fastest.

    Arguments:
        la, lb: angular momenta of the two shells.
        mask: which of a and b leave as spherical functions (1) or Cartesian ones (0).
        fused: transform an index as soon as the recurrence is done with it; otherwise after the whole block.
        given: the inputs are the Cartesian (ab| themselves, b fastest; only the transformation is left.
    """
    terms: list[tuple[Term, ...]] = []
    number: dict[Pair, int] = {}
    zero = (0, 0, 0)

    def add(group: Sequence[Term]) -> int:
        if len(group) == 1 and group[0].coefficient == 1.0 and group[0].axis is None:
            return group[0].source
        terms.append(tuple(group))
        return len(terms) - 1

    ca, cb = components(la), components(lb)
    for pair in [(a, b) for a in ca for b in cb] if given else [(e, zero) for e in pair_components(la, lb)]:
        terms.append(())
        number[pair] = len(terms) - 1
    inputs = tuple(range(len(terms)))
    axes = _recurrence_axes(la, lb)

    def node(a: Component, b: Component) -> int:
        if (a, b) not in number:
            i = axes[a, b]
            low = raised(b, i, -1)
            pair = Term(1.0, None, node(raised(a, i), low)), Term(1.0, i, node(a, low))
            number[a, b] = add(pair)
        return number[a, b]

    def transformed(matrix: Sequence[Sequence[float]], sources: Sequence[int]) -> list[int]:
        return [
            add([Term(c, None, k) for c, k in zip(column, sources, strict=True) if c])
            for column in zip(*matrix, strict=True)
        ]

    ta = spherical_matrix(la) if mask[0] and la > 1 else None
    tb = spherical_matrix(lb) if mask[1] and lb > 1 else None
    if not fused:
        for a in ca:
            for b in cb:
                node(a, b)
    if _bra_index_first(la, lb) and ta and tb:
        columns = [transformed(ta, [node(a, b) for a in ca]) for b in cb]
        rows = [transformed(tb, row) for row in zip(*columns, strict=True)]
    else:
        rows = []
        for a in ca:
            row = [node(a, b) for b in cb]
            rows.append(transformed(tb, row) if tb else row)
        if ta:
            columns = [transformed(ta, column) for column in zip(*rows, strict=True)]
            rows = list(zip(*columns, strict=True))
    return LinearGraph(tuple(terms), inputs, tuple(k for row in rows for k in row))
