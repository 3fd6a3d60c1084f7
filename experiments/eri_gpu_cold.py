"""Seconds from the start of a process to the energy of its first calculation, with empty and with filled caches.

    python experiments/eri_gpu_cold.py NAME=FILE:BASIS ... [--json OUT]

Each system runs in fresh processes that share one folder of caches (compiled kernels and XLA programs), which is empty
for the first of them. Of each process: the seconds that each step took (the import of JAX, the start of the device, the
molecule, the first `jaxqc.scf` and another one), and where the first went: NVRTC, tests of fresh kernels, tracing and
XLA.
"""

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import collections  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

_PLACES = ("JAXQC_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")  # of caches elsewhere


def timed(module, name: str, spent: dict[str, float]) -> None:
    """Replaces a function of a module by one that adds up its time."""
    function = getattr(module, name)

    def measured(*arguments, **options):
        begin = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - begin

    setattr(module, name, measured)


def child(file: str, basis: str) -> dict:
    """One process: what is measured in it."""
    import jax

    row: dict = {}
    spent: dict[str, float] = collections.defaultdict(float)
    last = BEGIN

    def ended(step: str) -> None:
        nonlocal last
        row[step] = (now := time.perf_counter()) - last
        last = now

    def add(event: str, duration_secs: float, **kwargs) -> None:
        spent[event] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(add)
    ended("import jax")
    gpu = jax.default_backend() == "gpu"
    ended("device")
    import jaxqc

    if gpu:
        from jaxqc.gpu import _launch

        timed(_launch, "build", spent)
        timed(_launch, "_test", spent)
    mol = jaxqc.Molecule(file, basis=basis)
    ended("molecule")
    result = jaxqc.scf(mol)
    energy = float(result.energy)
    ended("first scf")
    row |= {"energy": energy, "cycles": int(result.cycles)}
    row["of that"] = {name.split("/")[-1]: round(s, 2) for name, s in spent.items() if s > 0.02}
    last = time.perf_counter()
    float(jaxqc.scf(mol).energy)
    ended("second scf")
    return {k: round(v, 3) if isinstance(v, float) and k != "energy" else v for k, v in row.items()}


def main():
    """Reads the arguments; starts processes and prints what they measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="NAME=FILE:BASIS")
    parser.add_argument("--runs", type=int, default=3, help="processes of each system")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = []
    for text in options.systems:
        name, _, rest = text.rpartition("=")
        file, _, basis = rest.rpartition(":")
        if options.child:
            print(json.dumps(child(file, basis)), flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = {k: v for k, v in os.environ.items() if k not in _PLACES}
            environment |= {"XDG_CACHE_HOME": folder}
            for run in range(options.runs):
                begin = time.perf_counter()
                command = [sys.executable, __file__, text, "--child"]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                row = {"system": f"{name} {basis}", "caches": "filled" if run else "empty"} | json.loads(
                    done.stdout.splitlines()[-1]
                )
                row["whole process"] = round(time.perf_counter() - begin, 3)
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.json and not options.child:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
