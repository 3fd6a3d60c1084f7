"""`jaxqc nnqs`: reads a molecule or a FCIDUMP file, runs neural selected CI, shows it live and prints what came out."""

import math
import re
import sys
import time
from pathlib import Path

from jaxqc.cli import CONVERGED, NOT_CONVERGED, UsageError, other_platform

# Options whose names are not those of the arguments that they become.
_OPTIONS = {"target_size": "size", "nroots": "roots", "number": "devices", "path": "plot"}
_LEAST_MEMORY = 2**-16  # GiB


def add_parser(commands) -> None:
    """Adds the command to the parser of all commands."""
    nnqs = commands.add_parser(
        "nnqs",
        help="selected configuration interaction with a neural wave function",
        description="Ground-state energy by selected configuration interaction with a neural wave function.",
        epilog="Example: jaxqc nnqs examples/water.xyz --basis sto-3g --steps 600 --size 120 --checkpoint run",
    )
    nnqs.add_argument("file", metavar="FILE", help="geometry as an XYZ file, or a FCIDUMP file of integrals")
    molecule = nnqs.add_argument_group("molecule (not for FCIDUMP files)")
    molecule.add_argument("--basis", metavar="B", help="basis set: a name such as cc-pvdz, or a file")
    molecule.add_argument("--charge", type=int, default=0, metavar="Q", help="total charge (default 0)")
    molecule.add_argument("--spin", type=int, default=0, metavar="S", help="unpaired electrons, 2S (default 0)")
    molecule.add_argument("--unit", choices=("angstrom", "bohr"), default="angstrom", help="of FILE (default angstrom)")
    molecule.add_argument(
        "--frozen", type=int, default=0, metavar="N", help="lowest orbitals that stay doubly occupied"
    )
    molecule.add_argument("--active", type=int, metavar="N", help="orbitals kept after those (default: all)")
    molecule.add_argument("--natural", action="store_true", help="natural orbitals of a small selected CI")

    run = nnqs.add_argument_group("calculation")
    run.add_argument("--size", type=int, default=1000, metavar="K", help="configurations in the set (default 1000)")
    run.add_argument("--steps", type=int, default=1000, metavar="N", help="steps of the optimiser (default 1000)")
    run.add_argument("--pretrain", type=int, default=200, metavar="N", help="of these, to learn the first CI vector")
    run.add_argument("--refresh", type=int, default=100, metavar="N", help="steps between growths of the set")
    run.add_argument("--rate", type=float, default=1e-3, metavar="R", help="learning rate of AdamW (default 1e-3)")
    run.add_argument("--seed", type=int, default=0, metavar="I", help="of the first parameters (default 0)")
    run.add_argument(
        "--energy", choices=("projected", "connected"), default="projected", help="which the network lowers"
    )
    run.add_argument("--select", choices=("importance", "amplitude"), default="importance", help="how the set grows")
    run.add_argument("--roots", type=int, default=1, metavar="N", help="lowest states on the set (default 1)")
    run.add_argument("--complex", action="store_true", help="a network with a phase instead of a sign")
    run.add_argument("--spin-flip", action="store_true", help="a network that is even under exchange of spins")
    run.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="budget of memory (default 2)")
    run.add_argument("--devices", type=int, metavar="N", help="work over so many of JAX's devices (default: on one)")

    output = nnqs.add_argument_group("output")
    output.add_argument("--log", metavar="OUT", help="write the history to this file, a JSON object a line")
    output.add_argument("--tensorboard", metavar="DIR", help="directory for event files that TensorBoard shows")
    output.add_argument("--plot", metavar="OUT", help="draw the extrapolation and the training to this file")
    output.add_argument("--checkpoint", metavar="DIR", help="directory for checkpoints")
    output.add_argument(
        "--resume", action="store_true", help="go on from the newest one, to the same result to the bit"
    )
    output.add_argument(
        "--quiet", action="store_true", help="print the extrapolated energy in Hartree and nothing else"
    )


def run(options) -> int:
    """Runs the command and returns the exit status."""
    from jaxqc import _config as _config  # before anything of JAX is used

    start = time.perf_counter()
    if problem := other_platform():
        raise UsageError(problem)
    try:
        ham = _hamiltonian(options)
        settings = _settings(options, ham)
    except (TypeError, ValueError, OSError, NotImplementedError) as error:
        raise UsageError(_sentence(error)) from error
    from jaxqc import nnqs
    from jaxqc._cli_interrupt import compiled_program

    view = _View(options, ham, start)
    try:
        with view, compiled_program():
            out = nnqs.solve(ham, callback=view.report, **settings)
    except (TypeError, ValueError, OSError) as error:
        raise UsageError(_sentence(error)) from error
    except FloatingPointError as error:
        print(f"jaxqc nnqs: {str(error).split(';')[0]}; try a smaller --rate.", file=sys.stderr)
        return NOT_CONVERGED
    view.summary(out)
    if options.plot is not None:
        try:
            nnqs.plot(out, options.plot)
        except (ValueError, OSError, ImportError) as error:
            raise UsageError(_sentence(error)) from error
    return CONVERGED


def _hamiltonian(options):
    from jaxqc.molecule import Molecule
    from jaxqc.nnqs import Hamiltonian

    path = Path(options.file)
    with path.open(encoding="utf-8", errors="replace") as file:
        is_fcidump = file.read(200).lstrip()[:4].upper() in ("&FCI", "$FCI")
    if is_fcidump:
        if options.basis is not None:
            raise ValueError(f"The file {path} is a FCIDUMP file, which has its own orbitals; leave out --basis.")
        return Hamiltonian.from_fcidump(path)
    if options.basis is None:
        raise ValueError(f"Argument --basis is missing: {path} is a geometry, which needs a basis set such as cc-pvdz.")
    mol = Molecule(path, basis=options.basis, charge=options.charge, spin=options.spin, unit=options.unit)
    return Hamiltonian.from_molecule(mol, frozen=options.frozen, active=options.active, natural=options.natural)


def _settings(options, ham):
    from jaxqc.nnqs import Transformer, make_mesh
    from jaxqc.nnqs._plot import checked_figure
    from jaxqc.nnqs._train import import_optax

    if not 0 < options.rate < math.inf:
        raise ValueError(f"Argument --rate is {options.rate}; it must be above 0 and finite.")
    if not _LEAST_MEMORY <= options.memory < math.inf:
        raise ValueError(
            f"Argument --memory is {options.memory}; it must be a finite number of GiB, at least {_LEAST_MEMORY:.2g}."
        )
    if options.resume and options.checkpoint is None:
        raise ValueError("Option --resume needs --checkpoint, the directory to read.")
    if options.plot is not None:
        checked_figure(options.plot)
    network = {"real": not options.complex, "spin_flip": options.spin_flip}
    return {
        "module": Transformer(ham.norb, ham.nalpha, ham.nbeta, **network),
        "optimizer": import_optax().adamw(options.rate),
        "target_size": options.size,
        "memory": int(options.memory * 2**30),
        "mesh": None if options.devices is None else make_mesh(options.devices),
        "nroots": options.roots,
        "log": options.log,
        "tensorboard": options.tensorboard,
        "checkpoint": options.checkpoint,
        **{
            name: getattr(options, name)
            for name in ("steps", "pretrain", "refresh", "seed", "energy", "select", "resume")
        },
    }


class _View:
    """What is shown while it runs: a live table on a terminal, else a line now and then."""

    def __init__(self, options, ham, start):
        from jaxqc._cli_view import make_console

        self.console = make_console(quiet=options.quiet)
        self.options, self.start, self.live = options, start, None
        self.sets: list[dict] = []
        self.last: dict = {}
        self.rate, self.clock = 0.0, (0, start)
        electrons = f"{ham.nalpha} alpha and {ham.nbeta} beta electrons in {ham.norb} orbitals"
        self.console.print(f"[bold]neural selected CI[/]  {electrons}  ({options.file})", highlight=False)

    def __enter__(self):
        from rich.live import Live

        if self.console.is_terminal and not self.options.quiet:
            self.live = Live(self, console=self.console, refresh_per_second=8)
            self.live.start()
        return self

    def __exit__(self, *_):
        if self.live is not None:
            self.live.stop()

    def report(self, record):
        """The callback of `jaxqc.nnqs.solve`."""
        now = time.perf_counter()
        if record["kind"] == "train":
            step, before = self.clock
            if record["step"] > step:
                self.rate = (record["step"] - step) * record["size"] / max(now - before, 1e-9)
            self.clock = record["step"], now
            self.last = record
        elif record["kind"] == "set":
            self.sets.append(record)
            self.clock = record["step"], now
        if self.live is None and (record["kind"] == "set" or record["step"] % max(self.options.steps // 20, 1) < 10):
            self._line(record)

    def _line(self, record):
        if record["kind"] == "set":
            text = f"E_CI {record['e_ci']:.8f}  E_PT2 {record['e_pt2']:.8f}  <S^2> {record['spin_square']:.4f}"
        elif record["kind"] == "train":
            text = f"energy {record['energy']:.8f}  variance {record['variance']:.2e}  loss is {record['loss_is']}"
        else:
            return
        place = f"step {record['step']:>6}  {record['size']:>8} configurations  "
        self.console.print(place + text, highlight=False, soft_wrap=True)

    def __rich__(self):
        from rich.box import SIMPLE
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE, pad_edge=False, header_style="bold")
        for header in ("configurations", "E_CI / Hartree", "E_PT2", "E_CI + E_PT2", "<S^2>", "time / s"):
            table.add_column(header, justify="right", no_wrap=True)
        for record in self.sets[-max(self.console.height - 12, 4) :]:
            total = record["e_ci"] + record["e_pt2"]
            table.add_row(
                f"{record['size']}", f"{record['e_ci']:.8f}", f"{record['e_pt2']:.8f}", f"{total:.8f}",
                f"{record['spin_square']:.4f}", f"{record['seconds']:.1f}",
            )  # fmt: skip
        parts: list = [table]
        elapsed = time.perf_counter() - self.start
        if self.last:
            last = self.last
            parts.append(
                Text.assemble(
                    ("network  ", "bold"),
                    (f"{last['energy']:.8f}", "bold cyan"),
                    " Hartree   variance ",
                    f"{last['variance']:.2e}   weight on the set {last['weight']:.4f}   ({last['loss_is']})",
                )  # fmt: skip
            )
        step = self.last.get("step", 0)
        parts.append(ProgressBar(total=max(self.options.steps, 1), completed=step, width=40))
        rate = f", {self.rate:,.0f} configurations/s" if self.rate else ", compiling"
        parts.append(Text(f"step {step} of {self.options.steps}{rate}, {elapsed:.0f} s", style="dim"))
        return Group(*parts)

    def summary(self, out):
        """The energies at the end."""
        from rich.box import SIMPLE
        from rich.table import Table

        if self.options.quiet:
            print(f"{out.e_extrapolated:.10f}")
            sys.stdout.flush()
            return
        table = Table(box=SIMPLE, pad_edge=False, header_style="bold")
        table.add_column("Energy", no_wrap=True)
        table.add_column("Hartree", justify="right", no_wrap=True)
        bound = "upper bound" if self.options.energy == "projected" else "no bound"
        table.add_row(f"network ({bound})", f"{out.energy:.10f}")
        table.add_row("E_CI (upper bound)", f"{out.e_ci:.10f}", style="bold")
        table.add_row("E_PT2", f"{out.e_pt2:.10f}")
        table.add_row("extrapolated", f"{out.e_extrapolated:.10f}", style="bold")
        table.add_row("  its error, estimated", f"{out.extrapolation_error:.10f}")
        self.console.print(table)
        if len(out.states) > 1:
            self.console.print(_excitations(out.states))
        found = f"{int(out.configurations.count)} configurations, <S^2> {out.spin_square:.6f}, {out.steps} steps"
        self.console.print(f"{found}, wall time {time.perf_counter() - self.start:.1f} s", highlight=False)


def _excitations(states):
    """A table of the states on the set."""
    from rich.box import SIMPLE
    from rich.table import Table

    from jaxqc.scf._view import HARTREE_IN_EV

    table = Table(box=SIMPLE, pad_edge=False, header_style="bold")
    for header in ("state", "E_CI / Hartree", "extrapolated", "excitation / eV", "<S^2>", "residual"):
        table.add_column(header, justify="right", no_wrap=True)
    for k, state in enumerate(states):
        excitation = (state.e_extrapolated - states[0].e_extrapolated) * HARTREE_IN_EV
        table.add_row(
            f"{k}", f"{state.e_ci:.10f}", f"{state.e_extrapolated:.10f}", f"{excitation:.4f}",
            f"{state.spin_square:.6f}", f"{state.residual:.1e}",
        )  # fmt: skip
    return table


def _sentence(error):
    """The message of an error in one line, in which arguments are options."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(
        r"Argument (\w+) of jaxqc\.nnqs\.(?:solve|plot|make_mesh|Hamiltonian\.from_molecule) ",
        lambda found: f"Argument --{_OPTIONS.get(found[1], found[1]).replace('_', '-')} ",
        text,
    )
    return text.replace("resume=True", "--resume")
