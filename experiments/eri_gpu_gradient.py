"""Times the gradient of J and K on an NVIDIA GPU: whole calls next to builds of J and K, and every class of integrals.

    python experiments/eri_gpu_gradient.py water_020=water.xyz:cc-pvdz ... [--classes] [--shapes CLASS ...]

Density of three cycles, threshold 1e-13, weights of the Hartree-Fock energy. `--shapes` tries both tiers and several
launch shapes for classes such as 1111 (pppp).
"""

import argparse
from unittest import mock

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp

import jaxqc
from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_gradient as gradient

BLOCKS = (1, 2, 3, 4, 5)


def energy(mol, density):
    """The two-electron energy of a closed-shell determinant."""
    j, k = jaxqc.integrals.jk(mol, density, symmetric=True)
    return 0.5 * jnp.sum(j * density) - 0.25 * jnp.sum(k * density)


def whole(system: measure.System) -> tuple[float, float]:
    """Seconds of a build of J and K, and of the gradient of the energy."""
    build = jax.jit(lambda x, d: jaxqc.integrals.jk(system.mol.with_coords(x), d, symmetric=True))
    derivative = jax.jit(jax.grad(lambda x, d: energy(system.mol.with_coords(x), d)))
    arguments = (system.mol.coords, system.matrix)
    # JAX keeps the energy out of the program of its gradient: no J and K are built there
    return measure.seconds(build, *arguments), measure.seconds(derivative, *arguments, repeat=1)


def class_seconds(system: measure.System, bra, ket) -> float:
    """Seconds of one class."""

    def run(pairs, density):
        part = jnp.zeros(1, jnp.int32)
        weights = (0.5 * density, -0.25 * density)
        variant = classes.Variant(False)
        with mock.patch.object(classes, "classes", lambda _: [(bra, ket)]):
            return gradient.sums(
                system.plan, pairs, variant, part, 1, 0.0, measure.THRESHOLD, density, *weights, test=False
            )

    return measure.seconds(jax.jit(run), system.pairs, system.density, repeat=1)


def class_rows(system: measure.System) -> list[list]:
    """Each class as it is served, the longest first."""
    rows = []
    for (bra, ket), (quartets, primitives) in measure.counts(system, system.classes).items():
        if quartets == 0:
            continue
        registers, blocks = gradient.shape(bra, ket)
        seconds = class_seconds(system, bra, ket)
        row = [measure.label(bra, ket), "registers" if registers else "lanes", blocks, f"{1e3 * seconds:.2f}"]
        rows.append(
            (seconds, [*row, f"{quartets:.3g}", f"{primitives / quartets:.1f}", f"{1e9 * seconds / quartets:.3g}"])
        )
    return [row for _, row in sorted(rows, key=lambda r: -r[0])]


def shape_rows(system: measure.System, names: list[str]) -> list[list]:
    """Milliseconds of classes in both tiers and several launch shapes."""
    rows = []
    for name in names:
        la, lb, lc, ld = map(int, name)
        for registers in (True, False):
            row = [measure.label((la, lb), (lc, ld)), "registers" if registers else "lanes"]
            for blocks in BLOCKS:
                gradient.kernel.cache_clear()
                with mock.patch.object(gradient, "shape", lambda *_, now=(registers, blocks): now):
                    row.append(f"{1e3 * class_seconds(system, (la, lb), (lc, ld)):.2f}")
            rows.append(row)
    gradient.kernel.cache_clear()
    return rows


def main():
    """Reads the arguments and runs each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE:BASIS")
    parser.add_argument("--classes", action="store_true", help="every class of integrals as well")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="CLASS")
    options = parser.parse_args()
    for text in options.systems:
        system = measure.load(text)
        build, derivative = whole(system)
        print(
            f"{system.name} {system.basis}: J and K {1e3 * build:.1f} ms, gradient {1e3 * derivative:.1f} ms, "
            f"{derivative / build:.2f} builds",
            flush=True,
        )
        if options.classes:
            head = ["class", "tier", "blocks", "ms", "quartets", "primitives each", "ns each"]
            print(measure.table(head, class_rows(system)), flush=True)
        if options.shapes:
            head = ["class", "tier", *(f"{b} blocks, ms" for b in BLOCKS)]
            print(measure.table(head, shape_rows(system, options.shapes)), flush=True)


if __name__ == "__main__":
    main()
