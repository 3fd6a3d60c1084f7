"""Times neural selected CI on one device: inference of the network, couplings, de-duplication, and one iteration.

    python experiments/nnqs_gpu_benchmark.py [NAME=FCIDUMP ...] [--parts inference couplings iteration]
        [--sources 4000 32000] [--json OUT]

Without files, N2/cc-pVDZ at 2.118 Bohr. Sources are the lowest configuration and those that are coupled to it, and to
these, largest elements first. The network is the paper's (arXiv:2604.15768): width 32, 4 layers, 4 heads, and a phase
perceptron of three times 512.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from device_trace import devices_during

import jaxqc
from jaxqc import nnqs
from jaxqc.nnqs._coupling import couple_fixed, round_capacity
from jaxqc.nnqs._cuda_network import random_weights
from jaxqc.nnqs._energy import distillation
from jaxqc.nnqs._network import PRECISIONS, Shape, log_probability
from jaxqc.nnqs._solve import Settings
from jaxqc.nnqs._solve_expand import by_amplitude
from jaxqc.nnqs._solve_run import _objective_of
from jaxqc.nnqs._solve_work import OneDevice, _estimate
from jaxqc.nnqs._tables import tables_of
from jaxqc.nnqs._train import Sector, TrainState, batch_size, evaluate

ATOMS = "N 0 0 0; N 0 0 1.12079733"
EPSILON = 1e-10
STEPS = 10
MEMORY = 16 << 30  # bytes for couplings


def fastest(function, repeats=3):
    """Seconds of the fastest call, the first one (which compiles) left out, and the result."""
    jax.block_until_ready(function())
    return repeated(function, repeats)


def repeated(function, repeats):
    """Seconds of the fastest of so many calls, and the result."""
    best = np.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        result = jax.block_until_ready(function())
        best = min(best, time.perf_counter() - begin)
    return best, result


def configurations_of(sector, number):
    """Random configurations near the lowest one."""
    random = np.random.default_rng(0)
    order = np.arange(sector.norb) + random.normal(scale=5.0, size=(number, 2, sector.norb))
    rank = np.argsort(np.argsort(order, axis=-1), axis=-1)
    return jnp.asarray(rank < np.array([[sector.nalpha], [sector.nbeta]]))


def networks(sector, weights):
    """The network as plain JAX and by the kernel, in single and in half precision; parameters of each."""
    norb = sector.norb
    first = nnqs.unpack(nnqs.aufbau(*sector), norb)
    made = jax.jit(nnqs.Transformer(*sector).init)(jax.random.key(0), first)
    own = {**{k: v for k, v in weights.items() if k != "blocks"}, **weights["blocks"]}
    for label, inference, dtype, precision in (
        ("kernel f32", "float32", jnp.float32, "default"),
        ("kernel f16", "float16", jnp.float32, "default"),
        ("plain f32", "plain", jnp.float32, "default"),
        ("plain bf16", "plain", jnp.bfloat16, "default"),
        ("plain f32, highest", "plain", jnp.float32, "highest"),
    ):
        module = nnqs.Transformer(*sector, inference=inference, dtype=dtype)
        parameters = {"params": {**made["params"], "_Conditionals_0": own}}
        yield label, precision, module, jax.tree.map(lambda x, d=dtype: jnp.asarray(x, d), parameters)


def inference(sector, number, emit):
    """Configurations/s of the whole ansatz and of its transformer; deviations from double precision."""
    weights = random_weights(sector.norb, 4)
    occupations = configurations_of(sector, number)
    keys, few = jax.jit(nnqs.pack)(occupations), min(number, 2048)
    exact = None
    for label, precision, module, parameters in networks(sector, weights):
        if exact is None:
            double = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), parameters)
            exact_module = nnqs.Transformer(*sector, inference="plain", dtype=jnp.float64)
            exact = jax.jit(exact_module.apply)(double, occupations[:few])
        with jax.default_matmul_precision(precision):
            whole, alone = jax.jit(module.apply), jax.jit(log_probability, static_argnums=2)
            begin = time.perf_counter()
            found = jax.block_until_ready(whole(parameters, occupations))
            row = {"part": "inference", "norb": sector.norb, "network": label}
            row["first_s"] = time.perf_counter() - begin
            for name, a, b in zip(("amplitude", "phase"), found, exact, strict=True):
                row[f"{name}_error"] = float(np.max(np.abs(np.asarray(a[:few]) - np.asarray(b))))
            row["per_s"] = number / fastest(lambda f=whole, p=parameters: f(p, occupations))[0]
            tree = parameters["params"]["_Conditionals_0"]
            ends = ("embedding", "position", "head", "head_bias")
            split = {k: tree[k] for k in ends} | {"blocks": {k: v for k, v in tree.items() if k not in ends}}
            numbers = sector.norb, sector.nalpha, sector.nbeta
            shape = Shape(*numbers, 32, 4, 4, jnp.dtype(module.dtype).name, module.inference)
            row["transformer_per_s"] = number / fastest(lambda f=alone, w=split, s=shape: f(w, occupations, s))[0]
            run = lambda f=module.apply, p=parameters: evaluate(f, p, keys, sector, batch_size(sector))  # noqa: E731
            row["in_batches_per_s"] = number / fastest(run, 2)[0]
        emit(row)


def sources_of(ham, number):
    """A sorted set: the lowest configuration, what is coupled to it, and to these, largest elements first."""
    found = np.asarray(nnqs.aufbau(ham.norb, ham.nalpha, ham.nbeta))
    while len(found) < number:
        coupled = nnqs.couple(ham, jnp.asarray(found[:1000][np.lexsort(found[:1000].T[::-1])]), epsilon=1e-3)
        count = int(coupled.count)
        order = np.argsort(-np.abs(np.asarray(coupled.elements[:count])), kind="stable")[: 20 * number]
        everything = np.concatenate([found, np.asarray(coupled.keys)[:count][order]])
        _, first = np.unique(everything, axis=0, return_index=True)
        found, before = everything[np.sort(first)], len(found)
        if len(found) == before:
            break
    keys = found[:number]
    return nnqs.Configurations(jnp.asarray(keys[np.lexsort(keys.T[::-1])]), jnp.int32(len(keys)))


def couplings(name, ham, sources, emit):
    """Couplings/s, and de-duplicated configurations/s."""
    configurations, tables = sources_of(ham, sources), tables_of(ham)
    keys, count = configurations
    limits = jnp.full(keys.shape[0], EPSILON)
    total = int(couple_fixed(ham, tables, keys, count, limits, capacity=1).count)
    capacity = round_capacity(total)
    seconds, coupled = fastest(lambda: couple_fixed(ham, tables, keys, count, limits, capacity=capacity))
    again, unique = fastest(lambda: nnqs.deduplicate(coupled.keys))
    emit({
        "part": "couplings", "system": name, "sources": int(count), "coupled": total, "ms": 1e3 * seconds,
        "per_s": total / seconds, "words": keys.shape[1], "deduplicate_ms": 1e3 * again,
        "deduplicate_per_s": total / again, "unique": int(unique.count),
    })  # fmt: skip


def deduplication(words, number, emit):
    """De-duplicated configurations/s of random keys, of which an eighth are different."""
    random = jax.random.bits(jax.random.key(0), (number, words), jnp.uint64)
    keys = jax.jit(lambda x: x.at[:, -1].set(x[:, -1] % jnp.uint64(number // 8)).at[:, :-1].set(jnp.uint64(5)))(random)
    seconds, unique = fastest(lambda: nnqs.deduplicate(keys))
    emit({
        "part": "de-duplication", "words": words, "keys": number, "unique": int(unique.count), "ms": 1e3 * seconds,
        "per_s": number / seconds,
    })  # fmt: skip


def iteration(name, ham, sources, emit, precision, repeats):
    """Milliseconds of each stage of one iteration of the paper's algorithm, and of the work of the device in it.

    "in_a_row" is the whole iteration when nothing waits between stages.
    """
    sector = Sector(ham.norb, ham.nalpha, ham.nbeta)
    module = nnqs.Transformer(*sector, inference=precision)
    settings = Settings(0, sources, 0, "connected", "amplitude", 0, 0, 1, 2, EPSILON, MEMORY)
    configurations = sources_of(ham, sources)
    parameters = jax.jit(module.init)(jax.random.key(0), nnqs.unpack(configurations.keys[:1], ham.norb))
    optimizer = optax.adamw(3e-4)
    with jax.numpy_dtype_promotion("standard"):
        state = TrainState(parameters, optimizer.init(parameters), jnp.int32(0))
    work = OneDevice(ham, settings, module.apply, sector, _objective_of(distillation), optimizer, STEPS)
    row = {"part": "iteration", "system": name, "sources": int(configurations.count)}
    found, seconds, vector = {}, {}, jnp.ones(int(configurations.count))
    stages = {
        "couple and de-duplicate": lambda: work.candidates(configurations),
        "inference": lambda: work.evaluate(parameters, found["couple and de-duplicate"].keys),
        "selection": lambda: by_amplitude(ham, found["couple and de-duplicate"], found["inference"][0], sources),
        "reverse index": lambda: work.task(configurations, vector),
        "energy": lambda: _estimate(*found["inference"], found["reverse index"].links),
        "training step": lambda: work.train(state, found["reverse index"], 0.0, 1),
    }
    for stage, function in stages.items():
        begin = time.perf_counter()
        jax.block_until_ready(function())
        row[f"{stage}_first_s"] = time.perf_counter() - begin
        seconds[stage], found[stage] = repeated(function, repeats)
        row[f"{stage}_ms"] = 1e3 * seconds[stage]
        traced = devices_during(function) if jax.default_backend() == "gpu" else []
        row |= {f"{stage}_work_ms": device["work"] for device in traced}
        print(f"# {stage}: {row[f'{stage}_ms']:.2f} ms, {traced}", flush=True)

    def in_a_row():
        for stage, function in stages.items():
            found[stage] = function()
        return found

    row["in_a_row_ms"] = 1e3 * repeated(in_a_row, repeats)[0]
    row["unique"] = int(found["couple and de-duplicate"].count)
    whole = sum(seconds.values())
    shares = {f"{stage}_share": round(s / whole, 3) for stage, s in seconds.items()}
    busy = sum(value for name, value in row.items() if name.endswith("_work_ms"))
    emit(row | shares | {"whole_ms": 1e3 * whole, "whole_work_ms": busy})


def main(options):
    rows = []

    def emit(row):
        rows.append({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()})
        print(json.dumps(rows[-1]), flush=True)

    if "inference" in options.parts:
        for norb in options.orbitals:
            inference(Sector(norb, norb // 2, norb // 2), options.number, emit)
    if "de-duplication" in options.parts:
        for words in (1, 2):
            deduplication(words, options.keys, emit)
    if {"couplings", "iteration"} & set(options.parts):
        for given in options.systems or ["N2/cc-pVDZ="]:
            name, file = given.split("=")
            if file:
                ham = nnqs.Hamiltonian.from_fcidump(file)
            else:
                ham = nnqs.Hamiltonian.from_molecule(jaxqc.Molecule(ATOMS, basis="cc-pvdz"))
            stages = partial(iteration, precision=options.inference, repeats=options.repeats)
            for part, function in (("couplings", couplings), ("iteration", stages)):
                for sources in options.sources if part in options.parts else ():
                    function(name, ham, sources, emit)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    parts = ("inference", "de-duplication", "couplings", "iteration")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", help="NAME=FCIDUMP (default N2/cc-pVDZ)")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what to time (default all)")
    parser.add_argument("--sources", type=int, nargs="+", default=[4000, 32000], help="(default 4000 32000)")
    parser.add_argument("--orbitals", type=int, nargs="+", default=[42, 28], help="of inference (default 42 28)")
    parser.add_argument("--number", type=int, default=1 << 17, help="configurations of inference (default 2^17)")
    parser.add_argument("--inference", choices=PRECISIONS, default="float32", help="of an iteration (default float32)")
    parser.add_argument("--repeats", type=int, default=2, help="of each stage of an iteration (default 2)")
    parser.add_argument("--keys", type=int, default=1 << 27, help="keys of de-duplication (default 2^27)")
    parser.add_argument("--json", help="file for all rows")
    main(parser.parse_args())
