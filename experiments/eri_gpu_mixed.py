"""What mixed precision is worth on a GPU: times of J and K in double and in mixed precision, and what it costs.

    python experiments/eri_gpu_mixed.py NAME=FILE:BASIS ... [--scf] [--json OUT]

The densities are those of `eri_gpu_measure.after_three_cycles`; with --scf the converged energies are compared as well.
"""

import argparse
from pathlib import Path

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp

import jaxqc

PRECISIONS = ("double", "mixed")


def row_of(text: str, converge: bool) -> dict:
    """Times in milliseconds and errors in Hartree of one system."""
    name, _, rest = text.rpartition("=")
    file, _, basis = rest.rpartition(":")
    mol = jaxqc.Molecule(file, basis=basis)
    density = measure.after_three_cycles(mol)
    row: dict = {"system": name or Path(file).stem, "basis": basis}
    found = {}
    for precision in PRECISIONS:
        build = jax.jit(lambda d, p=precision: jaxqc.integrals.jk(mol, d, symmetric=True, precision=p))
        row[precision] = 1e3 * measure.seconds(build, density)
        found[precision] = build(density)
    change = [a - b for a, b in zip(*(found[p] for p in PRECISIONS), strict=True)]
    row["error"] = max(float(jnp.max(jnp.abs(x))) for x in change)
    row["energy"] = abs(float(0.5 * jnp.sum(density * (change[0] - 0.5 * change[1]))))
    if converge:
        results = [jaxqc.scf(mol, precision=p) for p in PRECISIONS]
        row["scf"] = abs(float(results[0].energy - results[1].energy))
        row["cycles"] = [int(r.cycles) for r in results]
    return row


def page(rows) -> str:
    head = [
        "system",
        "basis",
        "double, ms",
        "mixed, ms",
        "ratio",
        "J, K",
        "energy of the build",
        "SCF energy",
        "cycles",
    ]
    cells = [
        [
            r["system"],
            r["basis"],
            f"{r['double']:.1f}",
            f"{r['mixed']:.1f}",
            f"{r['double'] / r['mixed']:.2f}",
            f"{r['error']:.1e}",
            f"{r['energy']:.1e}",
            f"{r['scf']:.1e}" if "scf" in r else "",
            " / ".join(map(str, r.get("cycles", []))),
        ]
        for r in rows
    ]
    return measure.table(head, cells)


def main():
    """Reads the arguments; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE:BASIS")
    parser.add_argument("--scf", action="store_true", help="compare converged energies too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for text in options.systems:
        rows.append(row_of(text, options.scf))
        print(rows[-1], flush=True)
    if options.json:
        measure.keep(options.json, rows)
    print(page(rows))


if __name__ == "__main__":
    main()
