"""Times J and K on an NVIDIA GPU: whole builds, the preparation of pairs, and every class of integrals.

    python experiments/eri_gpu_benchmark.py water_020=water.xyz:cc-pvdz ... [--classes] [--split] [--json OUT]
    python experiments/eri_gpu_benchmark.py --json OUT --plot PNG

Density of three cycles, threshold 1e-13. What GPU4PySCF 1.9.0 was measured with is compared with it, by name and
basis: water_020, 057_Tamoxifen, 113_Taxol, 168_Valinomycin, gly30 in cc-pvdz; the first two in cc-pvtz; 020_Vitamin_C
in cc-pvqz.
"""

import argparse
import functools
import json
import re
import time
from pathlib import Path

import eri_gpu_measure as measure
import jax

import jaxqc
from jaxqc.gpu import _launch, build
from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_pairs

# Seconds of one build by GPU4PySCF 1.9.0 measured on the same card: J and K at once, J alone, K alone; a density of
# three cycles, threshold 1e-13, best of two.
GPU4PYSCF = {
    ("water_020", "cc-pvdz"): (0.1064, 0.0827, 0.0809),
    ("water_020", "cc-pvtz"): (1.2724, 0.6777, 0.9359),
    ("057_Tamoxifen", "cc-pvdz"): (0.2382, 0.1567, 0.1766),
    ("057_Tamoxifen", "cc-pvtz"): (3.4612, 1.2104, 2.6833),
    ("113_Taxol", "cc-pvdz"): (1.7947, 0.4319, 1.2357),
    ("168_Valinomycin", "cc-pvdz"): (2.8930, 0.6535, 1.8385),
    ("020_Vitamin_C", "cc-pvqz"): (4.0405, 2.5527, 3.5706),
    ("gly30", "cc-pvdz"): (1.7019, 0.3685, 0.6201),
}


def whole(system: measure.System, split: bool) -> dict:
    """Milliseconds of whole calls, from coordinates and density to J and K, and of their parts."""

    def build(coords, density, **asked):
        return jaxqc.integrals.jk(system.mol.with_coords(coords), density, symmetric=True, **asked)

    run = jax.jit(build)
    begin = time.perf_counter()
    jax.block_until_ready(run(system.mol.coords, system.matrix))
    row = {"first_s": round(time.perf_counter() - begin, 1)}
    row["whole_ms"] = 1e3 * measure.seconds(run, system.mol.coords, system.matrix)
    prepare = jax.jit(functools.partial(measure.prepare, system.plan))
    row["pairs_ms"] = 1e3 * measure.seconds(prepare, *system.operands)
    bounds = jax.jit(lambda d: _cuda_pairs.density_bounds(system.plan.ls, system.mol.cart, d))
    row["bounds_ms"] = 1e3 * measure.seconds(bounds, system.density)
    if split:
        for key, asked in (("j_ms", {"exchange": False}), ("k_ms", {"coulomb": False})):
            alone = jax.jit(functools.partial(build, **asked))
            row[key] = 1e3 * measure.seconds(alone, system.mol.coords, system.matrix)
    kernels = {c: classes.kernels(*c, measure.BOTH) for c in system.classes}
    row["kernels_ms"] = 1e3 * measure.seconds(measure.sums(system, kernels, measure.BOTH))
    reference = GPU4PYSCF.get((system.name, system.basis))
    if reference is not None:
        best = min(reference[0], reference[1] + reference[2])
        row |= {"gpu4pyscf_ms": 1e3 * best, "ratio": 1e3 * best / row["whole_ms"]}
    return row


def class_rows(system: measure.System) -> list[dict]:
    """Each class on its own, J and K at once, the longest first."""
    variant = measure.BOTH
    rows, kernels = [], {c: classes.kernels(*c, variant) for c in reversed(system.classes)}
    units = [k.unit for made in kernels.values() for k in made]
    resources = {u: b.resources() for u, b in zip(units, build(units, _launch.architecture()), strict=True)}
    counts = measure.counts(system, system.classes, variant)
    for (bra, ket), made in kernels.items():
        quartets, primitives = counts[bra, ket]
        if quartets == 0:
            continue
        seconds = measure.seconds(measure.sums(system, {(bra, ket): made}, variant), rounds=2)
        # Of two kernels the second has all quartets but those of deep contractions
        tier, spill = "registers" if made[-1].registers else "lanes", _spill(resources[made[-1].unit])
        work = (bra, ket, tier, quartets, primitives, variant.coulomb)
        rate = measure.flops(*work) / seconds / 1e12
        least = measure.least_seconds(*work, spill)
        most = max(least, key=lambda name: least[name])
        rows.append(
            {
                "class": measure.label(bra, ket),
                "tier": tier,
                "blocks": [dict(k.unit.defines)["MINBLOCKS"] for k in made],
                "ms": 1e3 * seconds,
                "quartets": quartets,
                "primitives": primitives / quartets,
                "ns": 1e9 * seconds / quartets,
                "tflops": rate,
                "share": rate / measure.PEAK,
                "spill": spill,
                "limits": {name: round(t / seconds, 3) for name, t in least.items()},
                "binds": most if least[most] > 0.5 * seconds else f"latency, {most}",
            }
        )
        print(rows[-1], flush=True)
    return sorted(rows, key=lambda row: -row["ms"])


def _spill(resources: dict[str, dict[str, int]]) -> int:
    return sum(used["spill"] for used in resources.values())


def page(results: list[dict]) -> str:
    """The tables of all systems."""
    head = ["system", "nao", "whole, ms", "J alone", "K alone", "pairs", "kernels", "GPU4PySCF", "ratio", "first, s"]
    rows = []
    for r in results:
        peer = [f"{r['gpu4pyscf_ms']:.0f}", f"{r['ratio']:.1f}"] if "ratio" in r else ["", ""]
        times = [f"{r[k]:.3g}" if k in r else "" for k in ("whole_ms", "j_ms", "k_ms", "pairs_ms", "kernels_ms")]
        rows.append([f"{r['name']} {r['basis']}", r["nao"], *times, *peer, r["first_s"]])
    text = measure.table(head, rows)
    for r in results:
        if not r.get("classes"):
            continue
        total = sum(c["ms"] for c in r["classes"])
        quartets = sum(c["quartets"] for c in r["classes"])
        text += f"\n{r['name']} {r['basis']}: {quartets:.3g} quartets; classes one by one {total:.1f} ms\n\n"
        head = ["class", "tier", "blocks", "ms", "quartets", "primitives each", "ns each", "TFLOP/s"]
        head += ["of 34 TFLOP/s", "FP64 units", "L1", "atomics", "binds", "spill, bytes"]
        text += measure.table(
            head,
            [
                [
                    c["class"],
                    c["tier"],
                    " + ".join(map(str, c["blocks"])),
                    f"{c['ms']:.2f}",
                    f"{c['quartets']:.3g}",
                    f"{c['primitives']:.1f}",
                ]
                + [f"{c['ns']:.3g}", f"{c['tflops']:.1f}", f"{c['share']:.0%}"]
                + [f"{share:.0%}" for share in c["limits"].values()]
                + [c["binds"], c["spill"]]
                for c in r["classes"]
            ],
        )
    return text


def plot(results: list[dict], path: Path) -> None:
    """Times of whole builds beside the peer's, and their ratio: basis by basis, larger molecules later."""
    import matplotlib.pyplot as plt

    order = ("cc-pvdz", "cc-pvtz", "cc-pvqz")
    rows = sorted((r for r in results if "ratio" in r), key=lambda r: (order.index(r["basis"]), r["nao"]))
    places = range(len(rows))
    figure, axes = plt.subplots(figsize=(9, 4))
    for shift, key, label in ((-0.2, "gpu4pyscf_ms", "GPU4PySCF 1.9.0"), (0.2, "whole_ms", "jaxqc")):
        axes.bar([k + shift for k in places], [r[key] for r in rows], 0.4, label=label)
    for k, r in zip(places, rows, strict=True):
        axes.text(k, 1.1 * r["gpu4pyscf_ms"], f"{r['ratio']:.1f} x", ha="center")
    axes.set_yscale("log")
    axes.set_ylim(top=3.0 * max(r["gpu4pyscf_ms"] for r in rows))
    axes.set_ylabel("J and K, ms")
    names = [re.sub(r"^\d+_", "", r["name"]).replace("water_020", "(H2O)20").replace("_", " ") for r in rows]
    labels = [f"{name}\n{r['basis']}\n{r['nao']}" for name, r in zip(names, rows, strict=True)]
    axes.set_xticks(list(places), labels, fontsize=8)
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main():
    """Reads the arguments and runs each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="NAME=FILE:BASIS")
    parser.add_argument("--classes", action="store_true", help="every class of integrals as well")
    parser.add_argument("--split", action="store_true", help="J alone and K alone as well")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="only draw what --json has kept")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads(options.json.read_text()), options.plot)
        return
    results = []
    for text in options.systems:
        system = measure.load(text)
        row = {"name": system.name, "basis": system.basis, "nao": system.mol.nao} | whole(system, options.split)
        if options.classes:
            row["classes"] = class_rows(system)
        results.append(row)
        print(page([row]), flush=True)
        if options.json:
            measure.keep(options.json, results)


if __name__ == "__main__":
    main()
