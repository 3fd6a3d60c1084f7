"""How neural selected CI scales over devices: the stages of one iteration, strong and weak, and the balance of shares.

    python experiments/nnqs_scaling.py [--basis cc-pvdz] [--sources 4000] [--devices 1 2 4 8] [--plot scaling.png]

N2 at 2.118 Bohr. A set is selected once; then couplings and de-duplication, inference over everything that is coupled,
and steps of the optimiser are timed over meshes of some of the devices. Strong: the same sources on all meshes. Weak:
as many sources for each device. Without GPUs, `XLA_FLAGS=--xla_force_host_platform_device_count=8` gives devices to
try it on. Under `jax.distributed` every process runs it, and the first one writes.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxqc
from jaxqc import nnqs
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._energy import distillation
from jaxqc.nnqs._mesh_expand import candidates
from jaxqc.nnqs._solve import Settings
from jaxqc.nnqs._solve_run import _objective_of
from jaxqc.nnqs._solve_work import ManyDevices, OneDevice
from jaxqc.nnqs._train import Sector, TrainState

ATOMS = "N 0 0 0; N 0 0 1.12079733"
STEPS = 10


def fastest(function, repeats):
    """Seconds, the first call (which compiles) left out, and the result."""
    result, best = jax.block_until_ready(function()), np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        best = min(best, time.perf_counter() - start)
    return best, result


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


def measure(ham, configurations, mesh, repeats):
    """Times in seconds of the stages of one iteration."""
    module = nnqs.Transformer(ham.norb, ham.nalpha, ham.nbeta)
    sector = Sector(ham.norb, ham.nalpha, ham.nbeta)
    settings = Settings(0, 1, 0, "projected", "amplitude", 0, 0, 1, 2, 1e-10, 2 << 30)
    parameters = module.init(jax.random.key(0), nnqs.unpack(configurations.keys[:1], ham.norb))
    optimizer = optax.adamw(3e-4)
    with jax.numpy_dtype_promotion("standard"):
        state = TrainState(parameters, optimizer.init(parameters), jnp.int32(0))
    one = OneDevice(ham, settings, module.apply, sector, _objective_of(distillation), optimizer, STEPS)
    work = ManyDevices(one, mesh)
    expand, union = fastest(lambda: candidates(ham, configurations, settings.epsilon, settings.memory, mesh), repeats)
    infer, _ = fastest(lambda: work.evaluate(parameters, union.keys), repeats)
    task = work.task(configurations, jnp.zeros(int(configurations.count)))
    train, _ = fastest(lambda: work.train(state, task, 0.0, STEPS), repeats)
    return {
        "devices": mesh.devices.size, "sources": int(configurations.count), "unique": int(union.count),
        "couple and de-duplicate": expand, "inference": infer, "training step": train / STEPS,
        "balance": balance(union, mesh),
    }  # fmt: skip


def plot(rows, path):
    """Time of each stage against devices, with the ideal."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for axis, kind in zip(axes, ("strong", "weak"), strict=True):
        chosen = [row for row in rows if row["kind"] == kind]
        devices = np.array([row["devices"] for row in chosen])
        for stage in ("couple and de-duplicate", "inference", "training step"):
            seconds = np.array([row[stage] for row in chosen])
            axis.loglog(devices, seconds, "o-", label=stage, base=2)
            ideal = seconds[0] * (devices[0] / devices if kind == "strong" else np.ones(len(devices)))
            axis.loglog(devices, ideal, "k:", linewidth=0.8, base=2)
        axis.set(title=f"{kind} scaling", xlabel="devices", ylabel="seconds")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(options):
    mol = jaxqc.Molecule(ATOMS, basis=options.basis)
    ham = nnqs.Hamiltonian.from_molecule(mol)
    numbers = options.devices or [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= jax.device_count()]
    largest = options.sources * max(numbers)
    space = nnqs.selected_ci(ham, largest, epsilon=1e-6).configurations
    rows = []
    for kind in ("strong", "weak"):
        for number in numbers:
            size = min(options.sources * (number if kind == "weak" else 1), int(space.count))
            mesh = jax.make_mesh((number,), ("devices",), devices=jax.devices()[:number])
            configurations = nnqs.Configurations(space.keys[:size], jnp.int32(size))
            row = {"kind": kind} | measure(ham, configurations, mesh, options.repeats)
            rows.append(row)
            if jax.process_index() == 0:
                print(json.dumps(row), flush=True)
    if options.plot and jax.process_index() == 0:
        Path(options.plot).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        plot(rows, options.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--basis", default="cc-pvdz", help="basis set (default cc-pvdz)")
    parser.add_argument("--sources", type=int, default=4000, help="configurations; in weak scaling for each device")
    parser.add_argument("--devices", type=int, nargs="+", help="numbers of devices (default: powers of two)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (default 3)")
    parser.add_argument("--plot", help="file of the figure; numbers are written beside it")
    main(parser.parse_args())
