"""What each part of the generator is worth on a GPU: axis rule, schedule, spherical fusion, tier.

    python experiments/eri_gpu_ablation.py --compile                       # registers and spills; needs NVRTC, no GPU
    python experiments/eri_gpu_ablation.py NAME=FILE:BASIS [--json OUT]    # quartets per second as well

The classes are those on the border of the tiers: (dp|dp), (dd|pp), (dd|dp), (dd|dd). Variants of the register tier
change one rule each ("bra first": the order that the FusionRCG paper, arXiv:2605.10312, compares with; "by level": no
schedule); "two kernels" is the paper's second tier, "buffered" a vertical recurrence over slots in global memory, as
the paper packs them; "lanes" is our second tier.
"""

import argparse
import json
import re
import tempfile
from dataclasses import replace
from math import prod
from pathlib import Path

import eri_gpu_measure as measure
import eri_gpu_two_kernels as two_kernels
import jax.numpy as jnp

from jaxqc.ffi_kernels.rcg.cartesian import ncart, ncomp, nsph
from jaxqc.ffi_kernels.rcg.cuda import HEADER, class_header
from jaxqc.ffi_kernels.rcg.emit import class_name, emit_hrr, emit_vrr_buffered
from jaxqc.ffi_kernels.rcg.graph import flops, vrr_graph
from jaxqc.ffi_kernels.rcg.options import Options
from jaxqc.ffi_kernels.rcg.schedule import peak_live, schedule
from jaxqc.gpu import Unit, build
from jaxqc.gpu._compile import source_folder
from jaxqc.integrals._cuda_classes import Kernel, Pair

# Those of the paper's figures 5 to 8 that have straight-line kernels, and those on the border of the tiers.
CLASSES: tuple[tuple[Pair, Pair], ...] = tuple(
    ((int(a), int(b)), (int(c), int(d)))
    for a, b, c, d in ("1010", "2020", "3020", "3030", "2121", "2211", "2221", "2222", "3222", "3232")
)
_LARGEST = 1000  # values (e0|f0) of a class beyond which one kernel of straight lines takes too long to compile
VARIANTS = {
    "registers": Options(),
    "Algorithm 1": Options(rule="paper"),
    "bra first": Options(rule="none"),
    "Eq. 7": Options(schedule="paper"),
    "by level": Options(schedule="level"),
    "Algorithm 1, Eq. 7": Options(rule="paper", schedule="paper"),
    "no fusion": Options(fusion=False),
    "buffered": Options(tier="buffered"),
    "buffered, paper": Options(tier="buffered", rule="paper"),
    "two kernels": Options(),
    "two kernels, Algorithm 1": Options(rule="paper"),
    "two kernels, bra first": Options(rule="none"),
    "two kernels, by level": Options(schedule="level"),
    "two kernels, paper": Options(rule="paper", schedule="paper"),
    "lanes": Options(),
}

# What is drawn: title, variants, whether relative to the first of them.
PANELS = (
    ("axis rule (figure 5)", ("two kernels, bra first", "two kernels, Algorithm 1", "two kernels"), True),
    ("schedule (figure 6)", ("two kernels, by level", "two kernels"), True),
    ("spherical fusion (figure 7)", ("no fusion", "registers"), True),
    ("tiers (figure 8)", ("registers", "two kernels, paper", "two kernels", "lanes"), False),
)

# Every resident warp has a part of the buffer, a lane a column of it.
_BUFFER = """
static __device__ double scratch[{warps}ll * {slots} * 32];
static __device__ __forceinline__ double* column() {{
#ifdef EMULATED
  return scratch + threadIdx.x / 32 * {slots} * 32 + threadIdx.x % 32;
#else
  unsigned sm, warp;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  return scratch + (sm * 64ll + warp) * {slots} * 32 + (threadIdx.x & 31);
#endif
}}
template <class S, class R, class... P>
RCG_INLINE void vrr(R* h, const R* f, P... parameters) {{ {name}<32, S, R>(h, column(), f, parameters...); }}
"""
_MULTIPROCESSORS = 132


def _buffered_header(cls, options: Options) -> str:
    """The header of the register tier with its vertical recurrence over slots in global memory."""
    text = emit_vrr_buffered(cls, options)
    slots = int(re.search(r"_slots = (\d+);", text)[1])  # pyright: ignore[reportOptionalSubscript]
    text = re.sub(r"w\[(\d+) \* SW\] = (.*);", r"put(w + \1 * SW, \2);", text)
    text = re.sub(r"w\[(\d+) \* SW\]", r"get(w + \1 * SW)", text)
    name = f"vrr_buffered_{class_name(cls)}"
    helpers, shim = _BUFFER.format(warps=_MULTIPROCESSORS * 64, slots=slots, name=name).split("template", 1)
    header = class_header(cls, False, True, options)
    begin = header.index("template <class S, class R>\nRCG_INLINE void vrr(")
    return header[:begin] + two_kernels.ACCESS + helpers + text + "template" + shim


def _unfused(la: int, lb: int, lc: int, ld: int) -> str:
    """Both horizontal recurrences on Cartesian functions, then one index after the other to spherical ones."""
    cart, sph = [ncart(l) for l in (la, lb, lc, ld)], [nsph(l) for l in (la, lb, lc, ld)]
    lines = [
        f"double x0[{cart[0] * cart[1]} * kF], x1[{prod(cart)}];",
        f"for (int f = 0; f < kF; ++f) hrr_cart_{la}{lb}<kF, kF, double, double>(h + f, x0 + f, a[3], a[4], a[5]);",
        f"for (int n = 0; n < {cart[0] * cart[1]}; ++n)",
        f"  hrr_cart_{lc}{ld}<1, 1, double, double>(x0 + n * kF, x1 + n * {cart[2] * cart[3]}, c[3], c[4], c[5]);",
    ]
    for place, index in enumerate((3, 2, 1, 0)):
        l, inner = (la, lb, lc, ld)[index], prod(sph[index + 1 :])
        target = "v" if index == 0 else f"x{place + 2}"
        if index:
            lines.append(f"double {target}[{prod(cart[:index]) * sph[index] * inner}];")
        lines += [
            f"for (int n = 0; n < {prod(cart[:index])}; ++n)",
            f"  for (int m = 0; m < {inner}; ++m)",
            f"    hrr_sph_{l}0<{inner}, {inner}, double, double>(x{place + 1} + n * {cart[index] * inner} + m, "
            f"{target} + n * {sph[index] * inner} + m, 0.0, 0.0, 0.0);",
        ]
    return "\n".join("#pragma unroll\n" + x if x.lstrip().startswith("for") else x for x in lines)


def _unfused_unit(unit: Unit, cls, folder: Path) -> Unit:
    """The register tier with its two fused recurrences replaced."""
    text = (source_folder() / unit.file).read_text()
    begin, end = text.index("  real g[kAB * kF];"), text.index("#if SCHWARZ")
    path = folder / f"unfused_{class_name(cls)}.cu"
    path.write_text(text[:begin] + _unfused(*cls) + "\n}\n\n" + text[end:])
    pairs, singles = [cls[:2], cls[2:]], [(l, 0) for l in cls]
    sides = [emit_hrr(*p, spherical=False) for p in dict.fromkeys(pairs)]
    sides += [emit_hrr(*p) for p in dict.fromkeys(singles) if p not in pairs]
    ((name, header),) = unit.generated
    return replace(unit, file=str(path), generated=((name, header + "\n".join(sides)),))


def kernels(bra: Pair, ket: Pair, variant: str, folder: Path) -> list[Kernel]:
    """The kernels of a class as a variant has them, one or two."""
    options = VARIANTS[variant]
    if variant == "lanes":
        return [two_kernels.lanes(bra, ket)]
    made = measure.in_tier(bra, ket, "registers", columns=0)
    cls = (*bra, *ket)
    header = _buffered_header(cls, options) if options.tier == "buffered" else class_header(cls, False, True, options)
    unit = replace(made.unit, generated=((HEADER, header),))
    if variant.startswith("two kernels"):
        return [replace(made, unit=two_kernels.vertical(unit)), two_kernels.horizontal(bra, ket)]
    return [replace(made, unit=unit if options.fusion else _unfused_unit(unit, cls, folder))]


def possible(bra: Pair, ket: Pair, variant: str) -> bool:
    """Whether a variant of a class compiles in a few minutes."""
    return ncomp(*bra) * ncomp(*ket) <= _LARGEST or variant == "lanes" or variant.startswith("two kernels")


def runner(system: measure.System, bra: Pair, ket: Pair, made: list[Kernel], quartets: int):
    """What runs kernels for all quartets of their class."""
    if len(made) == 1:
        return measure.sums(system, {(bra, ket): made})
    return two_kernels.sums(system, bra, ket, made, quartets)


def graph_row(bra: Pair, ket: Pair, variant: str) -> dict:
    options = VARIANTS[variant]
    if variant == "lanes":
        return {}
    graph = vrr_graph((*bra, *ket), options.rule)
    live = peak_live(graph.parents, schedule(graph.parents, options.schedule))
    return {"nodes": len(graph.nodes), "instructions": flops(graph), "peak_live": live}


def page(rows) -> str:
    head = [
        "class",
        "variant",
        "nodes",
        "instructions",
        "PeakLive",
        "registers",
        "spill bytes",
        "1e6 quartets/s",
        "error",
    ]
    keys = ["class", "variant", "nodes", "instructions", "peak_live", "registers", "spill", "rate", "error"]
    return measure.table(head, [[row.get(k, "") for k in keys] for row in rows])


def plot(rows, path: Path) -> None:
    """Quartets a second by class: what each of the paper's figures 5 to 8 compares."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["class"] for row in rows))
    rates = {(row["class"], row["variant"]): row["rate"] for row in rows if "rate" in row}
    figure, panels = plt.subplots(2, 2, figsize=(12, 7))
    for axes, (title, variants, relative) in zip(panels.flat, PANELS, strict=True):
        width = 0.8 / len(variants)
        for n, variant in enumerate(variants):
            needed = {variant, variants[0]} if relative else {variant}
            known = [k for k, name in enumerate(names) if all((name, v) in rates for v in needed)]
            bases = [rates[names[k], variants[0]] if relative else 1.0 for k in known]
            heights = [rates[names[k], variant] / base for k, base in zip(known, bases, strict=True)]
            axes.bar([k + width * n for k in known], heights, 0.9 * width, label=variant)
        axes.set_xticks([k + 0.4 - width / 2 for k in range(len(names))], names, fontsize=7)
        axes.set_title(title, fontsize=9)
        axes.set_yscale("linear" if relative else "log")
        axes.set_ylabel(f"quartets a second, {variants[0]} = 1" if relative else "1e6 quartets a second", fontsize=8)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main():
    """Reads the arguments; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", nargs="?", help="NAME=FILE:BASIS, with d functions")
    parser.add_argument("--compile", action="store_true", help="only compile, for sm_90")
    parser.add_argument("--atoms", action="store_true", help="density of atoms, instead of three cycles")
    parser.add_argument("--classes", nargs="*", help="digits, as 2121")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="only draw what --json has kept")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads(options.json.read_text()), options.plot)
        return
    if not options.compile and options.system is None:
        parser.error("give a system, or --compile")
    wanted = [c for c in CLASSES if not options.classes or measure.digits(*c) in options.classes]
    todo = [(bra, ket, v) for bra, ket in wanted for v in options.variants if possible(bra, ket, v)]
    folder = Path(tempfile.mkdtemp())
    found = [kernels(*t, folder) for t in todo]
    units = list(dict.fromkeys(k.unit for made in found for k in made))
    resources = {unit: built.resources() for unit, built in zip(units, build(units, 90), strict=True)}
    rows = []
    for (bra, ket, variant), made in zip(todo, found, strict=True):
        used = [u for k in made for u in resources[k.unit].values()]
        row = {"class": measure.label(bra, ket), "variant": variant} | graph_row(bra, ket, variant)
        row["registers"] = " + ".join(str(u["registers"]) for u in used)
        rows.append(row | {"spill": " + ".join(str(u["spill"]) for u in used)})
    if not options.compile:
        system = measure.load(options.system, measure.of_atoms if options.atoms else measure.after_three_cycles)
        counts, references = measure.counts(system, wanted), {}
        for (bra, ket, _), made, row in zip(todo, found, rows, strict=True):
            quartets, row["primitives"] = counts[bra, ket]
            row["quartets"] = quartets
            if (bra, ket) not in references:
                references[bra, ket] = measure.sums(system, {(bra, ket): [two_kernels.lanes(bra, ket)]})()
            run = runner(system, bra, ket, made, quartets)
            differences = [jnp.max(jnp.abs(a - b)) for a, b in zip(run(), references[bra, ket], strict=True)]
            row["error"] = f"{max(map(float, differences)):.0e}"
            row["rate"] = round(quartets / measure.seconds(run, repeat=1) / 1e6, 1)
            print(row, flush=True)
    if options.json:
        measure.keep(options.json, rows)
    print(page(rows))


if __name__ == "__main__":
    main()
