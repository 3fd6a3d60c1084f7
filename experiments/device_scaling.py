"""How J+K builds and exchange-correlation steps scale over devices, and a model of more devices than there are.

    python experiments/device_scaling.py jk=tamoxifen.xyz:cc-pvtz xc=chain.xyz:def2-svp [--devices 1 2] [--parts 8 64]

On as many devices as there are (virtual ones of the CPU with XLA_FLAGS=--xla_force_host_platform_device_count=8):
times, speed-ups, and the largest difference from the result of one device. With `--processes N` and one process for
each index (`--index`, `--address HOST:PORT`), the same over the devices of all processes.

The model: with n devices a build takes as long as the slowest of n parts, which is timed here on one device (parts of
J+K are every n-th bra pair, so that a sample of parts tells), plus the sum of the matrices over devices, 2 (n - 1) / n
of their bytes through the slowest link.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxqc
from jaxqc.integrals._decontraction import two_electron_shells
from jaxqc.integrals._jk import _jk

LINKS = {8: 450e9, 64: 50e9, 512: 50e9}  # bytes/s and direction: NVLink within a host, one 400 Gb/s port a GPU beyond
SAMPLE = 5  # parts that are timed of each division


def seconds(function, *arguments, repeat=3):
    """Median time of a call, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def guess(mol):
    """A density matrix of the size of the converged one."""
    from pyscf.scf import hf

    return jnp.asarray(np.asarray(hf.init_guess_by_minao(mol.to_pyscf())))


def difference(a, b):
    """The largest difference of two results."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in pairs)


def builder(kind, mol, mesh):
    """One J+K build, or one step of B3LYP, as a function of the density."""
    if kind == "jk":
        return jax.jit(lambda d: jaxqc.integrals.jk(mol, d, symmetric=True, mesh=mesh))
    grid = jaxqc.xc.Grid(mol, level=5)
    layout = jaxqc.xc.build_layout(mol, grid.coords, grid.weights)
    return lambda d: jaxqc.xc.potential(mol, layout, "b3lyp", d, mesh=mesh)


def measured(kind, mol, density, counts):
    """Times on several devices, and differences from the first result."""
    rows, first = [], None
    for count in counts:
        mesh = jax.make_mesh((count,), ("grid",), devices=jax.devices()[:count]) if count > 1 else None
        build = builder(kind, mol, mesh)
        took, found = seconds(build, density), build(density)
        first = first or (took, found)
        speed_up = first[0] / took
        rows.append(
            {"devices": count, "seconds": took, "speed_up": speed_up, "difference": difference(found, first[1])}
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def modelled(mol, density, divisions):
    """Times of the slowest of a sample of parts of a J+K build, and what follows for so many devices."""
    shells, matrix = two_electron_shells(mol)
    stack = (density if matrix is None else matrix @ density @ matrix.T)[None]

    def part_of(parts):
        @jax.jit
        def build(part, d):
            operands = (shells.centers, shells.exponents, shells.coefficients, d, part)
            static = dict(layout=(shells.ls, shells.nprims), cart=mol.cart, coulomb=True, exchange=True)
            return _jk.bind(*operands, parts=parts, omega=0.0, threshold=1e-13, symmetric=True, **static)

        return build

    whole = seconds(part_of(1), jnp.zeros(1, jnp.int32), stack)
    rows = [{"devices": 1, "seconds": whole}]
    for parts in divisions:
        build, chosen = part_of(parts), sorted({round(k * (parts - 1) / (SAMPLE - 1)) for k in range(SAMPLE)})
        times = [seconds(build, jnp.full(1, part, jnp.int32), stack) for part in chosen]
        link = LINKS.get(parts, LINKS[8] if parts <= 8 else LINKS[64])
        reduction = 2 * 2 * stack.nbytes * (parts - 1) / parts / link
        total = max(times) + reduction
        row = {"devices": parts, "slowest": max(times), "mean": statistics.mean(times), "reduction": reduction}
        rows.append(row | {"seconds": total, "efficiency": whole / total / parts})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    """Reads the arguments and runs each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", help="jk=FILE:BASIS or xc=FILE:BASIS")
    parser.add_argument("--devices", type=int, nargs="+")
    parser.add_argument("--parts", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--address", default="localhost:12321")
    options = parser.parse_args()
    if options.processes > 1:
        jax.distributed.initialize(options.address, options.processes, options.index)
    there = [1, jax.device_count()] if options.processes > 1 else [n for n in (1, 2, 4, 8) if n <= jax.device_count()]
    counts = options.devices or there
    found = {"device": jax.devices()[0].device_kind, "processes": options.processes}
    for system in options.systems:
        kind, _, rest = system.partition("=")
        file, _, basis = rest.rpartition(":")
        mol = jaxqc.Molecule(file, basis=basis)
        density = guess(mol)
        print(f"{system}: {mol.nao} functions", flush=True)
        found[system] = {"measured": measured(kind, mol, density, counts)}
        if kind == "jk":
            found[system]["model"] = modelled(mol, density, options.parts)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
