"""How neural selected CI scales over devices: the stages of one iteration, strong and weak, and the balance of shares.

    python experiments/nnqs_scaling.py [--sources 32000] [--devices 1 2 4 8] [--parts 8 64 512] [--plot scaling.png]

N2 at 2.118 Bohr in cc-pVDZ, or an FCIDUMP. Sources are chosen once: the lowest configuration and those that are coupled
to it, and to these. An iteration is that of the paper: couplings of all sources and de-duplication, inference over
everything that is coupled, the choice of the next set, and a step of the optimiser on the local energies of the
sources, which needs their couplings again ("reverse index") and another inference. Strong: the same sources on all
meshes. Weak: as many sources for each device. Numbers of what came out (`keys`, `amplitudes`, `parameters`) are sums of
bits, which must not depend on the number of devices. Without GPUs,
`XLA_FLAGS=--xla_force_host_platform_device_count=8` gives devices to try it on.

With `--processes N` and one process for each index (`--index`, `--address HOST:PORT`), each with its own device, the
strong one over all devices; the first process writes.

The model of more devices than there are (`--parts`) has the time that one device takes for its share of sources,
inference and derivatives, the slowest of a sample of shares; what every device does for itself takes as long as here;
exchanged keys, amplitudes and gradients go through the slowest link.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from device_trace import LINKS, devices_during, losses
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from nnqs_gpu_benchmark import ATOMS, EPSILON, fastest, sources_of

import jaxqc
from jaxqc import nnqs
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._energy import distillation
from jaxqc.nnqs._mesh_expand import connected_links
from jaxqc.nnqs._mesh_train import MeshNetwork
from jaxqc.nnqs._solve import Settings
from jaxqc.nnqs._solve_expand import by_amplitude
from jaxqc.nnqs._solve_run import _objective_of
from jaxqc.nnqs._solve_work import ManyDevices, OneDevice
from jaxqc.nnqs._train import Sector, TrainState, occupations_of

STAGES = ("couple and de-duplicate", "inference", "choice", "reverse index", "training step")


class Setup(NamedTuple):
    """What all measurements share."""

    ham: Any
    state: TrainState
    work: OneDevice
    repeats: int


def prepared(ham, options):
    """The paper's network with its optimiser."""
    sector = Sector(ham.norb, ham.nalpha, ham.nbeta)
    module = nnqs.Transformer(*sector)
    settings = Settings(0, 1, 0, "connected", "amplitude", 0, 0, 1, 2, EPSILON, int(options.memory * 2**30))
    first = nnqs.unpack(nnqs.aufbau(*sector), ham.norb)
    parameters = jax.jit(module.init)(jax.random.key(0), first)
    optimizer = optax.adamw(3e-4)
    with jax.numpy_dtype_promotion("standard"):
        state = TrainState(parameters, optimizer.init(parameters), jnp.int32(0))
    work = OneDevice(ham, settings, module.apply, sector, _objective_of(distillation), optimizer, 1)
    return Setup(ham, state, work, options.repeats)


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


def measure(setup, configurations, mesh):
    """Times in seconds of the stages of one iteration; without a mesh, as `solve` works on one device."""
    ham, state = setup.ham, setup.state
    work = setup.work if mesh is None else ManyDevices(setup.work, mesh)
    size, found, times = int(configurations.count), {}, {}
    vector = jnp.ones(size) / size**0.5
    stages = {
        STAGES[0]: lambda: work.candidates(configurations),
        STAGES[1]: lambda: work.evaluate(state.parameters, found[STAGES[0]].keys),
        STAGES[2]: lambda: by_amplitude(ham, found[STAGES[0]], found[STAGES[1]][0], 2 * size).keys,
        STAGES[3]: lambda: jax.tree.leaves(work.task(configurations, vector)),
        STAGES[4]: lambda: work.train(state, found["task"], 0.0, 1),
    }
    for stage, function in stages.items():
        if stage == STAGES[4]:
            found["task"] = work.task(configurations, vector)
        times[stage], found[stage] = fastest(function, setup.repeats)
    union, amplitudes, trained = found[STAGES[0]], found[STAGES[1]][0], found[STAGES[4]][0]
    count = int(union.count)
    row = {
        "devices": 1 if mesh is None else mesh.devices.size, "mesh": mesh is not None, "sources": size,
        "unique": count, **times, "iteration": sum(times.values()), "keys": bits(union.keys[:count]),
        "amplitudes": bits(amplitudes[:count]), "parameters": bits(jax.tree.map(np.asarray, trained.parameters)),
    }  # fmt: skip
    if mesh is not None and mesh.devices.size > 1:
        if jax.process_count() == 1:
            row["balance"] = balance(union, mesh)
        if jax.devices()[0].platform == "gpu":
            row["trace"] = {stage: devices_during(stages[stage]) for stage in STAGES}
            row["lost"] = {stage: losses(devices) for stage, devices in row["trace"].items()}
    return row


@partial(jax.jit, static_argnames=("apply", "sector"))
def _pullback(apply, parameters, keys, sector):
    outputs, pullback = jax.vjp(lambda p: apply(p, occupations_of(keys, sector)), parameters)
    return pullback(jax.tree.map(jnp.ones_like, outputs))[0]


def modelled(setup, configurations, alone, divisions):
    """Rows of times in seconds of the stages on so many devices, from `alone`, those of one, and from timed shares."""
    work, parameters = setup.work, setup.state.parameters
    keys, total, words = configurations.keys, int(configurations.count), configurations.keys.shape[1]
    union = work.candidates(configurations)
    unique = int(union.count)
    mesh = nnqs.make_mesh(1)
    dealt = MeshNetwork(mesh, work.apply, work.sector, work.batch).deal(union.keys)[1]
    limits = work.settings.epsilon, work.settings.memory
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(parameters))

    def timed(function):
        return fastest(function, setup.repeats)[0]

    def backward(rows):
        batches = -(-rows // work.batch)
        return batches * timed(lambda: _pullback(work.apply, parameters, keys[: -(-rows // batches)], work.sector))

    # Energies and their derivatives, which every device makes of all amplitudes.
    common = max(0.0, alone[STAGES[4]] - alone[STAGES[1]] - backward(total))
    for parts in divisions:
        share, link = -(-total // parts), LINKS[parts]
        times, links, local = [], [], []
        for part in (0, parts // 4, parts // 2):
            own = keys[part * share : (part + 1) * share]
            mine = nnqs.Configurations(own, jnp.int32(own.shape[0]))
            took, found = fastest(lambda c=mine: work.candidates(c), setup.repeats)
            again = timed(lambda k=found.keys: nnqs.deduplicate(k).keys)
            links.append(
                timed(lambda c=mine: jax.tree.leaves(connected_links(work.ham, c, dealt, union, *limits, mesh)))
            )
            local.append(int(found.count))
            times.append(took + again)
        fraction = (parts - 1) / parts
        inference = timed(lambda n=-(-union.keys.shape[0] // parts): work.evaluate(parameters, union.keys[:n]))
        amplitudes = 16 * unique * fraction / link
        gradients = np.lcm(8, parts) * weights * fraction / link
        exchange = 8 * words * (max(local) + unique) * fraction / link
        stages = (
            max(times) + exchange,
            inference + amplitudes,
            alone[STAGES[2]],
            max(links),
            inference + amplitudes + common + backward(share) + gradients,
        )
        row = dict(zip(STAGES, map(float, stages), strict=True))
        whole, before = sum(row.values()), sum(alone[stage] for stage in STAGES)
        exchanged = exchange + 2 * amplitudes + gradients
        row = {"kind": "model", "devices": parts, "sources": total} | row
        yield row | {"iteration": whole, "exchange": float(exchanged), "efficiency": before / whole / parts}


def plot(rows, path):
    """Time of each stage against devices, with the ideal."""
    import matplotlib.pyplot as plt

    kinds = [kind for kind in ("strong", "weak", "model") if any(row["kind"] == kind for row in rows)]
    figure, axes = plt.subplots(1, len(kinds), figsize=(4.5 * len(kinds), 3.6), constrained_layout=True, squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        chosen = [row for row in rows if row["kind"] == kind and row.get("mesh", True)]
        devices = np.array([row["devices"] for row in chosen])
        for stage in (*STAGES, "iteration"):
            seconds = np.array([row[stage] for row in chosen])
            axis.loglog(devices, seconds, "o-", label=stage, base=2)
            ideal = seconds[0] * (np.ones(len(devices)) if kind == "weak" else devices[0] / devices)
            axis.loglog(devices, ideal, "k:", linewidth=0.8, base=2)
        axis.set(title="model" if kind == "model" else f"{kind} scaling", xlabel="devices", ylabel="seconds")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main(options):
    if options.processes > 1:
        jax.distributed.initialize(options.address, options.processes, options.index)
    if options.fcidump:
        ham = nnqs.Hamiltonian.from_fcidump(options.fcidump)
    else:
        ham = nnqs.Hamiltonian.from_molecule(jaxqc.Molecule(ATOMS, basis=options.basis))
    all_of_them = jax.device_count()
    numbers = options.devices or [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= all_of_them]
    kinds = ("strong", "weak")
    if options.processes > 1:
        numbers, kinds = [all_of_them], ("strong",)
    setup, rows = prepared(ham, options), []

    def put_down(row):
        rows.append(row)
        if jax.process_index() == 0:
            print(json.dumps(row), flush=True)
        if options.plot and jax.process_index() == 0:
            Path(options.plot).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")

    for kind in kinds:
        for number in numbers:
            size = options.sources * (number if kind == "weak" else 1)
            same = [row for row in rows if row["mesh"] and (row["devices"], row["sources"]) == (number, size)]
            if same:
                put_down(same[0] | {"kind": kind})
                continue
            mesh = nnqs.make_mesh(number)
            configurations = sources_of(ham, size)
            put_down({"kind": kind} | measure(setup, configurations, mesh))
            if kind == "strong" and number == 1:
                alone = measure(setup, configurations, None)
                put_down({"kind": kind} | alone)
                for row in modelled(setup, configurations, alone, options.parts):
                    put_down(row | {"mesh": True})
    if options.plot and jax.process_index() == 0 and len(kinds) == 2:
        plot(rows, options.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--basis", default="cc-pvdz", help="basis set (default cc-pvdz)")
    parser.add_argument("--fcidump", help="integrals instead of N2's")
    parser.add_argument("--sources", type=int, default=4000, help="configurations; in weak scaling for each device")
    parser.add_argument("--devices", type=int, nargs="+", help="numbers of devices (default: powers of two)")
    parser.add_argument(
        "--parts", type=int, nargs="*", choices=LINKS, default=[8, 64, 512], help="devices of the model"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (default 3)")
    parser.add_argument("--memory", type=float, default=2.0, help="budget of couplings in GiB (default 2)")
    parser.add_argument("--plot", help="file of the figure; numbers are written beside it")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--address", default="localhost:12322")
    main(parser.parse_args())
