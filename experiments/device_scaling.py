"""How J+K builds and exchange-correlation steps scale over devices, and a model of more devices than there are.

    python experiments/device_scaling.py jk=tamoxifen.xyz:cc-pvtz xc=chain.xyz:def2-svp [--devices 1 2] [--parts 8 64]

On as many devices as there are (virtual ones of the CPU with XLA_FLAGS=--xla_force_host_platform_device_count=8):
times, speed-ups, the largest difference from the result of one device, and on GPUs what each device did (work,
exchange, idle). With `--processes N` and one process for each index (`--index`, `--address HOST:PORT`), each with its
own device, the same over the devices of all processes.

The model: with n devices a call takes as long as the slowest of n parts, which is timed here on one device (a sample of
the parts), plus the sum of the matrices over devices, 2 (n - 1) / n of their bytes through the slowest link.
"""

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from device_trace import LINKS, devices_during, losses
from jax.experimental import multihost_utils

import jaxqc
from jaxqc._bound_functional import bind
from jaxqc._parallel import replicated
from jaxqc.integrals._decontraction import two_electron_shells
from jaxqc.integrals._jk import _jk
from jaxqc.xc import build_layout, functional, shard_layout
from jaxqc.xc._grid import place
from jaxqc.xc._potential import _compiled as single_step
from jaxqc.xc._potential import _step
from jaxqc.xc._sharding import _compiled as sharded_step
from jaxqc.xc._sharding import _deal

SAMPLE = 5  # parts that are timed of each division


def seconds(function, *arguments, least=0.2):
    """Median over 3 of the mean time of calls enqueued one after the other, after one that compiles and one that tells
    how many make `least` seconds."""
    jax.block_until_ready(function(*arguments))
    begin = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    repeat = max(1, min(20, round(least / (time.perf_counter() - begin))))
    if jax.process_count() > 1:  # all of them call it as often
        repeat = int(multihost_utils.broadcast_one_to_all(np.int32(repeat)))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeat):
            out = function(*arguments)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - begin) / repeat)
    return statistics.median(times)


def guess(mol):
    """A density matrix of the size of the converged one."""
    from pyscf.scf import hf

    return jnp.asarray(np.asarray(hf.init_guess_by_minao(mol.to_pyscf())))


def difference(a, b):
    """The largest difference of two results."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return float(np.max([np.max(np.abs(np.asarray(x) - np.asarray(y))) for x, y in pairs]))


class Builds:
    """J and K of a molecule as one call."""

    def __init__(self, mol, options):
        del options
        self.mol = mol

    def over(self, mesh, density):
        """A compiled function of the density, and the density on all devices."""
        mol = replicated(self.mol, mesh)
        build = jax.jit(lambda mol, d: jaxqc.integrals.jk(mol, d, symmetric=True, mesh=mesh))
        return build, (mol, replicated(density, mesh))

    def part(self, parts, density):
        """A compiled function of the number of a part, for one device."""
        shells, matrix = two_electron_shells(self.mol)
        stack = (density if matrix is None else matrix @ density @ matrix.T)[None]
        static = dict(layout=(shells.ls, shells.nprims), cart=self.mol.cart, coulomb=True, exchange=True)

        @jax.jit
        def build(part, d):
            operands = (shells.centers, shells.exponents, shells.coefficients, d, part[None])
            return _jk.bind(*operands, parts=parts, omega=0.0, threshold=1e-13, symmetric=True, **static)

        return lambda part: build(part, stack), 2 * stack.nbytes


class Steps:
    """Energy and potential of a functional on a grid as one call."""

    def __init__(self, mol, options):
        self.mol, self.xc = mol, functional(options.xc)
        grid = place(jaxqc.xc.Grid(mol, level=options.level).template, mol.coords)
        kept = np.flatnonzero(np.asarray(grid.weights))
        self.layout = build_layout(mol, grid.coords[kept], grid.weights[kept])

    def over(self, mesh, density):
        """A compiled function of the density, and the density on all devices."""
        bound, parameters = bind(self.xc)
        layout = self.layout if mesh is None else shard_layout(self.mol, self.layout, mesh)

        compiled = single_step if mesh is None else sharded_step
        mol, density, parameters = replicated((self.mol, density, parameters), mesh)
        return partial(compiled, bound=bound), (mol, layout, density, parameters)

    def part(self, parts, density):
        """A compiled function of the number of a part, for one device."""
        bound, parameters = bind(self.xc)
        ls = np.asarray([shell.l for shell in self.mol.shells])
        sizes = (ls + 1) * (ls + 2) // 2 if self.mol.cart else 2 * ls + 1
        dealt, _ = _deal(self.layout, parts, tuple(sizes.tolist()))
        step = jax.jit(lambda layout, d: _step(self.mol, layout, d, parameters, bound))

        def build(part):
            def take(x):
                return x.reshape(parts, -1, *x.shape[1:])[int(part)] if x.ndim else x

            return step(jax.tree.map(take, dealt), density)

        return build, density.nbytes


def measured(kind, density, counts, trace):
    """Times on several devices, and differences from the first result."""
    rows, first = [], None
    for count in counts:
        mesh = jax.make_mesh((count,), ("grid",), devices=jax.devices()[:count]) if count > 1 else None
        build, arguments = kind.over(mesh, density)
        took, found = seconds(build, *arguments), build(*arguments)
        first = first or (took, found)
        row = {"devices": count, "seconds": took, "speed_up": counts[0] * first[0] / took}
        rows.append(row | {"difference": difference(found, first[1])})
        if trace and count > 1:
            rows[-1]["trace"] = devices_during(build, *arguments)
            rows[-1]["lost"] = losses(rows[-1]["trace"])
        if jax.process_index() == 0:
            print(json.dumps(rows[-1]), flush=True)
    return rows


def modelled(kind, density, divisions):
    """Times of the slowest of a sample of parts, and what follows for so many devices."""
    whole_part, _ = kind.part(1, density)
    whole = seconds(whole_part, jnp.int32(0))
    rows = [{"devices": 1, "seconds": whole}]
    for parts in divisions:
        build, nbytes = kind.part(parts, density)
        chosen = sorted({round(k * (parts - 1) / (SAMPLE - 1)) for k in range(SAMPLE)})
        times = [seconds(build, jnp.int32(part), least=0.05) for part in chosen]
        reduction = 2 * nbytes * (parts - 1) / parts / LINKS[parts]
        total = max(times) + reduction
        row = {"devices": parts, "slowest": max(times), "mean": statistics.mean(times), "reduction": reduction}
        rows.append(row | {"seconds": total, "efficiency": whole / total / parts})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def plot(found, path):
    """Parallel efficiency against devices: measured, and what the model says."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.4, 3.6), constrained_layout=True)
    systems = [(name, result) for name, result in found.items() if isinstance(result, dict)]
    for number, (name, result) in enumerate(systems):
        kind, _, rest = name.partition("=")
        label = f"{'J+K' if kind == 'jk' else 'XC'} {Path(rest.rpartition(':')[0]).stem} {rest.rpartition(':')[2]}"
        there = result["measured"]
        efficiency = [row["speed_up"] / row["devices"] for row in there]
        axis.plot([row["devices"] for row in there], efficiency, "o", color=f"C{number}", label=label)
        model = result.get("model", [])
        efficiency = [row.get("efficiency", 1.0) for row in model]
        axis.plot([row["devices"] for row in model], efficiency, "--", color=f"C{number}")
    axis.set(xlabel="GPUs (points: measured, lines: model)", ylabel="parallel efficiency", ylim=(0, 1.05))
    axis.set_xscale("log", base=2)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main():
    """Reads the arguments and runs each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", help="jk=FILE:BASIS or xc=FILE:BASIS")
    parser.add_argument("--devices", type=int, nargs="+")
    parser.add_argument("--parts", type=int, nargs="*", choices=LINKS, default=[8, 64, 512])
    parser.add_argument("--xc", default="b3lyp")
    parser.add_argument("--level", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--address", default="localhost:12321")
    options = parser.parse_args()
    if options.processes > 1:
        jax.distributed.initialize(options.address, options.processes, options.index)
    there = [1, jax.device_count()] if options.processes > 1 else [n for n in (1, 2, 4, 8) if n <= jax.device_count()]
    counts = options.devices or there
    gpu = jax.devices()[0].platform == "gpu"
    found = {"device": jax.devices()[0].device_kind, "processes": options.processes}
    for system in options.systems:
        name, _, rest = system.partition("=")
        file, _, basis = rest.rpartition(":")
        mol = jaxqc.Molecule(file, basis=basis)
        density = guess(mol)
        if jax.process_index() == 0:
            print(f"{system}: {mol.nao} functions", flush=True)
        kind = {"jk": Builds, "xc": Steps}[name](mol, options)
        found[system] = {"measured": measured(kind, density, counts, gpu)}
        if options.processes == 1 and options.parts:
            found[system]["model"] = modelled(kind, density, options.parts)
        if options.json and jax.process_index() == 0:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot and jax.process_index() == 0:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
