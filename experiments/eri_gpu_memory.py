"""Memory of builds of J and K on a GPU: what `jaxqc.integrals.jk_memory` states, and what XLA assigns to the program.

    python experiments/eri_gpu_memory.py NAME=FILE:BASIS ... [--densities 1]

MiB, operands and results included. Without a GPU only what is stated.
"""

import argparse
from pathlib import Path

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp

import jaxqc

MIB = 2**20


def assigned(mol: jaxqc.Molecule, densities: int) -> float:
    """MiB of the compiled program."""

    def build(mol, density):
        return jaxqc.integrals.jk(mol, density, symmetric=True)

    density = jax.ShapeDtypeStruct((densities, mol.nao, mol.nao), jnp.float64)
    found = jax.jit(build).lower(mol, density).compile().memory_analysis()
    assert found is not None
    return (found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes) / MIB


def main():
    """Reads the arguments; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE:BASIS")
    parser.add_argument("--densities", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for text in options.systems:
        name, _, rest = text.rpartition("=")
        file, _, basis = rest.rpartition(":")
        mol = jaxqc.Molecule(file, basis=basis)
        stated = jaxqc.integrals.jk_memory(mol, options.densities, symmetric=True) / MIB
        found = f"{assigned(mol, options.densities):.0f}" if jax.default_backend() == "gpu" else ""
        rows.append([f"{name or Path(file).stem} {basis}", mol.nao, f"{stated:.0f}", found])
        print(*rows[-1], flush=True)
    print(measure.table(["system", "nao", "stated, MiB", "assigned, MiB"], rows))


if __name__ == "__main__":
    main()
