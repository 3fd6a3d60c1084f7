"""`jaxqc kernels`: the compiled integral kernels."""

import ctypes
import json
import os
from importlib.util import find_spec

from jaxqc import _config as _config  # before anything of JAX is used
from jaxqc.cli import CONVERGED, UsageError

_LETTERS = "spdfghi"
_NAMES = {"baseline": "x86-64-v2 (SSE)", "avx2": "AVX2", "avx512": "AVX-512"}


def run(options) -> int:
    """Runs the command and returns the exit status."""
    if options.action != "list":
        raise UsageError(
            f"There is nothing to {options.action}: the CPU kernels come compiled with jaxqc, and kernels for GPUs are "
            "not available yet."
        )
    from rich.console import Console

    try:
        print_list(Console())
    except (ImportError, ValueError) as error:
        raise UsageError(str(error)) from error
    return CONVERGED


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
