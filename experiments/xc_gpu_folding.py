"""What symmetry folding is worth in the kernel of the density with tau, on an NVIDIA GPU.

    python experiments/xc_gpu_folding.py water.xyz:def2-svp [--level 5]

The kernel multiplies pairs of functions on one side of the diagonal of the density matrix and counts them twice. Here
it runs as well with its source changed to take both sides. Rows must fit into shared memory whole, as those of small
and medium molecules in def2-SVP do: the change knows no windows, and what it computes is compared.
"""

import argparse
import contextlib
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
from xc_gpu_benchmark import orbitals, seconds

import jaxqc
from jaxqc.gpu import _compile
from jaxqc.xc import Grid, _cuda_units, build_layout, density_features

FILE = "xc_density_tau.cu"
# What makes the kernel take pairs on both sides: (the text, what stands there instead).
UNFOLDED = (
    ("m < 0 ? 8 * c + 8 : k1", "k1"),
    ("min(limit, 8 * c) - k0", "limit - k0"),
    ("if (limit > 8 * c) {", "if (false) {"),
    ("i / P == 4 ? v : 2.0 * v", "i / P == 4 ? 0.5 * v : v"),
)


def unfolded(source: str) -> str:
    """The source without folding."""
    for text, other in UNFOLDED:
        assert source.count(text) == 1, f"{FILE} has changed: {text!r} stands there {source.count(text)} times"
        source = source.replace(text, other)
    return source


@contextlib.contextmanager
def without_folding():
    """Other sources, under another name of the unit."""
    source, unit = _compile._source, _cuda_units._unit
    text = unfolded(source(FILE))
    _compile._source = lambda name: text if name == FILE else source(name)
    _cuda_units._unit = functools.partial(unit, FOLDED=0)
    try:
        forget()
        yield
    finally:
        _compile._source, _cuda_units._unit = source, unit
        forget()


def forget():
    """What was traced with other kernels."""
    _cuda_units.density_classes.cache_clear()
    jax.clear_caches()


def features(mol, layout, density):
    """Density, gradient and tau, and the milliseconds that they take."""
    step = jax.jit(lambda d: density_features(mol, layout, d, "mgga"))
    return step(density), 1e3 * seconds(step, density)[0]


def main():
    """Reads the arguments and runs each molecule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+")
    parser.add_argument("--level", type=int, default=5)
    options = parser.parse_args()
    for system in options.systems:
        file, _, basis = system.rpartition(":")
        mol = jaxqc.Molecule(file, basis=basis)
        c = orbitals(mol, None)
        density = jnp.asarray(2.0 * c @ c.T)[None]
        grid = Grid(mol, level=options.level)
        layout = build_layout(mol, grid.coords, grid.weights)
        want, folded = features(mol, layout, density)
        with without_folding():
            got, both = features(mol, layout, density)
        error = float(jnp.max(jnp.abs(got - want)) / jnp.max(jnp.abs(want)))
        print(f"{Path(file).stem} {basis}: folded {folded:.3f} ms, both sides {both:.3f} ms, difference {error:.1e}")


if __name__ == "__main__":
    main()
