"""Exchange with erfc(omega r)/r on a GPU: times against 1/r and erf(omega r)/r, and what the distance is worth.

    python experiments/eri_gpu_short.py NAME=FILE:BASIS ... [--omega 0.11 0.33] [--json OUT]

K alone, at the density of `eri_gpu_measure.after_three_cycles`. Without kernels of its own, erfc takes as long as both
others.
"""

import argparse
from pathlib import Path
from unittest import mock

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp

import jaxqc
from jaxqc.integrals import _cuda_short

_EVERYWHERE = 1e20  # log of a charge


def _no_distance(plan, pairs, reach=_cuda_short.reach):
    """Bounds that let every quartet through."""
    places, charges = reach(plan, pairs)
    return places, charges.at[:, 0].set(_EVERYWHERE)


def rows_of(text: str, omegas: list[float]) -> list[dict]:
    """Times in milliseconds and differences in Hartree of one system, for each omega."""
    name, _, rest = text.rpartition("=")
    file, _, basis = rest.rpartition(":")
    mol = jaxqc.Molecule(file, basis=basis)
    density = measure.after_three_cycles(mol)

    def timed(omega: float) -> tuple[float, jax.Array]:
        build = jax.jit(lambda d: jaxqc.integrals.jk(mol, d, coulomb=False, omega=omega, symmetric=True)[1])
        return 1e3 * measure.seconds(build, density), build(density)

    rows, (full, k) = [], timed(0.0)
    for omega in omegas:
        (long, k_long), (short, k_short) = timed(omega), timed(-omega)
        with mock.patch.object(_cuda_short, "reach", _no_distance):
            near, _ = timed(-omega)
        row = {"system": name or Path(file).stem, "basis": basis, "omega": omega}
        row |= {"1/r": full, "erf": long, "erfc": short, "no distance": near}
        rows.append(row | {"error": float(jnp.max(jnp.abs(k - k_long - k_short)))})
    return rows


def page(rows: list[dict]) -> str:
    times = ("1/r", "erf", "erfc", "no distance")
    head = ["system", "basis", "omega", "1/r", "erf", "erfc", "erfc, no distance", "(1/r + erf) / erfc", "difference"]
    cells = [
        [r["system"], r["basis"], r["omega"], *(f"{r[t]:.1f}" for t in times)]
        + [f"{(r['1/r'] + r['erf']) / r['erfc']:.2f}", f"{r['error']:.1e}"]
        for r in rows
    ]
    return measure.table(head, cells)


def main():
    """Reads the arguments; measures; prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE:BASIS")
    parser.add_argument("--omega", nargs="+", type=float, default=[0.11, 0.33], help="1/Bohr")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for text in options.systems for row in rows_of(text, options.omega)]
    print(page(rows))
    if options.json:
        measure.keep(options.json, rows)


if __name__ == "__main__":
    main()
