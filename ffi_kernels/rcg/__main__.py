"""``python -m rcg emit`` writes the generated headers; ``python -m rcg report`` describes the graphs."""

from __future__ import annotations

import argparse
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


def _size(cls: tuple[int, int, int, int]) -> int:
    return ncomp(*cls[:2]) * ncomp(*cls[2:])


def headers(lmax: int, pairs_lmax: int, max_size: int, gradient_max_size: int) -> Iterator[tuple[str, str]]:
    """Name and text of each header."""
    plain = classes(lmax, max_size)
    gradient = [c for c in plain if _size(c) <= gradient_max_size]
    yield "rcg_pairs.h", emit_pairs_header(pairs_lmax)
    for la, lb in pairs(pairs_lmax):
        yield f"rcg_hrr_{la}{lb}.h", emit_pair_header(la, lb)
    yield "rcg_classes.h", emit_classes_header(plain, gradient)
    for cls in plain:
        yield f"rcg_vrr_{class_name(cls)}.h", emit_class_header(cls, cls in gradient)


def _emit(options: argparse.Namespace) -> None:
    pairs_lmax = options.lmax if options.pairs_lmax is None else options.pairs_lmax
    options.out.mkdir(parents=True, exist_ok=True)
    count = written = 0
    for name, text in headers(options.lmax, pairs_lmax, options.max_size, options.gradient_max_size):
        path = options.out / name
        count += 1
        # An unchanged header keeps its time stamp, so that nothing is compiled again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written += 1
    print(f"rcg: {count} headers in {options.out}, {written} of them new or changed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m rcg``."""
    parser = argparse.ArgumentParser(prog="rcg", description="Generator of electron-repulsion kernels.")
    commands = parser.add_subparsers(dest="command", required=True)
    emit = commands.add_parser("emit", help="write the generated headers")
    emit.add_argument("--out", type=Path, required=True, help="directory of the headers")
    emit.add_argument("--max-size", type=int, default=280, help="largest number of (e0|f0) of a straight-line class")
    emit.add_argument("--lmax", type=int, default=3, help="largest angular momentum of the classes")
    emit.add_argument("--pairs-lmax", type=int, help="largest angular momentum of the pairs (default: --lmax)")
    emit.add_argument("--gradient-max-size", type=int, default=0, help="the same limit for first-derivative bodies")
    emit.set_defaults(run=_emit)
    options = parser.parse_args(arguments)
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
