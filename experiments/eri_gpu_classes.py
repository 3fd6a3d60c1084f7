"""Finds the tier of every class of integrals, and how many blocks a multiprocessor should hold, by measuring.

    python experiments/eri_gpu_classes.py FILE:BASIS [--write] [--near] [--l 4] [--classes 2121 ...]

Both tiers and 1 to 8 blocks are timed on the quartets of a molecule; with --near only the tier of the table with a
block more and a block less. With --write the winners go into the table that jaxqc reads,
ffi_kernels/cuda/eri_shapes_sm90.json; what has few quartets, or is not in the basis, keeps its entry.
"""

import argparse
import json
import sys
from pathlib import Path

import eri_gpu_measure as measure

from jaxqc.ffi_kernels.rcg.cartesian import ncomp
from jaxqc.gpu import _launch
from jaxqc.gpu._compile import source_folder
from jaxqc.integrals import _cuda_classes as classes

BLOCKS = range(1, 9)
_REGISTERS = 65536  # of a multiprocessor
_WORST = 400  # contracted values (e0|f0) beyond which one thread a quartet is hopeless, and slow to compile
_LEAST = 3e4  # quartets that make a measurement
_MARGIN = 0.98  # what is new must be faster by this


def candidates(bra, ket, near: bool = False) -> list[tuple[str, int]]:
    """(tier, blocks) that make sense, or those next to the table's."""
    if near:
        registers, blocks = classes.shape(bra, ket)
        return [("registers" if registers else "lanes", n) for n in (blocks - 1, blocks, blocks + 1) if n]
    tiers = ["registers"] if ncomp(*bra) * ncomp(*ket) <= _WORST else []
    tiers += ["lanes"] if ncomp(*ket) > 1 else []
    out = []
    for tier in tiers:
        block = measure.in_tier(bra, ket, tier).block
        # At least 40 registers a thread.
        out += [(tier, n) for n in BLOCKS if n * block * 40 <= _REGISTERS]
    return out


def measured(system, wanted, near: bool) -> dict[str, dict]:
    """For each class the milliseconds of all candidates."""
    kernels = {
        (bra, ket): {c: measure.in_tier(bra, ket, *c) for c in candidates(bra, ket, near)} for bra, ket in wanted
    }
    _launch.load([k.unit for found in kernels.values() for k in found.values()])
    out, counts = {}, measure.counts(system, wanted)
    for (bra, ket), found in kernels.items():
        quartets, _ = counts[bra, ket]
        if quartets < _LEAST:
            continue
        times = {}
        for choice, kernel in found.items():
            times[choice] = 1e3 * measure.seconds(measure.sums(system, {(bra, ket): [kernel]}), repeat=2, rounds=3)
        out[measure.digits(bra, ket)] = {"quartets": quartets, "times": times}
        listed = ", ".join(f"{tier} {blocks} {ms:.3f}" for (tier, blocks), ms in times.items())
        print(measure.digits(bra, ket), f"{quartets:.3g} quartets, ms: {listed}", flush=True)
    return out


def winners(results: dict[str, dict], kept: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """The table with the fastest shapes; present ones stay where nothing is clearly faster."""
    table = dict(kept)
    for name, result in results.items():
        times = result["times"]
        best = min(times, key=lambda c: times[c])
        if name not in kept or times[best] < _MARGIN * times.get(tuple(kept[name]), float("inf")):
            table[name] = best
    return table


def text_of(table: dict[str, tuple[str, int]], made: str) -> str:
    """The file, four classes a line."""
    items = [f'"{name}": {json.dumps(list(shape))}' for name, shape in table.items()]
    lines = [", ".join(items[k : k + 4]) for k in range(0, len(items), 4)]
    body = ",\n".join(f"    {line}" for line in lines)
    return f'{{\n  "device": "NVIDIA H200",\n  "made": {json.dumps(made)},\n  "shapes": {{\n{body}\n  }}\n}}\n'


def main():
    """Reads the arguments; measures; prints or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", metavar="FILE:BASIS")
    parser.add_argument("--classes", nargs="*", help="digits, as 2121; all by default")
    parser.add_argument("--l", type=int, default=0, help="only classes with functions of this l or higher")
    parser.add_argument("--near", action="store_true", help="only the table's tier, a block more and a block less")
    parser.add_argument("--atoms", action="store_true", help="density of atoms, instead of three cycles")
    parser.add_argument("--write", action="store_true", help="into the table of jaxqc")
    parser.add_argument("--json", type=Path, help="all times")
    options = parser.parse_args()
    system = measure.load(options.system, measure.of_atoms if options.atoms else measure.after_three_cycles)
    wanted = [c for c in system.classes if not options.classes or measure.digits(*c) in options.classes]
    wanted = [c for c in wanted if max(*c[0], *c[1]) >= options.l]
    results = measured(system, wanted, options.near)
    if options.json:
        listed = {
            name: r | {"times": {f"{tier} {blocks}": t for (tier, blocks), t in r["times"].items()}}
            for name, r in results.items()
        }
        measure.keep(options.json, listed)
    made = " ".join(["python experiments/eri_gpu_classes.py", *sys.argv[1:]])
    text = text_of(winners(results, classes.shapes()), made)
    if options.write:
        path = source_folder() / classes.SHAPES
        path.write_text(text)
        print(f"wrote {path}")
    else:
        print(text)


if __name__ == "__main__":
    main()
