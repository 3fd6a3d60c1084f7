"""How neural selected CI scales over devices: the stages of one iteration, strong and weak, and the balance of shares.

    python experiments/nnqs_scaling.py [--basis cc-pvdz] [--sources 32000] [--devices 1 2 4 8] [--plot scaling.png]

N2 at 2.118 Bohr. A set is selected once. An iteration is that of the paper: couplings of all sources and
de-duplication, inference over everything that is coupled, the choice of the next set, and a step of the optimiser on
the sources. Strong: the same sources on all meshes. Weak: as many sources for each device. Numbers of what came out
(`keys`, `amplitudes`, `parameters`) are sums of bits, which must not depend on the number of devices. Without GPUs,
`XLA_FLAGS=--xla_force_host_platform_device_count=8` gives devices to try it on.

With `--processes N` and one process for each index (`--index`, `--address HOST:PORT`), each with its own device, the
strong one over all devices; the first process writes.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from device_trace import devices_during
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxqc
from jaxqc import nnqs
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._energy import distillation
from jaxqc.nnqs._solve import Settings
from jaxqc.nnqs._solve_expand import by_amplitude
from jaxqc.nnqs._solve_run import _objective_of
from jaxqc.nnqs._solve_work import ManyDevices, OneDevice
from jaxqc.nnqs._train import Sector, TrainState

ATOMS = "N 0 0 0; N 0 0 1.12079733"
STEPS = 10
STAGES = ("couple and de-duplicate", "inference", "choice", "training step")


def fastest(function, repeats):
    """Seconds, the first call (which compiles) left out, and the result."""
    result, best = jax.block_until_ready(function()), np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        best = min(best, time.perf_counter() - start)
    return best, result


@jax.jit
def _bits(leaf):
    words = leaf if leaf.dtype == jnp.uint64 else jax.lax.bitcast_convert_type(leaf.astype(jnp.float64), jnp.uint64)
    words = (words ^ (words >> 29)).reshape(-1)  # float32 has zeros at the end
    return jnp.sum(words * (2 * jnp.arange(leaf.size, dtype=jnp.uint64) + jnp.uint64(1)), dtype=jnp.uint64)


def bits(tree):
    """A sum over the bits of arrays, each weighted with its place."""
    return f"{sum(int(_bits(jnp.asarray(leaf))) for leaf in jax.tree.leaves(tree)) % 2**64:016x}"


def balance(union, mesh):
    """Largest over smallest share of the unique configurations, counted after de-duplication over the mesh."""
    size, count = mesh.devices.size, int(union.count)
    rows = -(-count // size)
    padded = np.full((rows * size, union.keys.shape[1]), SENTINEL)
    padded[:count] = np.asarray(union.keys[:count])
    keys = jax.make_array_from_callback(padded.shape, NamedSharding(mesh, P("devices")), lambda index: padded[index])
    unique = nnqs.deduplicate(keys, mesh)
    share = -(-unique.keys.shape[0] // size)
    shares = np.diff(np.minimum(np.arange(size + 1) * share, count))
    return float(shares.max() / max(1, shares.min()))


def measure(ham, configurations, mesh, options):
    """Times in seconds of the stages of one iteration; without a mesh, as `solve` works on one device."""
    module = nnqs.Transformer(ham.norb, ham.nalpha, ham.nbeta)
    sector = Sector(ham.norb, ham.nalpha, ham.nbeta)
    memory = int(options.memory * 2**30)
    settings = Settings(0, 1, 0, "projected", "amplitude", 0, 0, 1, 2, 1e-10, memory)
    first = nnqs.unpack(configurations.keys[:1], ham.norb)
    parameters = module.init(jax.random.key(0), first)
    optimizer = optax.adamw(3e-4)
    with jax.numpy_dtype_promotion("standard"):
        state = TrainState(parameters, optimizer.init(parameters), jnp.int32(0))
    work = OneDevice(ham, settings, module.apply, sector, _objective_of(distillation), optimizer, STEPS)
    work = work if mesh is None else ManyDevices(work, mesh)
    size, times = int(configurations.count), {}
    times[STAGES[0]], union = fastest(lambda: work.candidates(configurations), options.repeats)
    times[STAGES[1]], (amplitudes, _) = fastest(lambda: work.evaluate(parameters, union.keys), options.repeats)
    times[STAGES[2]], _ = fastest(lambda: by_amplitude(ham, union, amplitudes, 2 * size).keys, options.repeats)
    task = work.task(configurations, jnp.ones(size) / size**0.5)
    took, (trained, _) = fastest(lambda: work.train(state, task, 0.0, STEPS), options.repeats)
    times[STAGES[3]] = took / STEPS
    count = int(union.count)
    row = {
        "devices": 1 if mesh is None else mesh.devices.size, "mesh": mesh is not None, "sources": size,
        "unique": count, **times, "iteration": sum(times.values()), "keys": bits(union.keys[:count]),
        "amplitudes": bits(amplitudes[:count]), "parameters": bits(jax.tree.map(np.asarray, trained.parameters)),
    }  # fmt: skip
    if mesh is not None and jax.process_count() == 1:
        row["balance"] = balance(union, mesh)
    if mesh is not None and jax.devices()[0].platform == "gpu":
        row["trace"] = {
            "couple and de-duplicate": devices_during(lambda: work.candidates(configurations).keys),
            "inference": devices_during(lambda: work.evaluate(parameters, union.keys)),
            "training steps": devices_during(lambda: work.train(state, task, 0.0, STEPS)),
        }
    return row


def plot(rows, path):
    """Time of each stage against devices, with the ideal."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for axis, kind in zip(axes, ("strong", "weak"), strict=True):
        chosen = [row for row in rows if row["kind"] == kind and row["mesh"]]
        devices = np.array([row["devices"] for row in chosen])
        for stage in (*STAGES, "iteration"):
            seconds = np.array([row[stage] for row in chosen])
            axis.loglog(devices, seconds, "o-", label=stage, base=2)
            ideal = seconds[0] * (devices[0] / devices if kind == "strong" else np.ones(len(devices)))
            axis.loglog(devices, ideal, "k:", linewidth=0.8, base=2)
        axis.set(title=f"{kind} scaling", xlabel="devices", ylabel="seconds")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(options):
    if options.processes > 1:
        jax.distributed.initialize(options.address, options.processes, options.index)
    mol = jaxqc.Molecule(ATOMS, basis=options.basis)
    ham = nnqs.Hamiltonian.from_molecule(mol)
    all_of_them = jax.device_count()
    numbers = options.devices or [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= all_of_them]
    kinds = ("strong", "weak")
    if options.processes > 1:
        numbers, kinds = [all_of_them], ("strong",)
    start = time.perf_counter()
    largest = options.sources * (max(numbers) if "weak" in kinds else 1)
    space = nnqs.selected_ci(ham, largest, epsilon=1e-6).configurations
    rows = []

    def put_down(row):
        rows.append(row)
        if jax.process_index() == 0:
            print(json.dumps(row), flush=True)
        if options.plot and jax.process_index() == 0:
            Path(options.plot).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")

    if jax.process_index() == 0:
        print(f"set of {int(space.count)} in {time.perf_counter() - start:.1f} s", flush=True)
    for kind in kinds:
        for number in numbers:
            size = min(options.sources * (number if kind == "weak" else 1), int(space.count))
            same = [row for row in rows if row["mesh"] and (row["devices"], row["sources"]) == (number, size)]
            if same:
                put_down(same[0] | {"kind": kind})
                continue
            mesh = jax.make_mesh((number,), ("devices",), devices=jax.devices()[:number])
            configurations = nnqs.Configurations(jnp.asarray(np.asarray(space.keys[:size])), jnp.int32(size))
            put_down({"kind": kind} | measure(ham, configurations, mesh, options))
            if kind == "strong" and number == 1:
                put_down({"kind": kind} | measure(ham, configurations, None, options))
    if options.plot and jax.process_index() == 0 and len(kinds) == 2:
        plot(rows, options.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--basis", default="cc-pvdz", help="basis set (default cc-pvdz)")
    parser.add_argument("--sources", type=int, default=4000, help="configurations; in weak scaling for each device")
    parser.add_argument("--devices", type=int, nargs="+", help="numbers of devices (default: powers of two)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (default 3)")
    parser.add_argument("--memory", type=float, default=2.0, help="budget of couplings in GiB (default 2)")
    parser.add_argument("--plot", help="file of the figure; numbers are written beside it")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--address", default="localhost:12322")
    main(parser.parse_args())
