"""`jaxqc kernels`: the compiled kernels for CPUs and GPUs; and in a few words, which of them run."""

import ctypes
import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jaxqc import _config as _config  # before anything of JAX is used
from jaxqc.cli import CONVERGED, UsageError

if TYPE_CHECKING:
    from jaxqc.gpu import Unit

_LETTERS = "spdfghi"
_VARIABLES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME")
_NAMES = {"baseline": "x86-64-v2 (SSE)", "avx2": "AVX2", "avx512": "AVX-512"}


def run(options) -> int:
    """Runs the command and returns the exit status."""
    from rich.console import Console

    console = Console()
    try:
        if options.action == "list":
            print_list(console)
            print_cubins(console)
        elif options.action == "build":
            build(options, console)
        else:
            clear(console)
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(str(error)) from error
    return CONVERGED


def describe_device() -> str:
    """Says in a few words what computes here.

    **Raises:** `ValueError` where JAX cannot use what the environment asks for; `ImportError` where there is a GPU but
    not what compiles or starts its kernels.
    """
    from jaxqc._platform import default_platform, on_gpu

    try:
        platform = default_platform()
    except Exception as error:  # also an AssertionError, where a plugin is missing
        asked = " and ".join(f"{n}={os.environ[n]!r}" for n in _VARIABLES if os.environ.get(n)) or "the default"
        raise ValueError(
            f"JAX cannot compute with {asked}: {str(error).rstrip('.') or 'there is no such device'}. For an NVIDIA "
            "GPU install jax[cuda13]; for the CPU set JAX_PLATFORMS=cpu."
        ) from error
    if platform == "cpu":
        return describe_kernels()
    if not on_gpu():
        raise ValueError(
            f"JAX computes on {platform!r} here, but jaxqc computes on the CPU and on NVIDIA GPUs only. Set the "
            "environment variable JAX_PLATFORMS=cpu."
        )
    import jax

    from jaxqc.gpu import check_ready

    check_ready()
    return f"CUDA kernels, {jax.local_devices()[0].device_kind}"


def describe_kernels() -> str:
    """Says in a few words which kernels run, and on how many threads."""
    isa = isa_in_use()
    return f"{_NAMES.get(isa, isa)} kernels, {threads()} thread" + ("" if threads() == 1 else "s")


def isa_in_use() -> str:
    """Returns the instruction set that runs: the best of the processor, or the one in JAXQC_ISA."""
    from jaxqc.integrals._library import load

    function = load().jaxqc_isa
    function.restype = ctypes.c_char_p
    return function().decode()


def threads() -> int:
    """Returns how many threads the kernels use: JAXQC_NUM_THREADS, or all processors."""
    asked = os.environ.get("JAXQC_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else os.cpu_count() or 1


def print_list(console) -> None:
    """Prints the instruction set in use and the classes of two-electron integrals."""
    from rich.table import Table

    from jaxqc.integrals._library import _library_path

    path = _library_path()
    console.print(f"CPU kernels: {describe_kernels()}", highlight=False)
    console.print(f"library: {path}", highlight=False, markup=False, soft_wrap=True)
    build = path.parent / "kernels.json"
    if not build.is_file() or find_spec("jaxqc.ffi_kernels") is None:
        console.print("This library was not built by `pip install`, so its classes are not listed.")
        return
    facts = json.loads(build.read_text(encoding="utf-8"))
    console.print(f"compiled for {', '.join(facts['instruction_sets'])} by {facts['compiler']}", highlight=False)
    console.print(
        "\nTwo-electron classes (ab|cd), bra and ket interchangeable. Those below are straight-line code, generated "
        "from the Head-Gordon-Pople recurrence; every other class up to (ii|ii) runs on Rys tables. In brackets: first "
        "derivatives on Rys tables.\n",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("bra")
    table.add_column("kets")
    classes = _straight_line(facts["line_lmax"], facts["line_size"])
    derivatives = _straight_line(facts["line_lmax"], facts["gradient_size"])
    rows: dict[str, list[str]] = {}
    for cls in classes:
        bra, ket = _pair(cls[:2]), _pair(cls[2:])
        rows.setdefault(bra, []).append(ket if cls in derivatives else f"({ket})")
    for bra, kets in rows.items():
        table.add_row(bra, " ".join(kets))
    console.print(table, highlight=False)
    console.print(f"\n{len(classes)} classes, {len(derivatives)} of them with first derivatives", highlight=False)


def _straight_line(lmax, size):
    from jaxqc.ffi_kernels.rcg.emit import classes

    return classes(lmax, size)


def _pair(angular):
    return "".join(_LETTERS[l] for l in angular)


def print_cubins(console) -> None:
    """Prints the kernels for GPUs that are kept on disk."""
    from jaxqc.gpu import _cache

    entries = _cache.entries()
    heading = f"\nGPU kernels in {_cache.folder()}: {len(entries)} units"
    console.print(heading, highlight=False, markup=False, soft_wrap=True)
    for name, size in entries:
        console.print(f"{size / 1024:8.0f} kB  {name}", highlight=False, markup=False, soft_wrap=True)


def clear(console) -> None:
    """Removes the kernels for GPUs that are kept on disk."""
    from jaxqc.gpu import _cache

    done = f"Removed {_cache.clear()} compiled units from {_cache.folder()}."
    console.print(done, highlight=False, markup=False, soft_wrap=True)


def build(options, console) -> None:
    """Compiles all kernels for GPUs that a basis set needs, on a machine with or without a GPU."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from jaxqc import gpu

    if not options.basis:
        raise ValueError("Argument --basis is missing: the basis set whose kernels are to be built.")
    momenta = _momenta(options.basis, options.elements)
    arch = options.arch or _arch_here()
    gpu.nvrtc()
    units = units_of_basis(momenta, options.cart, arch)
    columns = (TextColumn("sm_{task.fields[arch]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(units), arch=arch)
        gpu.build(units, arch, lambda _: progress.advance(task))
    letters = "".join(_LETTERS[l] for l in momenta)
    console.print(f"{len(units)} units for {letters} functions on sm_{arch}", highlight=False)


def _momenta(basis, elements) -> tuple[int, ...]:
    """The angular momenta that a basis set has for some elements."""
    from jaxqc.basis import resolve_basis
    from jaxqc.elements import parse_label

    labels = [parse_label(symbol.strip()) for symbol in elements.split(",") if symbol.strip()]
    if not labels:
        raise ValueError("Argument --elements names no element; give some, such as H,C,N,O.")
    _, blocks = resolve_basis(basis, labels)
    return tuple(sorted({block.l for of_atom in blocks.values() for block in of_atom}))


def _arch_here() -> int:
    from jaxqc._platform import default_platform, on_gpu

    if not on_gpu():
        raise ValueError(
            f"Argument --arch is missing, and JAX computes on {default_platform()!r} here, so there is no GPU to build "
            "for. Name one, such as --arch sm_90 for an H100 or H200."
        )
    from jaxqc.gpu._launch import architecture

    return architecture()


def units_of_basis(momenta: tuple[int, ...], cart: bool, arch: int) -> "list[Unit]":
    """All that calculations in a basis with these angular momenta compile on a GPU: integrals, functionals, grids."""
    from jaxqc.integrals import _cuda_gradient, _cuda_jk, _cuda_one_electron, _cuda_pairs
    from jaxqc.xc import _cuda_partition, _cuda_units
    from jaxqc.xc._grid_becke import PARTITIONS

    units = [_cuda_one_electron.UNIT, _cuda_pairs.UNIT]
    for module in (_cuda_jk, _cuda_gradient):
        units += module.units_for(momenta, cart, arch)
    units += _cuda_units.units_for(max(momenta), cart, arch)
    units += [_cuda_partition.unit_of(p, reverse) for p in PARTITIONS for reverse in (False, True)]
    return list(dict.fromkeys(units))
