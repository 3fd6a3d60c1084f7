"""jaxqc against PySCF on this CPU: `python experiments/cpu_benchmark.py [--quick] [--threads 1 2] [--parts jk ...]`.

Both programs get the same molecules, threads, density and screening threshold (1e-13), in one process, in turns. Writes
`experiments/cpu_benchmark.md`. What is timed:

- `jk`: one direct J+K build, the whole call. jaxqc: the compiled `jaxqc.integrals.jk`, at a new geometry (shell pairs
  prepared inside the call) and again at the same one (pairs still in the cache). PySCF: `_vhf.direct` with its
  `_VHFOpt` (Schwarz bounds) prepared outside the timing, which favours PySCF in the first comparison.
- `gradient`: the nuclear gradient from converged orbitals. PySCF: `mf.nuc_grad_method().kernel()`.
- `scf`: a whole direct RHF calculation at a new geometry from each program's own default guess to its own default
  thresholds; integrals are never stored (PySCF builds Fock matrices incrementally).
- `memory`: the peak resident memory of RHF of (H2O)10 in cc-pVTZ, in a process of its own.

Compilation by XLA happens once for a molecule and is outside the timing, except in the column "first call".
Wall times are the least of several runs. CPU times stand beside them, because a machine that is shared with other work
stretches wall times.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = ("jk", "gradient", "scf", "memory")
SYSTEMS = {
    "(H2O)5 / cc-pVDZ": ("water 5", "cc-pvdz"),
    "(H2O)10 / cc-pVDZ": ("water 10", "cc-pvdz"),
    "(H2O)5 / cc-pVTZ": ("water 5", "cc-pvtz"),
    "vitamin C / def2-SVP": ("vitamin_c", "def2-svp"),
    "(H2O)10 / cc-pVTZ": ("water 10", "cc-pvtz"),  # memory only
}
QUICK = ("(H2O)5 / cc-pVDZ",)
MEMORY = "(H2O)10 / cc-pVTZ"
THRESHOLD = 1e-13


# In the worker processes


def molecule(name):
    """The Molecule of an entry of SYSTEMS."""
    import jaxqc
    from jaxqc.systems import water_cluster

    what, basis = SYSTEMS[name]
    if what.startswith("water"):
        return jaxqc.Molecule(water_cluster(int(what.split()[1])), basis=basis)
    return jaxqc.Molecule(str(HERE.parent / "examples" / f"{what}.xyz"), basis=basis)


def select(isa):
    """Chooses the kernels of an instruction set; False where the processor lacks it."""
    from jaxqc.integrals import _library

    return bool(_library.load().jaxqc_select_isa(isa.encode()))


def timed(function, *arguments):
    """The result of a call, wall time and CPU time."""
    import jax

    cpu, wall = time.process_time(), time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - wall, time.process_time() - cpu


class Best:
    """The least wall and CPU time of each thing measured, and values that describe it."""

    def __init__(self):
        self.rows = {}

    def add(self, name, wall, cpu, **facts):
        row = self.rows.setdefault(name, {"wall": wall, "cpu": cpu})
        row.update(wall=min(row["wall"], wall), cpu=min(row["cpu"], cpu), **facts)


def displaced(mol, k):
    """The molecule at a geometry not met before: nothing can be taken from the cache of shell pairs."""
    return mol.with_coords(mol.coords + 1e-7 * k)


def run_jk(name, isas, repeats):
    """Times of one J+K build."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from pyscf import scf
    from pyscf.scf import _vhf

    from jaxqc.integrals import jk

    mol = molecule(name)
    mole = mol.to_pyscf()
    density = scf.hf.init_guess_by_minao(mole)
    opt = _vhf._VHFOpt(mole, "int2e", "CVHFnrs8_prescreen", "CVHFnr_int2e_q_cond", "CVHFnr_dm_cond")
    opt.direct_scf_tol = THRESHOLD
    ours = jax.jit(lambda mol, density: jk(mol, density, threshold=THRESHOLD))
    operand = jnp.asarray(density)
    best = Best()
    _, first, _ = timed(ours, mol, operand)
    for k in range(1, repeats + 1):
        expected, wall, cpu = timed(_vhf.direct, density, mole._atm, mole._bas, mole._env, opt, 1, mole.cart)
        best.add("pyscf", wall, cpu)
        for isa in isas:
            if not select(isa):
                continue
            value, _, _ = timed(ours, mol, operand)
            error = max(float(np.max(np.abs(v - e))) for v, e in zip(value, expected, strict=True))
            moved = displaced(mol, k)
            _, wall, cpu = timed(ours, moved, operand)
            best.add(isa, wall, cpu, error=error, first=first)
            _, wall, cpu = timed(ours, moved, operand)
            best.add(f"{isa} warm", wall, cpu)
    return best.rows


def pyscf_hf(mole, tolerance=1e-9):
    """A direct RHF calculation of PySCF that stores no integrals; 1e-9 is PySCF's default."""
    from pyscf import scf

    mf = scf.RHF(mole)
    mf.direct_scf, mf.direct_scf_tol, mf.max_memory, mf.conv_tol = True, THRESHOLD, 0, tolerance
    mf.kernel()
    assert mf._eri is None and mf.converged
    return mf


def run_scf(name, isas, repeats):
    """Times of a converged calculation."""
    import jaxqc

    mol = molecule(name)
    mole = mol.to_pyscf()
    best = Best()

    def ours(mol):
        return jaxqc.scf(mol, threshold=THRESHOLD)

    _, first, _ = timed(ours, mol)
    for k in range(1, repeats + 1):
        theirs, wall, cpu = timed(pyscf_hf, mole)
        best.add("pyscf", wall, cpu, cycles=theirs.cycles)
        for isa in isas:
            if select(isa):
                result, wall, cpu = timed(ours, displaced(mol, k))
                error = abs(float(result.energy) - theirs.e_tot)
                best.add(isa, wall, cpu, cycles=int(result.cycles), error=error, first=first)
    return best.rows


def run_gradient(name, isas, repeats):
    """Times of the gradient from converged orbitals."""
    import numpy as np

    import jaxqc

    mol = molecule(name)
    select("auto")
    result = jaxqc.scf(mol, threshold=THRESHOLD)
    mf = pyscf_hf(mol.to_pyscf(), tolerance=1e-11)
    mf.max_memory = 4000
    best = Best()
    _, first, _ = timed(jaxqc.gradient, result)
    for _ in range(repeats):
        expected, wall, cpu = timed(lambda: mf.nuc_grad_method().kernel())
        best.add("pyscf", wall, cpu)
        for isa in isas:
            if select(isa):
                timed(jaxqc.gradient, result)
                value, wall, cpu = timed(jaxqc.gradient, result)
                best.add(isa, wall, cpu, error=float(np.max(np.abs(value - expected))), first=first)
    return best.rows


def run_memory(name, isas, repeats):
    """Peak memory of a whole calculation."""
    import resource

    import jaxqc

    result, wall, cpu = timed(jaxqc.scf, molecule(name))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"jaxqc": {"wall": wall, "cpu": cpu, "peak": peak, "cycles": int(result.cycles), "nao": result.mol.nao}}


def worker(task):
    """One part of one system with one number of threads; prints the times as JSON."""
    from pyscf import lib

    lib.num_threads(task["threads"])
    rows = globals()[f"run_{task['part']}"](task["system"], task["isas"], task["repeats"])
    print("RESULT " + json.dumps(rows), flush=True)


# In the parent, which imports nothing large: its memory would count as its children's


def spawn(task):
    """Runs a worker, restricted to as many processors as it has threads."""
    threads = str(task["threads"])
    cpus = sorted(os.sched_getaffinity(0))[-task["threads"] :]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "JAXQC_NUM_THREADS": threads}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # The processors are chosen by the child itself, before anything counts them.
    code = f"import os; os.sched_setaffinity(0, {cpus}); import cpu_benchmark, sys, json; cpu_benchmark.worker({task})"
    output = subprocess.run([sys.executable, "-c", code], env=environment, cwd=HERE, capture_output=True, text=True)
    lines = [line for line in output.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"The benchmark {task} failed:\n{output.stdout}\n{output.stderr}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def seconds(value):
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


def comparison_rows(task, rows):
    """The rows of a table of times against PySCF."""
    theirs = rows["pyscf"]
    for isa in task["isas"]:
        if isa not in rows:
            continue
        mine = rows[isa]
        row = [task["system"], task["threads"], isa, seconds(theirs["wall"]), seconds(mine["wall"])]
        row.append(f"**{theirs['wall'] / mine['wall']:.2f}**")
        row.append(f"{theirs['cpu'] / mine['cpu']:.2f}")
        if task["part"] == "jk":
            warm = rows[f"{isa} warm"]
            row += [seconds(warm["wall"]), f"{theirs['wall'] / warm['wall']:.2f}", f"{theirs['cpu'] / warm['cpu']:.2f}"]
        if task["part"] == "scf":
            row.append(f"{theirs['cycles']} / {mine['cycles']}")
        yield [*row, seconds(mine["first"]), f"{mine['error']:.0e}"]


HEADS = {
    "jk": ["new geometry, s", "ratio", "CPU ratio", "same geometry, s", "ratio", "CPU ratio"],
    "gradient": ["jaxqc, s", "ratio", "CPU ratio"],
    "scf": ["jaxqc, s", "ratio", "CPU ratio", "cycles, PySCF / jaxqc"],
}
TITLES = {
    "jk": "Direct J+K build, the whole call",
    "gradient": "Nuclear gradient of RHF from converged orbitals",
    "scf": "Whole direct RHF calculation",
    "memory": "Peak memory",
}


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in lines)


def scaling(results):
    """How much faster two threads are than one, from the J+K builds."""
    times = {(t["system"], t["threads"]): rows for t, rows in results if t["part"] == "jk"}
    for (system, threads), rows in times.items():
        if threads == 1 and (system, 2) in times:
            for isa, row in rows.items():
                two = times[system, 2][isa]["wall"]
                yield [system, isa, seconds(row["wall"]), seconds(two), f"{row['wall'] / two:.2f}"]


def report(results):
    """The Markdown page of all results so far."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    lines = [
        "# jaxqc against PySCF on a CPU",
        "",
        "Written by `python experiments/cpu_benchmark.py`; its docstring says what is timed.",
        f"{datetime.date.today()}, {models[0] if models else platform.processor()}, {os.cpu_count()} processors, "
        f"load averages at the end {load}.",
    ]
    for part in PARTS:
        mine = [(task, rows) for task, rows in results if task["part"] == part]
        if not mine:
            continue
        lines += ["", f"## {TITLES[part]}", ""]
        if part == "memory":
            rows = [
                [t["system"], r["jaxqc"]["nao"], t["threads"], f"{r['jaxqc']['peak']:.0f}", seconds(r["jaxqc"]["wall"])]
                for t, r in mine
            ]
            lines.append(table(["system", "functions", "threads", "peak, MiB", "wall, s"], rows))
            continue
        head = ["system", "threads", "kernels", "PySCF, s", *HEADS[part], "first call, s", "difference"]
        lines.append(table(head, [row for task, rows in mine for row in comparison_rows(task, rows)]))
        if part == "jk" and (rows := list(scaling(results))):
            lines += ["", "## Two threads against one, J+K build", ""]
            lines.append(table(["system", "program", "one thread, s", "two threads, s", "ratio"], rows))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only (H2O)5 / cc-pVDZ, few repeats, no memory")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="J+K with each, the rest with the most")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), help="default: all but the memory system")
    parser.add_argument("--isas", nargs="+", default=["avx512", "avx2", "baseline"])
    parser.add_argument("--repeats", type=int, help="of each J+K build (default 3); gradient one less; SCF once")
    parser.add_argument("--output", type=Path, default=HERE / "cpu_benchmark.md")
    options = parser.parse_args()
    systems = options.systems or (QUICK if options.quick else [name for name in SYSTEMS if name != MEMORY])
    repeats = options.repeats or (2 if options.quick else 3)
    tasks = []
    for part in options.parts:
        if part == "memory":
            if not options.quick:
                tasks.append(
                    {"part": part, "system": MEMORY, "threads": max(options.threads), "isas": [], "repeats": 1}
                )
            continue
        for system in systems:
            for threads in options.threads if part == "jk" else [max(options.threads)]:
                task = {"part": part, "system": system, "threads": threads, "isas": options.isas}
                tasks.append({**task, "repeats": {"jk": repeats, "gradient": max(1, repeats - 1), "scf": 1}[part]})
    results = []
    for task in tasks:
        rows = spawn(task)
        results.append((task, rows))
        print(f"{task['part']}, {task['system']}, threads {task['threads']}:", flush=True)
        for name, row in rows.items():
            ratio = f", {rows['pyscf']['wall'] / row['wall']:.2f} times PySCF" if "pyscf" in rows else ""
            facts = ", ".join(f"{k} {v:.2g}" for k, v in row.items() if k not in ("wall", "cpu"))
            print(f"  {name:14s} wall {row['wall']:8.3f} s, CPU {row['cpu']:8.3f} s{ratio}  {facts}", flush=True)
        options.output.write_text(report(results))
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
