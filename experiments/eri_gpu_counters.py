"""Which limit binds each class of integrals on a GPU, by the counters of the hardware.

    python experiments/eri_gpu_counters.py NAME=FILE:BASIS [--json OUT] [--plot PNG]
    python experiments/eri_gpu_counters.py --json OUT --plot PNG          # only draws what is kept

One build of J and K from the density of atoms runs under Nsight Compute (`ncu`), which measures one kernel after the
other: executed additions, multiplications and fused multiply-adds in double precision, how busy the units are that a
kernel can wait for, and what its warps wait for. Clocks are not fixed.
"""

import argparse
import csv
import ctypes
import glob
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import eri_gpu_measure as measure
import jax

from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_jk

TIME = "gpu__time_duration.sum"
OPERATIONS = {
    f"smsp__sass_thread_inst_executed_op_d{op}_pred_on.sum": n for op, n in (("add", 1), ("mul", 1), ("fma", 2))
}
# Units that a kernel can keep busy all the time, in per cent of what they can do.
UNITS = {
    "FP64": "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "L1 and shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "wait",
    "math_pipe_throttle",
    "lg_throttle",
    "mio_throttle",
    "barrier",
)
STALLS = {s: f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio" for s in (*_STALLS, "not_selected")}
# What warps wait for, in words: local and global memory; shared memory; results of arithmetic; the unit that does it.
WORDS = {
    "long_scoreboard": "loads from memory",
    "short_scoreboard": "shared memory",
    "wait": "fixed latency",
    "math_pipe_throttle": "FP64 unit",
    "lg_throttle": "queue of global and local memory",
    "mio_throttle": "queue of shared memory",
    "barrier": "barriers",
    "not_selected": "issue",
}
REGISTERS = "launch__registers_per_thread"
BUSY = 60.0  # per cent from which a unit is said to bind


def child(text: str) -> None:
    """The build that is measured: prints its classes in the order of launches."""
    system = measure.load(text, measure.of_atoms)
    counts = measure.counts(system, system.classes)
    variant = classes.Variant(cart=False)

    def build(pairs, density, bounds):
        blocked = _cuda_jk.blocked(system.plan, pairs, density, bounds, variant, 0.0, measure.THRESHOLD, test=False)
        return [x.reshape(-1)[0] for x in blocked]

    run, arguments = jax.jit(build), (system.pairs, system.density, system.bounds)
    jax.block_until_ready(run(*arguments))
    rows = []
    for bra, ket in reversed(system.classes):
        for kernel in reversed(classes.kernels(bra, ket, variant)):
            tier = "registers" if kernel.registers else "lanes"
            rows.append({"class": measure.label(bra, ket), "tier": tier, "quartets": counts[bra, ket][0]})
    print(json.dumps(rows), flush=True)
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuProfilerStart()
    jax.block_until_ready(run(*arguments))
    driver.cuProfilerStop()


def profiler() -> str:
    """The path of ncu.

    **Raises:** `SystemExit` where there is none.
    """
    places = [
        shutil.which("ncu"),
        *sorted(glob.glob("/usr/local/cuda*/bin/ncu")),
        *glob.glob("/opt/nvidia/nsight-compute/*/ncu"),
    ]
    found = [p for p in places if p]
    if not found:
        raise SystemExit("Nsight Compute (ncu) was not found.")
    return found[0]


def measured(text: str) -> list[dict]:
    """Counters of all classes."""
    ncu = profiler()
    known = subprocess.run([ncu, "--query-metrics", "--chips", "gh100"], capture_output=True, text=True).stdout.split()
    wanted = [TIME, *OPERATIONS, *UNITS.values(), OCCUPANCY, *STALLS.values()]
    lacking = [m for m in wanted if known and m.split(".")[0] not in known]
    print("not known to this ncu:", lacking, flush=True)
    metrics = ",".join([*(m for m in wanted if m not in lacking), REGISTERS])
    command = [
        ncu,
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
    ]
    command += ["--kernel-name", "regex:^eri_(register|lanes)$", "--metrics", metrics]
    # Launches one by one instead of graphs of them
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="}
    command += [sys.executable, __file__, "--child", text]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = ended.stdout.splitlines()
    listed = next((json.loads(line) for line in lines if line.startswith("[{")), None)
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if listed is None or start is None:
        raise SystemExit(f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    _, *found = csv.DictReader(io.StringIO("\n".join(lines[start:])))  # the first row has the units
    if len(found) != len(listed):
        raise SystemExit(f"{len(found)} kernels were measured, {len(listed)} were expected.")
    return [row | summary(counters) for row, counters in zip(listed, found, strict=True)]


def summary(counters: dict[str, str]) -> dict:
    """What the counters of a kernel say."""

    def number(name: str) -> float:
        return float(counters.get(name, "").replace(",", "") or "nan")

    seconds = 1e-9 * number(TIME)
    rate = sum(n * number(name) for name, n in OPERATIONS.items()) / seconds / 1e12
    busy = {name: number(metric) for name, metric in UNITS.items()}
    stalls = {WORDS[name]: number(metric) for name, metric in STALLS.items()}
    most = max(busy, key=lambda name: busy[name])
    waits = max(stalls, key=lambda name: stalls[name])
    return {
        "ms": 1e3 * seconds,
        "tflops": rate,
        "share": rate / measure.PEAK,
        "busy": busy,
        "stalls": stalls,
        "occupancy": number(OCCUPANCY),
        "registers": number(REGISTERS),
        "binds": most if busy[most] >= BUSY else f"latency: {waits}",
    }


def page(rows: list[dict]) -> str:
    """The table, the longest class first."""
    head = ["class", "tier", "registers", "ms", "quartets", "TFLOP/s", "of 34", *(f"{u}, %" for u in UNITS), "warps, %"]
    cells = [
        [
            r["class"],
            r["tier"],
            f"{r['registers']:.0f}",
            f"{r['ms']:.2f}",
            f"{r['quartets']:.3g}",
            f"{r['tflops']:.1f}",
            f"{100 * r['share']:.0f} %",
            *(f"{r['busy'][u]:.0f}" for u in UNITS),
            f"{r['occupancy']:.0f}",
            r["binds"],
        ]
        for r in sorted(rows, key=lambda r: -r["ms"])
    ]
    total = sum(r["ms"] for r in rows)
    mean = sum(r["ms"] * r["tflops"] for r in rows) / total
    cells.append(["all", "", "", f"{total:.1f}", "", f"{mean:.1f}", f"{100 * mean / measure.PEAK:.0f} %"])
    cells[-1] += [f"{sum(r['ms'] * r['busy'][u] for r in rows) / total:.0f}" for u in UNITS] + ["", ""]
    return measure.table([*head, "what binds"], cells)


def plot(rows: list[dict], path: Path) -> None:
    """TFLOP/s and time of each class."""
    import matplotlib.pyplot as plt

    rows = sorted(rows, key=lambda r: -r["ms"])
    total = sum(r["ms"] for r in rows)
    figure, axes = plt.subplots(figsize=(9, 4))
    left = 0.0
    for tier, color in (("registers", "C0"), ("lanes", "C1")):
        axes.bar(0, 0, color=color, label=tier)
    for r in rows:
        width = 100 * r["ms"] / total
        color = "C0" if r["tier"] == "registers" else "C1"
        axes.bar(left, r["tflops"], width, align="edge", color=color, edgecolor="white", linewidth=0.5)
        if width > 2:
            axes.text(left + width / 2, r["tflops"], r["class"], rotation=90, ha="center", va="bottom", fontsize=7)
        left += width
    axes.axhline(measure.PEAK, color="k", linewidth=1)
    axes.set_xlabel("share of the time of all classes, %")
    axes.set_ylabel("TFLOP/s in double precision")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main():
    """Reads the arguments; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", nargs="?", metavar="NAME=FILE:BASIS")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.system)
        return
    if options.system is None and options.json is None:
        parser.error("give a system, or --json with results that were kept")
    rows = measured(options.system) if options.system else json.loads(options.json.read_text())
    print(page(rows), flush=True)
    if options.system and options.json:
        measure.keep(options.json, rows)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
