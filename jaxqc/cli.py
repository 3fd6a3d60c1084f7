"""The shell command `jaxqc`: arguments and exit statuses. Nothing heavy is imported before there is work to do.

Exit status: 0 for a converged calculation, 1 for one that did not converge or whose output could not be written, 2 for
input that cannot be used, 130 after Ctrl-C.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

CONVERGED, NOT_CONVERGED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
OUTPUT_LOST = 1


class UsageError(Exception):
    """Input that cannot be used; the message is a sentence for the user."""


class _Parser(argparse.ArgumentParser):
    def exit(self, status=0, message=None):
        sys.stdout.flush()  # of the help; an error is reported here and not by Python at exit
        super().exit(status, message)

    def error(self, message):
        message = message[:1].upper() + message[1:]
        self.exit(BAD_INPUT, f"{self.prog}: error: {message.rstrip('.')}; `{self.prog} --help` shows the usage.\n")


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = _Parser(
        prog="jaxqc",
        description="Differentiable quantum chemistry in JAX.",
        epilog="Exit status: 0 converged, 1 not converged or output lost, 2 input that cannot be used.",
    )
    parser.add_argument("--version", action="version", version=f"jaxqc {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_scf(commands)
    _add_kernels(commands)
    _add_nnqs(commands)
    return parser


def _add_scf(commands):
    scf = commands.add_parser(
        "scf",
        help="Hartree-Fock or density-functional energy and gradient of a molecule",
        description="Hartree-Fock or Kohn-Sham energy, orbitals, dipole moment, charges and gradient of a molecule.",
        epilog="Example: jaxqc scf examples/water.xyz --basis def2-svp --gradient --json water.json",
    )
    scf.add_argument("file", metavar="FILE", help="geometry: an XYZ file, or - to read it from standard input")
    scf.add_argument("--basis", required=True, metavar="B", help="basis set: a name such as def2-svp, or a file")
    scf.add_argument("--charge", type=int, default=0, metavar="Q", help="total charge (default 0)")
    scf.add_argument("--spin", type=int, default=0, metavar="S", help="unpaired electrons, 2S (default 0)")
    scf.add_argument("--unit", choices=("angstrom", "bohr"), default="angstrom", help="unit of FILE (default angstrom)")
    scf.add_argument("--cart", action="store_true", help="Cartesian instead of spherical basis functions")
    scf.add_argument("--xc", metavar="F", help="functional, such as b3lyp or 'pbe,pbe' (default: none, Hartree-Fock)")
    scf.add_argument(
        "--grid", type=_grid, metavar="L", help="grid of the functional: level 0 to 9 or RADIAL,ANGULAR (default 3)"
    )
    kind = scf.add_mutually_exclusive_group()
    kind.add_argument(
        "--restricted",
        dest="restricted",
        action="store_const",
        const=True,
        help="RHF, or ROHF for open shells (default: RHF for spin 0, else UHF); likewise RKS, ROKS and UKS",
    )
    kind.add_argument("--unrestricted", dest="restricted", action="store_const", const=False, help="UHF")

    steps = scf.add_argument_group("convergence")
    steps.add_argument("--guess", choices=("atom", "core"), default="atom", help="density to start from (default atom)")
    steps.add_argument("--max-cycles", type=int, default=100, metavar="N", help="bound on the cycles (default 100)")
    steps.add_argument(
        "--tolerance", type=float, default=1e-10, metavar="T", help="bound on the last change, Hartree (default 1e-10)"
    )
    steps.add_argument("--level-shift", type=float, default=0.0, metavar="E", help="lift of virtual levels, Hartree")
    steps.add_argument("--damping", type=float, default=0.0, metavar="D", help="share of the old Fock matrix, 0 to 1")
    steps.add_argument(
        "--precision", choices=("double", "mixed"), default="double", help="of the many small integrals on a GPU"
    )
    steps.add_argument("--second-order", action="store_true", help="Newton steps from the start")

    output = scf.add_argument_group("output")
    output.add_argument("--gradient", action="store_true", help="also the nuclear gradient, Hartree/Bohr")
    output.add_argument("--json", metavar="OUT", help="write a QCSchema AtomicResult to this file (- for stdout)")
    output.add_argument("--quiet", action="store_true", help="print the total energy in Hartree and nothing else")


def _grid(text):
    """A level, or a pair of numbers of points."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a level such as 3 nor a pair such as 75,302")
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _add_kernels(commands):
    kernels = commands.add_parser(
        "kernels",
        help="the compiled kernels for CPUs and GPUs",
        description="Compiled kernels. `list`: those of the CPU, and those for GPUs that are kept on disk. `build`: "
        "compiles what a basis set needs on a GPU, also where there is none. `clear`: removes those for GPUs.",
        epilog="Example: jaxqc kernels build --arch sm_90 --basis cc-pvtz",
    )
    kernels.add_argument("action", choices=("list", "build", "clear"), help="list them; build or clear those for GPUs")
    build = kernels.add_argument_group("build")
    build.add_argument("--arch", type=_arch, metavar="A", help="GPU to compile for, such as sm_90 (default: that here)")
    build.add_argument("--basis", metavar="B", help="basis set: a name such as def2-svp, or a file")
    build.add_argument(
        "--elements", metavar="E", default="H,C,N,O,F,P,S,Cl", help="elements (default H,C,N,O,F,P,S,Cl)"
    )
    build.add_argument("--cart", action="store_true", help="Cartesian instead of spherical basis functions")


def _arch(text):
    """The number in the name of an architecture."""
    digits = text.removeprefix("sm_")
    if not (digits.isascii() and digits.isdigit() and 60 <= int(digits) < 1000):
        raise argparse.ArgumentTypeError(f"{text!r} is not an architecture such as sm_90")
    return int(digits)


def _add_nnqs(commands):
    from jaxqc._cli_nnqs import add_parser

    add_parser(commands)


def _version():
    try:
        return version("jaxqc")
    except PackageNotFoundError:
        import jaxqc

        return jaxqc.__version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: those of the shell by default.

    Returns:
        The exit status.
    """
    if sys.stdout is None:
        return _output_lost("it is closed")
    try:
        options = build_parser().parse_args(arguments)
        if arguments is not None:
            return _answer(options)
        from jaxqc._cli_interrupt import answered_at_once

        with answered_at_once():
            return _answer(options)
    except OSError as error:
        return _output_lost("its reader has gone" if isinstance(error, BrokenPipeError) else error.strerror)
    except KeyboardInterrupt:
        print("jaxqc: interrupted.", file=sys.stderr)
        return INTERRUPTED


def _answer(options):
    try:
        status = _run(options)
        sys.stdout.flush()
        return status
    except (UsageError, ImportError) as error:  # a compiled library or a package that is missing or too old
        print(f"jaxqc {options.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except SystemExit as error:  # rich's answer to a reader that has gone
        raise BrokenPipeError from error


def _output_lost(reason):
    with contextlib.suppress(OSError, ValueError, AttributeError):
        # Python must not try to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        print(f"jaxqc: error: Standard output cannot be written to: {reason}.", file=sys.stderr)
    return OUTPUT_LOST


_PLATFORMS = ("cpu", "cuda", "gpu")


def _asked_platforms():
    """What the environment tells JAX to use: the name of the variable, its value, and the platforms in it."""
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        asked = os.environ.get(name, "")
        if asked:
            yield name, asked, asked.lower().replace(" ", "").split(",")


def other_platform() -> str | None:
    """Returns a sentence if the environment tells JAX to use only processors for which jaxqc has no kernels."""
    for name, asked, platforms in _asked_platforms():
        if not set(_PLATFORMS).intersection(platforms):
            return (
                f"The environment variable {name} is {asked!r}, but jaxqc computes on the CPU and on NVIDIA GPUs only; "
                "unset it, or set it to 'cpu' or 'cuda'."
            )
    return None


def _has_cuda() -> bool:
    """Whether JAX is installed with its plugin for NVIDIA GPUs."""
    return any(find_spec(f"jax_cuda{version}_plugin") is not None for version in (12, 13))


def _run(options):
    if options.command == "kernels":
        from jaxqc._cli_kernels import run
    else:
        elsewhere = any("cpu" not in platforms for *_, platforms in _asked_platforms())
        if "jax" not in sys.modules and not elsewhere and not _has_cuda():
            os.environ["JAX_PLATFORMS"] = "cpu"  # JAX need not look for other processors
        if options.command == "nnqs":
            from jaxqc._cli_nnqs import run
        else:
            from jaxqc._cli_scf import run
    return run(options)
