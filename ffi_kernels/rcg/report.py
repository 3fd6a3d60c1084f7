"""``python -m rcg report``: what every class costs under each rule, schedule and switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context

from .allocator import allocate, lifetimes
from .emit import class_name, classes
from .graph import Class, flops, vrr_graph
from .model import accumulated, choose_tier, registers, registers_paper, tier_paper
from .options import DEFAULT, Options
from .phase2 import phase2
from .schedule import peak_live, schedule

REPORT_RULES = ("greedy", "paper", "none")
REPORT_SCHEDULES = ("list", "paper", "level")


@dataclass(frozen=True)
class Row:
    """One class.

    Attributes:
        cls: digits of (la lb|lc ld).
        accumulated: |H|, entries of the contracted (e0|f0).
        nodes, vrr_flops: of the vertical graph under each rule.
        peak_live: values alive at once under each "rule/schedule".
        slots, slots_packed: of the vertical graph under the default rule and schedule.
        slots_class, slots_class_packed: with H and the horizontal recurrence.
        flops, flops_unfused, flops_cartesian: of one quartet of one primitive each, with spherical fusion, with the
            transformation after both recurrences, and without a transformation.
        registers, registers_paper: 2 (PeakLive + |H|) and Eq. 6.
        tier, tier_paper: chosen here, and by the published boundary.
    """

    cls: str
    accumulated: int
    nodes: dict[str, int]
    vrr_flops: dict[str, int]
    peak_live: dict[str, int]
    slots: int
    slots_packed: int
    slots_class: int
    slots_class_packed: int
    flops: int
    flops_unfused: int
    flops_cartesian: int
    registers: int
    registers_paper: int
    tier: str
    tier_paper: str


def report_row(
    cls: Class,
    rules: Sequence[str] = REPORT_RULES,
    schedules: Sequence[str] = REPORT_SCHEDULES,
    options: Options = DEFAULT,
) -> Row:
    """The row of one class; ``rules`` and ``schedules`` are compared, ``options`` give the columns from slots on."""
    nodes, work, peaks = {}, {}, {}
    chosen = None
    for rule in dict.fromkeys((options.rule, *rules)):
        graph = vrr_graph(cls, rule)
        nodes[rule], work[rule] = len(graph.nodes), flops(graph)
        kinds = (options.schedule, *schedules) if rule == options.rule else schedules
        for kind in dict.fromkeys(kinds):
            order = schedule(graph.parents, kind)
            peaks[f"{rule}/{kind}"] = peak_live(graph.parents, order)
            if (rule, kind) == (options.rule, options.schedule):
                chosen = allocate(lifetimes(graph.parents, order), options.packing)
    assert chosen is not None
    size, peak = accumulated(cls), peaks[f"{options.rule}/{options.schedule}"]
    fused, unfused, cartesian = phase2(cls), phase2(cls, fusion=False), phase2(cls, spherical=False)
    used = fused if options.fusion else unfused
    vertical = work[options.rule] + size
    slots_class = nodes[options.rule] + size + used.nodes
    return Row(
        cls=class_name(cls),
        accumulated=size,
        nodes=nodes,
        vrr_flops=work,
        peak_live=peaks,
        slots=nodes[options.rule],
        slots_packed=chosen.total,
        slots_class=slots_class,
        slots_class_packed=max(chosen.total + size, used.peak) if options.packing else slots_class,
        flops=vertical + fused.flops,
        flops_unfused=vertical + unfused.flops,
        flops_cartesian=vertical + cartesian.flops,
        registers=registers(cls, peak),
        registers_paper=registers_paper(cls, peak),
        tier=choose_tier(cls, peak, options),
        tier_paper=tier_paper(cls),
    )


def report(lmax: int = 4, jobs: int = 1, **choices) -> Iterator[Row]:
    """Rows of all canonical classes up to ``lmax``, computed by ``jobs`` processes; ``choices`` as in report_row."""
    wanted = classes(lmax)
    make = partial(report_row, **choices)
    if jobs <= 1:
        yield from map(make, wanted)
        return
    # Fresh processes: a fork of one in which JAX runs its threads may hang.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        # The largest classes first, or one of them would run alone at the end.
        futures = {cls: pool.submit(make, cls) for cls in sorted(wanted, key=accumulated, reverse=True)}
        for cls in wanted:
            yield futures[cls].result()


def as_dict(row: Row) -> dict[str, object]:
    """A row for JSON."""
    return asdict(row)


def heading(row: Row) -> str:
    """Column names of :func:`line`, two lines."""
    rules, peaks = list(row.nodes), list(row.peak_live)
    first = f"{'class':>6} {'|H|':>6}" + "".join(f"{'nodes':>8}" for _ in rules)
    second = f"{'':>6} {'':>6}" + "".join(f"{rule[:7]:>8}" for rule in rules)
    for peak in peaks:
        rule, kind = peak.split("/")
        first += f"{'PeakLive':>9}"
        second += f"{rule[:3] + '/' + kind[:5]:>9}"
    for top, bottom in _FIXED_COLUMNS:
        first += f"{top:>9}"
        second += f"{bottom:>9}"
    return f"{first}\n{second}"


_FIXED_COLUMNS = (
    ("slots", "VRR"),
    ("slots", "packed"),
    ("slots", "class"),
    ("slots", "packed"),
    ("FLOPs", "unfused"),
    ("FLOPs", "fused"),
    ("fusion", "saves"),
    ("regs", "2(P+H)"),
    ("regs", "Eq. 6"),
    ("tier", "chosen"),
    ("tier", "paper"),
)


def line(row: Row) -> str:
    """One row as text."""
    text = f"{row.cls:>6} {row.accumulated:>6}"
    text += "".join(f"{n:>8}" for n in row.nodes.values()) + "".join(f"{n:>9}" for n in row.peak_live.values())
    saved = 1 - row.flops / row.flops_unfused if row.flops_unfused else 0.0
    numbers = (row.slots, row.slots_packed, row.slots_class, row.slots_class_packed, row.flops_unfused, row.flops)
    text += "".join(f"{n:>9}" for n in numbers) + f"{saved:>9.1%}{row.registers:>9}{row.registers_paper:>9}"
    return text + f"{row.tier[:8]:>9}{row.tier_paper[:8]:>9}"
