"""What the GPU experiments of two-electron integrals share: systems, launches of chosen kernels, counts of work."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from pyscf import scf

import jaxqc
from jaxqc.ffi_kernels.rcg.cartesian import ncomp, nsph, pair_components
from jaxqc.ffi_kernels.rcg.cuda import HEADER
from jaxqc.ffi_kernels.rcg.graph import Graph, vrr_graph
from jaxqc.ffi_kernels.rcg.hrr import LinearGraph, hrr_graph
from jaxqc.gpu import Unit, call, result
from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_jk, _cuda_pairs
from jaxqc.integrals._cuda_classes import Kernel, Pair, Quartets, Variant
from jaxqc.integrals._decontraction import two_electron_shells

THRESHOLD = 1e-13
PEAK = 34.0  # TFLOP/s of an H200 in double precision; 67 by matrix units, which these kernels do not use
SHARED = 33.0  # TB/s of shared memory: 128 bytes a cycle and multiprocessor at 1.98 GHz
ATOMICS = 0.3  # 10^12 additions/s to contiguous doubles in the second-level cache, measured on an H200
VARIANT = Variant(cart=False, coulomb=False)  # J is made of Hermite Gaussians: extended molecules
BOTH = Variant(cart=False)  # molecules of few shells
_J = 12  # where the result J is among the arguments of a kernel
COUNT = str(Path(__file__).with_name("eri_gpu_count.cu"))


@dataclass(frozen=True)
class System:
    """A molecule ready for its kernels: pairs, the density of atoms, bounds."""

    name: str
    basis: str
    mol: jaxqc.Molecule
    matrix: jax.Array
    plan: _cuda_pairs.PairPlan
    operands: tuple[jax.Array, ...]
    pairs: _cuda_pairs.Pairs
    density: jax.Array
    bounds: tuple[jax.Array, jax.Array]

    @property
    def classes(self) -> list[tuple[Pair, Pair]]:
        return classes.classes([c[:2] for c in self.plan.classes])


def prepare(plan: _cuda_pairs.PairPlan, centers: jax.Array, exponents: jax.Array, coefficients: jax.Array):
    """All pairs."""
    schwarz = functools.partial(_cuda_jk.schwarz, plan)
    return _cuda_pairs.prepare(plan, centers, exponents, coefficients, THRESHOLD, schwarz)


def of_atoms(mol: jaxqc.Molecule) -> jax.Array:
    """The density of atoms."""
    return jnp.asarray(np.asarray(scf.hf.init_guess_by_minao(mol.to_pyscf())))


def after_three_cycles(mol: jaxqc.Molecule) -> jax.Array:
    """The density of three cycles of plain iterations from that of atoms; extended, as a converged one is."""
    density = of_atoms(mol)
    core = jaxqc.integrals.kinetic(mol) + jaxqc.integrals.nuclear(mol)
    values, vectors = jnp.linalg.eigh(jaxqc.integrals.overlap(mol))
    root = vectors / jnp.sqrt(values)

    @jax.jit
    def cycle(density):
        j, k = jaxqc.integrals.jk(mol, density, symmetric=True)
        assert j is not None and k is not None
        c = root @ jnp.linalg.eigh(root.T @ (core + j - 0.5 * k) @ root)[1][:, : mol.nelec // 2]
        return 2.0 * c @ c.T

    for _ in range(3):
        density = cycle(density)
    return density


def load(text: str, guess: Callable[[jaxqc.Molecule], jax.Array] = after_three_cycles) -> System:
    """A system from NAME=FILE:BASIS or FILE:BASIS, with the density that `guess` makes."""
    name, _, rest = text.rpartition("=")
    file, _, basis = rest.rpartition(":")
    mol = jaxqc.Molecule(file, basis=basis)
    matrix = guess(mol)
    shells, contraction = two_electron_shells(mol)
    density = matrix if contraction is None else contraction @ matrix @ contraction.T
    plan = _cuda_pairs.plan(shells.ls, shells.nprims, mol.cart)
    operands = (shells.centers, shells.exponents, shells.coefficients)
    pairs = jax.jit(functools.partial(prepare, plan))(*operands)
    bounds = _cuda_pairs.density_bounds(plan.ls, mol.cart, density[None])
    return System(name or Path(file).stem, basis.lower(), mol, matrix, plan, operands, pairs, density[None], bounds)


def seconds(function, *arguments, repeat=3, rounds=3) -> float:
    """Median over rounds of the mean time of calls enqueued one after the other; the first call is not counted."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(repeat):
            out = function(*arguments)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - begin) / repeat)
    return float(np.median(times))


@contextlib.contextmanager
def only(kernels: Mapping[tuple[Pair, Pair], Sequence[Kernel]]):
    """Builds made of the kernels given alone."""
    with (
        mock.patch.object(classes, "classes", lambda pairs: list(kernels)),
        mock.patch.object(classes, "kernels", lambda bra, ket, variant: kernels[bra, ket]),
    ):
        yield


def sums(system: System, kernels: Mapping[tuple[Pair, Pair], Sequence[Kernel]], variant: Variant = VARIANT):
    """A jitted function that runs kernels for all quartets of their classes; call it with no arguments."""

    def blocked(pairs, density, bounds):
        with only(kernels):
            return _cuda_jk.blocked(system.plan, pairs, density, bounds, variant, 0.0, THRESHOLD, test=False)

    run = jax.jit(blocked)
    return lambda: run(system.pairs, system.density, system.bounds)


def with_blocks(kernel: Kernel, blocks: int) -> Kernel:
    """The same kernel compiled for another number of blocks on a multiprocessor."""
    defines = tuple((k, blocks if k == "MINBLOCKS" else v) for k, v in kernel.unit.defines)
    return replace(kernel, unit=replace(kernel.unit, defines=defines))


def in_tier(
    bra: Pair,
    ket: Pair,
    tier: str,
    blocks: int = 1,
    columns: int = -1,
    variant: Variant = VARIANT,
    quartets: Quartets = Quartets.ALL,
) -> Kernel:
    """The kernel of a class in a tier; `columns` f of (e0|f0) in shared memory, as in the table if negative."""
    patch = mock.patch.multiple(
        classes,
        shape=lambda *_, **__: (tier == "registers", blocks),
        other_shapes=lambda _: {digits(bra, ket): (tier, blocks)},
        choice=classes.choice if columns < 0 else lambda what, *_, **__: columns if what == "columns" else None,
    )
    with patch:
        return classes.kernel.__wrapped__(bra, ket, variant, quartets=quartets)


def count_kernel(bra: Pair, ket: Pair, variant: Variant = VARIANT) -> Kernel:
    """What takes the place of the kernel of a class to count its quartets."""
    header = in_tier(bra, ket, "lanes").unit.generated[0][1]
    chosen = dict(in_tier(bra, ket, "registers").unit.defines) | {"COULOMB": int(variant.coulomb)}
    defines = tuple(chosen.items())
    unit = Unit(COUNT, ("eri_count",), defines, ("eri_quartets.cuh",), ((HEADER, header),))
    return Kernel(unit, bra, ket, True, 128, 0, 1)


def counts(
    system: System, wanted: Sequence[tuple[Pair, Pair]], variant: Variant = VARIANT
) -> dict[tuple[Pair, Pair], tuple[int, int]]:
    """Of each class: quartets that pass the screening, and quartets of primitives in them."""

    def record(target, steps, results, *operands, zeroed=(), **_):
        found = [
            replace(s, kernel="eri_count", arguments=(*s.arguments[:_J], result(0, 16 * n), *s.arguments[_J + 1 :]))
            for n, s in enumerate(steps)
        ]
        shape = jax.ShapeDtypeStruct((2 * len(found),), jnp.int64)
        return call(target, found, [shape] * len(results), *operands, zeroed=zeroed)

    with mock.patch.object(_cuda_jk, "call", record):
        found = np.asarray(sums(system, {c: [count_kernel(*c, variant)] for c in wanted}, variant)()[0]).reshape(-1, 2)
    # Long classes are launched first: the order of the steps is the reverse of that of the classes
    return {c: (int(n), int(m)) for c, (n, m) in zip(reversed(wanted), found, strict=True)}


# Floating-point operations: additions and multiplications one by one, or instructions, where a fused multiply-add
# counts once.


def _vertical(graph: Graph, fused: bool) -> int:
    """Two, four and two for the terms of a node of two, four, and three or five parents."""
    return sum(len(p) if fused else {0: 0, 2: 3, 3: 5, 4: 7, 5: 9}[len(p)] for p in graph.parents)


def _linear(graph: LinearGraph, fused: bool) -> int:
    total = 0
    for group in filter(None, graph.terms):
        products = [(t.axis is not None) + (t.coefficient != 1.0) for t in group]
        total += len(group) - 1
        total += sum(max(n - 1, 0) for n in products) + (min(products) > 0) if fused else sum(products)
    return total


def _setup(total: int, lanes: bool) -> int:
    """From two pairs of primitives to the values of the Boys function, or to roots and weights."""
    common = 25
    if lanes:
        return common + (total // 2 + 1) * 2 * 27
    return common + 15 + (22 + 3 * total if total else 0) + 30


@functools.cache
def operations(bra: Pair, ket: Pair, tier: str, coulomb: bool = False, fused: bool = False) -> tuple[int, int]:
    """Operations of a quartet of primitives, and those once for each contracted quartet, with K (and J)."""
    ne, nf = ncomp(*bra), ncomp(*ket)
    nab, ncd = nsph(bra[0]) * nsph(bra[1]), nsph(ket[0]) * nsph(ket[1])
    total, each = sum(bra) + sum(ket), 1 if fused else 2
    if tier == "registers":
        primitive = _setup(total, False) + _vertical(vrr_graph((*bra, *ket)), fused) + ne * nf
    else:
        roots, top, low = total // 2 + 1, sum(bra), sum(ket)
        table = sum(2 * e + 1 for e in range(top)) + low * (5 * top + 1) + max(low - 1, 0) * 2 * (top + 1)
        planes = sum(1 for _ in {(x, y) for x, y, _ in pair_components(*bra)})
        primitive = _setup(total, True) + 3 * roots * (12 + table // (3 - each)) + roots * nf * (planes + each * ne)
    carried = nf * _linear(hrr_graph(*bra), fused) + nab * _linear(hrr_graph(*ket), fused)
    return primitive, carried + (4 + 2 * coulomb) * each * nab * ncd


def flops(
    bra: Pair, ket: Pair, tier: str, quartets: int, primitives: int, coulomb: bool = False, fused: bool = False
) -> float:
    """All operations of a class."""
    each, once = operations(bra, ket, tier, coulomb, fused)
    return each * primitives + once * quartets


def least_seconds(
    bra: Pair, ket: Pair, tier: str, quartets: int, primitives: int, coulomb: bool = False, spill: int = 0
) -> dict[str, float]:
    """What each limit of the device alone would allow: instructions of the FP64 units, the first-level cache and shared
    memory, and additions to matrices.

    **Arguments:** `spill`: bytes of stores and loads of spilled registers, counted once a quartet.
    """
    na, nb, nc, nd = (nsph(l) for l in bra + ket)
    blocks = (na + nb) * (nc + nd)  # elements of K that a quartet adds to
    if tier == "registers":
        added = blocks + nc * nd * coulomb
        moved = (16.0 * added + spill) * quartets
    else:
        nf, roots, row = ncomp(*ket), (sum(bra) + sum(ket)) // 2 + 1, sum(bra) + 1 + (sum(bra) + 1) % 2
        added = blocks + nf * coulomb
        moved = 24.0 * row * roots * (nf + sum(ket) + 1) * primitives
        moved += 8.0 * na * nb * (2 * nf + 4 * (nc + nd)) * quartets
    return {
        "FP64": flops(bra, ket, tier, quartets, primitives, coulomb, fused=True) / (0.5 * PEAK) / 1e12,
        "L1": moved / SHARED / 1e12,
        "atomics": added * quartets / ATOMICS / 1e12,
    }


def label(*pairs: Pair) -> str:
    """(dp|pp) for ((2, 1), (1, 1))."""
    return "(" + "|".join("".join("spdfghi"[l] for l in p) for p in pairs) + ")"


def digits(bra: Pair, ket: Pair) -> str:
    return "".join(map(str, bra + ket))


def table(head, rows) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(x).replace("|", "\\|") for x in row) + " |" for row in lines) + "\n"


def keep(path: Path | None, data) -> None:
    """Prints results, and writes them to a file where one is given."""
    text = json.dumps(data, indent=1)
    print(text if path is None else f"wrote {path}", flush=True)
    if path is not None:
        path.write_text(text + "\n")
