"""How many of the configurations that sources are coupled to are the same, against the number of sources.

    python experiments/nnqs_redundancy.py [--basis cc-pvdz] [--largest 16000] [--plot redundancy.png]

N2 at 2.118 Bohr; figure 11 of arXiv:2604.15768 has the same for more and more GPUs, each with its sources. Sources are
the most important configurations of a selected CI; redundancy is the share of what they are coupled to that
de-duplication takes away. A set is generated and joined to what is unique so far in batches of sources.
"""

import argparse
import json
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaxqc
from jaxqc import nnqs

ATOMS = "N 0 0 0; N 0 0 1.12079733"
BATCH = 1000


def leading(found, number):
    """Keys of the configurations of largest coefficients, (number, words)."""
    order = np.argsort(-np.abs(np.asarray(found.vector)), kind="stable")[:number]
    return np.asarray(found.configurations.keys)[np.sort(order)]


def measure(ham, sources, epsilon):
    """Numbers of coupled and of unique configurations, and seconds."""
    start, coupled, unique = time.perf_counter(), 0, np.zeros((0, sources.shape[1]), np.uint64)
    for first in range(0, len(sources), BATCH):
        found = nnqs.couple(ham, sources[first : first + BATCH], epsilon)
        coupled += int(found.count)
        keys, count = nnqs.deduplicate(jnp.concatenate([unique, found.keys]))
        unique = keys[: int(count)]
    return {
        "sources": len(sources), "coupled": coupled, "unique": len(unique), "redundancy": 1 - len(unique) / coupled,
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def plot(rows, path):
    """Redundancy, and numbers of configurations, against sources."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    sources = [row["sources"] for row in rows]
    left.semilogx(sources, [100 * row["redundancy"] for row in rows], "o-")
    left.set(xlabel="sources", ylabel="redundancy / %", ylim=(0, 100))
    for name in ("coupled", "unique"):
        right.loglog(sources, [row[name] for row in rows], "o-", label=name)
    right.set(xlabel="sources", ylabel="configurations")
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(options):
    mol = jaxqc.Molecule(ATOMS, basis=options.basis)
    ham = nnqs.Hamiltonian.from_molecule(mol)
    found = nnqs.selected_ci(ham, options.largest, epsilon=1e-6, growth=4.0)
    numbers = [options.largest >> k for k in range(options.largest.bit_length()) if options.largest >> k >= 100]
    rows = []
    for number in reversed(numbers):
        rows.append(measure(ham, leading(found, number), options.epsilon))
        print(json.dumps(rows[-1]), flush=True)
    if options.plot:
        Path(options.plot).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        plot(rows, options.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--basis", default="cc-pvdz", help="basis set (default cc-pvdz)")
    parser.add_argument("--largest", type=int, default=16000, help="number of sources (default 16000)")
    parser.add_argument("--epsilon", type=float, default=1e-10, help="elements below are left out, Hartree")
    parser.add_argument("--plot", help="file of the figure; numbers are written beside it")
    main(parser.parse_args())
