"""What the horizontal recurrence of a whole class costs: nodes, instructions, values alive, block sizes.

The contracted block H = (e0|f0) goes through seven stages. Fused: bra recurrence on each ket column, T_a, T_b, ket
recurrence on each (ab| row, T_c, T_d, so that spherical indices are all the ket sees. Unfused: both recurrences on
Cartesian functions, then T_a, T_b, T_c, T_d on the four-index block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from .cartesian import ncart, ncomp, nsph
from .graph import Class
from .hrr import LinearGraph, hrr_graph
from .schedule import live_counts, schedule


@dataclass(frozen=True)
class Phase2:
    """Cost of the horizontal recurrence of one contracted quartet.

    Attributes:
        inputs: entries of H.
        nodes: values computed after H.
        flops: instructions, a fused multiply-add counted once.
        peak: values alive at once, outputs included.
        stages: sizes of the block after each stage, by the mask of spherical indices reached.
    """

    inputs: int
    nodes: int
    flops: int
    peak: int
    stages: tuple[tuple[str, int], ...]


@cache
def _side(la: int, lb: int, mask: tuple[int, int]) -> tuple[LinearGraph, int]:
    """A one-side graph and the most values alive in it, inputs counted until their last use and outputs kept."""
    graph = hrr_graph(la, lb, mask)
    outputs = tuple({k for k in graph.outputs if k is not None})
    closed = (*graph.parents, outputs)
    peak = min(
        max(live_counts(closed, [*schedule(graph.parents, kind), len(graph.parents)])[:-1], default=0)
        for kind in ("level", "list")
    )
    return graph, max(peak, len(outputs), len(graph.inputs))


def _nodes(graph: LinearGraph) -> int:
    return sum(1 for group in graph.terms if group)


def phase2(cls: Class, fusion: bool = True, spherical: bool = True) -> Phase2:
    """Cost of the horizontal recurrence of a class; without ``spherical`` it ends in Cartesian functions."""
    la, lb, lc, ld = cls
    ne, nf = ncomp(la, lb), ncomp(lc, ld)
    cart, sph = tuple(map(ncart, cls)), tuple(map(nsph, cls))
    fused = fusion and spherical
    bra, bra_peak = _side(la, lb, (1, 1) if fused else (0, 0))
    ket, ket_peak = _side(lc, ld, (1, 1) if fused else (0, 0))
    rows, columns = len(bra.outputs), len(ket.outputs)
    # Bra: columns one after the other; each turns ne entries into rows. Ket: rows one after the other.
    peak = max(
        (nf - 1) * ne + bra_peak,
        (nf - 1) * rows + bra_peak,
        (rows - 1) * nf + ket_peak,
        (rows - 1) * columns + ket_peak,
    )
    nodes = nf * _nodes(bra) + rows * _nodes(ket)
    flops = nf * bra.flops + rows * ket.flops
    if fused:
        stages = [
            ("0000 bra", cart[0] * cart[1] * nf),
            ("1000", sph[0] * cart[1] * nf),
            ("1100", rows * nf),
            ("1100 ket", rows * cart[2] * cart[3]),
            ("1110", rows * sph[2] * cart[3]),
            ("1111", rows * columns),
        ]
    else:
        stages = [("0000 bra", cart[0] * cart[1] * nf), ("0000 ket", prod(cart))]
        shape = list(cart)
        for i in range(4) if spherical else ():
            transform, _ = _side(cls[i], 0, (1, 0))
            others = prod(shape) // shape[i]
            flops += others * transform.flops
            nodes += others * _nodes(transform)
            peak = max(peak, prod(shape) + sph[i])
            shape[i] = sph[i]
            stages.append(("1" * (i + 1) + "0" * (3 - i), prod(shape)))
    return Phase2(ne * nf, nodes, flops, peak, tuple(stages))
