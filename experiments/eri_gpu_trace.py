"""Shows with JAX's profiler that builds of J and K run on a GPU without the host: nothing waits or is copied back.

    python experiments/eri_gpu_trace.py NAME=FILE:BASIS [--builds 5] [--json OUT]

Builds are enqueued one after the other, each with the density that the one before it gave. Reported: how long the
host took to enqueue them and how long the device was at work, the driver's functions that were called while they were
enqueued, copies between host and device, and times when no kernel ran between the first and the last. Ends with an
error where the host synchronised or a copy to it was made.
"""

import argparse
import collections
import tempfile
import time
from pathlib import Path

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp

import jaxqc

WINDOW = "builds are enqueued"
_WAITS = ("Synchronize", "DtoH", "cuMemAlloc", "cuMemFree")  # parts of names of the driver's functions


def trace(function, first, builds: int, folder: str) -> tuple[float, float]:
    """Runs a chain of builds under the profiler; seconds to enqueue them, and until they were done."""
    jax.block_until_ready(function(first))
    with jax.profiler.trace(folder):
        begin, x = time.perf_counter(), first
        with jax.profiler.TraceAnnotation(WINDOW):
            for _ in range(builds):
                x = function(x)
        enqueued = time.perf_counter() - begin
        jax.block_until_ready(x)
        done = time.perf_counter() - begin
    return enqueued, done


def events(folder: str):
    """(host events, device events), each (begin, end, name) in ns."""
    (path,) = Path(folder).rglob("*.xplane.pb")
    host, device = [], []
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        on_device = plane.name.startswith("/device:GPU")
        for line in plane.lines:
            if on_device and not line.name.startswith("Stream"):
                continue  # XLA's own view of the same kernels
            for e in line.events:
                if on_device:
                    device.append((e.start_ns, e.start_ns + e.duration_ns, e.name))
                elif not e.name.startswith("$"):  # a function of Python
                    host.append((e.start_ns, e.start_ns + e.duration_ns, e.name))
    return sorted(host), sorted(device)


def gaps(device) -> tuple[list[float], float]:
    """Lengths of the times without any work between the first and the last event, and the whole time; ms."""
    found, end = [], device[0][1]
    for begin, stop, _ in device[1:]:
        if begin > end:
            found.append((begin - end) / 1e6)
        end = max(end, stop)
    return sorted(found, reverse=True), (end - device[0][0]) / 1e6


def report(folder: str, builds: int) -> dict:
    """What the trace says."""
    host, device = events(folder)
    begin, end = next((b, e) for b, e, name in host if name == WINDOW)
    called = collections.Counter(name for b, _, name in host if begin <= b <= end and name != WINDOW)
    kernels = [e for e in device if e[0] >= begin]
    copies = collections.Counter(name for *_, name in kernels if "emcpy" in name)
    idle, whole = gaps(kernels)
    return {
        "driver": {name: n for name, n in called.items() if name.startswith("cu")},
        "host": dict(called.most_common(25)),
        "copies": dict(copies),
        "launches": len(kernels),
        "builds": builds,
        "whole_ms": whole,
        "idle_ms": sum(idle),
        "longest_gaps_ms": [round(g, 4) for g in idle[:8]],
    }


def main():
    """Reads the arguments; prints what the trace says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", metavar="NAME=FILE:BASIS")
    parser.add_argument("--builds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    system = measure.load(options.system)

    @jax.jit
    def build(density):
        j, k = jaxqc.integrals.jk(system.mol, density, symmetric=True)
        assert j is not None and k is not None
        return density + 1e-9 * (jnp.tanh(j) - jnp.tanh(k))  # each build needs the one before it

    with tempfile.TemporaryDirectory() as folder:
        enqueued, done = trace(build, system.matrix, options.builds, folder)
        found = {"system": f"{system.name} {system.basis}", "enqueued_s": enqueued, "done_s": done}
        found |= report(folder, options.builds)
    measure.keep(None, found)
    if options.json:
        measure.keep(options.json, found)
    assert found["launches"] > 0 and found["driver"], "the trace saw no kernels, or no functions of the driver"
    waits = [name for name in found["driver"] if any(part in name for part in _WAITS)]
    back = [name for name in found["copies"] if "DtoH" in name or "D2H" in name]
    assert not waits and not back, f"the host waited or copied: {waits} {back}"
    assert enqueued < 0.5 * done, f"enqueueing took {enqueued:.3f} s of {done:.3f} s"


if __name__ == "__main__":
    main()
