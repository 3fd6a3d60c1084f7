"""What each GPU of a host did during a call, from a trace by JAX's profiler."""

import tempfile
from pathlib import Path

import jax

# Bytes/s and direction of so many GPUs: NVLink within a host, one port of 400 Gb/s for each GPU beyond.
LINKS = {parts: 450e9 if parts <= 8 else 50e9 for parts in (2, 4, 8, 16, 32, 64, 128, 256, 512)}
_REDUCTIONS = ("nccl", "AllReduce", "AllGather", "AllToAll", "all-reduce", "all-gather", "all-to-all")


def union(intervals) -> float:
    """Length of the union of (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def devices_during(function, *arguments) -> list[dict]:
    """Of each GPU of this process, in ms: from the first kernel of any to its last one, own work, exchange, nothing.

    "exchange" are kernels of NCCL, which also wait for the slowest device; "work" are all others, "idle" is the time
    when neither ran, between the first kernel of all devices and the last one. The call must have been made before:
    what it compiles would be idle time.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(function(*arguments))
        files = list(Path(folder).rglob("*.xplane.pb"))
        planes = jax.profiler.ProfileData.from_file(str(files[0])).planes if files else []
        found = {}
        for plane in planes:
            if not plane.name.startswith("/device:GPU"):
                continue
            lines = [line for line in plane.lines if line.name.startswith("Stream")]
            found[plane.name] = [
                (e.start_ns, e.start_ns + e.duration_ns, e.name) for line in lines for e in line.events
            ]
    found = {name: events for name, events in sorted(found.items()) if events}
    if not found:
        return []
    first = min(begin for events in found.values() for begin, *_ in events)
    last = max(end for events in found.values() for _, end, _ in events)
    rows = []
    for name, events in found.items():
        exchange = [(b, e) for b, e, kernel in events if any(word in kernel for word in _REDUCTIONS)]
        work = [(b, e) for b, e, kernel in events if not any(word in kernel for word in _REDUCTIONS)]
        spent, busy = union(work), union([(b, e) for b, e, _ in events])
        times = {"span": last - first, "work": spent, "exchange": union(exchange), "idle": last - first - busy}
        rows.append({"device": name.rsplit(":")[-1], **{k: round(v / 1e6, 3) for k, v in times.items()}})
    return rows


def losses(devices) -> dict:
    """Where several GPUs lose time in a call, in ms, from `devices_during`.

    "imbalance": work of the busiest one beyond the mean; "exchange": of the one that waits least for others; "idle":
    mean time in which a device does nothing, waiting for the host.
    """
    if not devices:
        return {}
    work = [row["work"] for row in devices]
    idle = sum(row["idle"] for row in devices) / len(devices)
    found = {"imbalance": max(work) - sum(work) / len(work), "exchange": min(row["exchange"] for row in devices)}
    return {name: round(value, 3) for name, value in (found | {"idle": idle}).items()}
