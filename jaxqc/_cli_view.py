"""What `jaxqc scf` prints: a live table of the iterations and a summary, both plain where there is no terminal."""

import time

import numpy as np
from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jaxqc._summary import Summary
from jaxqc.elements import BOHR
from jaxqc.scf._result import DEBYE
from jaxqc.scf._view import HARTREE_IN_EV

# Above so many atoms a terminal shows the first ones only; --json has them all.
_MAX_ATOMS = 200


def make_console(**options) -> Console:
    """A console that does not fold tables where the output goes to a file."""
    console = Console(**options)
    return console if console.is_terminal else Console(width=160, **options)


class Iterations:
    """A context in which `report` shows one row for each cycle while they run."""

    def __init__(self, console: Console, start: float):
        self.console, self.start = console, start
        self._rows: list[tuple[str, ...]] = []
        self._live = None
        self.error: BaseException | None = None  # of the output, to be raised when the calculation is over

    def __enter__(self):
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=8, vertical_overflow="ellipsis")
            self._live.start()
        else:
            self._line(_HEADERS)
        return self

    def __exit__(self, *_):
        if self._live is not None:
            live, self._live = self._live, None
            live.vertical_overflow = "visible"
            live.stop()

    def report(self, cycle, energy, change, gradient_norm, second_order):
        """The callback of `jaxqc.scf`."""
        method = "Newton" if second_order else "DIIS"
        shown = "" if cycle == 1 and not np.isfinite(change) else f"{change:.2e}"
        row = (f"{cycle}", f"{energy:.10f}", shown, f"{gradient_norm:.2e}", method, f"{self._elapsed():.1f}")
        self._rows.append(row)
        if self._live is None and self.error is None:
            try:
                self._line(row)
            except (OSError, SystemExit) as error:  # full, or its reader has gone
                self.error = error

    def __rich__(self):
        parts = []
        if self._rows:
            parts.append(self._table())
        if self._live is not None:
            parts.append(self._spinner)
            doing = "iterating" if self._rows else "loading and compiling"
            self._spinner.update(text=Text(f"{doing}, {self._elapsed():.0f} s", style="dim"))
        return Group(*parts)

    _spinner = Spinner("dots", style="cyan")

    def _elapsed(self):
        return time.perf_counter() - self.start

    def _line(self, row):
        text = "".join(f"{value:>{width}}" for value, width in zip(row, _WIDTHS, strict=True))
        self.console.print(Text(text), soft_wrap=True)

    def _table(self):
        rows = self._rows
        if self._live is not None and len(rows) > (room := max(self.console.height - 8, 4)):
            rows = rows[-room:]  # the newest rows have to be in sight
        table = Table(box=SIMPLE, pad_edge=False, header_style="bold")
        for header in _HEADERS:
            table.add_column(header, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        return table


_HEADERS = ("cycle", "energy / Hartree", "change", "gradient", "method", "time / s")
_WIDTHS = (5, 20, 12, 12, 9, 11)


def print_header(console: Console, mol, source: str, kind: str, kernels: str) -> None:
    """Says what is going to be computed."""
    console.print(Text.assemble((f"{kind}/{mol.basis}", "bold"), f"  {mol.formula}  ({source})"), soft_wrap=True)
    electrons = f"{mol.nelec} electrons ({mol.nalpha} alpha, {mol.nbeta} beta)"
    functions = f"{mol.nao} {'Cartesian' if mol.cart else 'spherical'} basis functions in {mol.nshell} shells"
    console.print(f"charge {mol.charge}, spin {mol.spin}; {_count(mol.natm, 'atom')}, {electrons}", highlight=False)
    console.print(f"{functions}; {kernels}\n", highlight=False, soft_wrap=True)


def print_summary(console: Console, result, summary: Summary, gradient) -> None:
    """Prints energies, orbitals, the dipole moment and the table of atoms."""
    console.print(_verdict(result))
    console.print()
    console.print(_energies(summary))
    if summary.xc is not None:
        found = f"{summary.grid_points} grid points find {summary.grid_electrons:.6f} electrons"
        console.print(f"  {found}\n", highlight=False)
    console.print(_orbitals(result, summary))
    console.print(_dipole(result.mol, summary))
    if result.reference.kind != "rhf":
        exact = f"(pure spin state: {summary.pure_spin_square:.4f})"
        console.print(f"  <S^2>  {summary.spin_square:.6f}  {exact}\n", highlight=False)
    console.print(_atoms(result, summary))
    if gradient is not None:
        console.print(_gradient(result.mol, gradient))


def _verdict(result):
    cycles, norm = _count(int(result.cycles), "cycle"), float(result.gradient_norm)
    newton = int(result.second_order_cycles)
    extra = f", {newton} of them second order" if newton else ""
    if not bool(result.converged):
        return Text(
            f"NOT CONVERGED after {cycles}{extra}: orbital gradient {norm:.1e} Hartree. The numbers below are those of "
            "an unfinished calculation and must not be used.",
            style="bold red",
        )
    removed = int(result.removed)
    lost = f"; {_count(removed, 'vector')} removed as linearly dependent" if removed else ""
    return Text(f"Converged in {cycles}{extra}; orbital gradient {norm:.1e} Hartree{lost}.", style="green")


def _energies(summary: Summary):
    table = _table("Energy", "Hartree")
    table.add_row("nuclear repulsion", f"{summary.nuclear:.10f}")
    table.add_row("one-electron", f"{summary.one_electron:.10f}")
    table.add_row("two-electron", f"{summary.two_electron:.10f}")
    if summary.xc is not None:
        table.add_row("exchange-correlation", f"{summary.xc:.10f}")
    table.add_row("total energy", f"{summary.energy:.10f}", style="bold")
    return table


def _orbitals(result, summary: Summary):
    table = _table("Orbital", "Hartree", "eV")
    for level in summary.levels:
        spin = f", {level.spin}" if level.spin else ""
        note = ", singly occupied" if result.reference.kind == "rohf" and level.name == "HOMO" else ""
        table.add_row(f"{level.name} (no. {level.number}{spin}{note})", *_two_units(level.energy))
    if summary.gap is not None:
        table.add_row("gap", *_two_units(summary.gap), style="bold")
    return table


def _two_units(energy):
    return f"{energy:.6f}", f"{energy * HARTREE_IN_EV:.3f}"


def _dipole(mol, summary: Summary):
    moment = _rounded(summary.dipole * DEBYE, 4)
    table = _table("Dipole moment / Debye", "x", "y", "z", "total")
    about = "about the origin" if mol.charge else ""
    table.add_row(about, *(f"{value:.4f}" for value in moment), f"{np.linalg.norm(moment):.4f}")
    return table


def _atoms(result, summary: Summary):
    mol = result.mol
    spins = result.reference.kind != "rhf"
    headers = ["x / A", "y / A", "z / A", "Mulliken charge / e"]
    headers += ["spin population"] if spins else []
    table = _table("Atom", *headers)
    coords = _rounded(np.asarray(mol.coords) * BOHR, 4)
    charges, populations = _rounded(summary.charges, 4), _rounded(summary.spin_populations, 4)
    for k, label in enumerate(mol.labels[:_MAX_ATOMS]):
        row = [f"{label} {k + 1}", *(f"{x:.4f}" for x in coords[k]), f"{charges[k]:+.4f}"]
        row += [f"{populations[k]:+.4f}"] if spins else []
        table.add_row(*row)
    _add_rest(table, mol)
    return table


def _gradient(mol, gradient):
    table = _table("Gradient / (Hartree/Bohr)", "dE/dx", "dE/dy", "dE/dz")
    slopes = _rounded(gradient, 8)
    for k, label in enumerate(mol.labels[:_MAX_ATOMS]):
        table.add_row(f"{label} {k + 1}", *(f"{x:.8f}" for x in slopes[k]))
    _add_rest(table, mol)
    size = f"largest component {np.abs(gradient).max():.2e}, norm {np.linalg.norm(gradient):.2e} Hartree/Bohr"
    return Group(table, Text(f"  {size}\n"))


def _add_rest(table, mol):
    if mol.natm > _MAX_ATOMS:
        table.add_row(f"... and {mol.natm - _MAX_ATOMS} more")


def _table(first, *others):
    table = Table(box=SIMPLE, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, min_width=20)
    for header in others:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _rounded(values, digits):
    return np.round(np.asarray(values), digits) + 0.0  # no "-0.0000"


def _count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")
