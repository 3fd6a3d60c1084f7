"""``python -m rcg emit`` writes the generated headers; ``python -m rcg report`` describes the graphs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .cartesian import ncomp
from .emit import (
    class_name,
    classes,
    emit_class_header,
    emit_classes_header,
    emit_pair_header,
    emit_pairs_header,
    pairs,
)
from .graph import RULES
from .options import DEFAULT, TIERS, Options
from .report import REPORT_RULES, REPORT_SCHEDULES, as_dict, heading, line, report
from .schedule import SCHEDULES


def _size(cls: tuple[int, int, int, int]) -> int:
    return ncomp(*cls[:2]) * ncomp(*cls[2:])


def headers(
    lmax: int, pairs_lmax: int, max_size: int, gradient_max_size: int, options: Options = DEFAULT
) -> Iterator[tuple[str, str]]:
    """Name and text of each header."""
    plain = classes(lmax, max_size)
    gradient = [c for c in plain if _size(c) <= gradient_max_size]
    yield "rcg_pairs.h", emit_pairs_header(pairs_lmax)
    for la, lb in pairs(pairs_lmax):
        yield f"rcg_hrr_{la}{lb}.h", emit_pair_header(la, lb, options)
    yield "rcg_classes.h", emit_classes_header(plain, gradient)
    for cls in plain:
        yield f"rcg_vrr_{class_name(cls)}.h", emit_class_header(cls, cls in gradient, options)


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        rule=arguments.rule,
        schedule=arguments.schedule,
        fusion=not arguments.no_fusion,
        packing=not arguments.no_packing,
        tier=arguments.tier,
    )


def _emit(arguments: argparse.Namespace) -> None:
    pairs_lmax = arguments.lmax if arguments.pairs_lmax is None else arguments.pairs_lmax
    arguments.out.mkdir(parents=True, exist_ok=True)
    count = written = 0
    sizes = arguments.max_size, arguments.gradient_max_size
    for name, text in headers(arguments.lmax, pairs_lmax, *sizes, _options(arguments)):
        path = arguments.out / name
        count += 1
        # An unchanged header keeps its time stamp, so that nothing is compiled again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written += 1
    print(f"rcg: {count} headers in {arguments.out}, {written} of them new or changed")


def _report(arguments: argparse.Namespace) -> None:
    rows = report(
        arguments.lmax,
        arguments.jobs,
        rules=arguments.rules.split(","),
        schedules=arguments.schedules.split(","),
        options=_options(arguments),
    )
    if arguments.json:
        print(json.dumps([as_dict(row) for row in rows], indent=1))
        return
    for k, row in enumerate(rows):
        if k == 0:
            print(heading(row))
        print(line(row), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m rcg``."""
    parser = argparse.ArgumentParser(prog="rcg", description="Generator of electron-repulsion kernels.")
    switches = argparse.ArgumentParser(add_help=False)
    switches.add_argument("--rule", choices=RULES, default=DEFAULT.rule, help="axis rule of the vertical recurrence")
    switches.add_argument("--schedule", choices=SCHEDULES, default=DEFAULT.schedule, help="order of evaluation")
    switches.add_argument("--no-fusion", action="store_true", help="transform to spherical functions at the end")
    switches.add_argument("--no-packing", action="store_true", help="a slot of its own for every buffered value")
    switches.add_argument("--tier", choices=TIERS, default=DEFAULT.tier, help="the memory tier of every class")
    commands = parser.add_subparsers(dest="command", required=True)
    emit = commands.add_parser("emit", parents=[switches], help="write the generated headers")
    emit.add_argument("--out", type=Path, required=True, help="directory of the headers")
    emit.add_argument("--max-size", type=int, default=280, help="largest number of (e0|f0) of a straight-line class")
    emit.add_argument("--lmax", type=int, default=3, help="largest angular momentum of the classes")
    emit.add_argument("--pairs-lmax", type=int, help="largest angular momentum of the pairs (default: --lmax)")
    emit.add_argument("--gradient-max-size", type=int, default=0, help="the same limit for first-derivative bodies")
    emit.set_defaults(run=_emit)
    table = commands.add_parser("report", parents=[switches], help="nodes, PeakLive, slots, FLOPs, tier of all classes")
    table.add_argument("--lmax", type=int, default=4, help="largest angular momentum of the classes")
    table.add_argument("--rules", default=",".join(REPORT_RULES), help=f"compared axis rules, of {','.join(RULES)}")
    table.add_argument("--schedules", default=",".join(REPORT_SCHEDULES), help=f"of {','.join(SCHEDULES)}")
    table.add_argument("--json", action="store_true", help="print JSON")
    table.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    table.set_defaults(run=_report)
    parsed = parser.parse_args(arguments)
    parsed.run(parsed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
