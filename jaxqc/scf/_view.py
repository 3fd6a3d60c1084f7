"""How a result looks to people: text in a terminal, a table in a notebook."""

from html import escape

import jax
import numpy as np
from jax.core import Tracer

from jaxqc.scf._method import grid_fits

HARTREE_IN_EV = 27.21138505  # CODATA 2010, as in PySCF


def _rows(result):
    """Pairs of a name and a value with its unit."""
    reference = result.reference
    rows = [
        ("energy", f"{float(result.energy):.10f} Hartree"),
        ("  nuclear repulsion", f"{float(result.energy_nuclear):.10f} Hartree"),
        ("  one-electron", f"{float(result.energy_one_electron):.10f} Hartree"),
        ("  two-electron", f"{float(result.energy_two_electron):.10f} Hartree"),
        *_on_grid(result),
        ("electrons", f"{reference.nalpha} alpha, {reference.nbeta} beta"),
        ("basis functions", f"{reference.nao}" + _removed(result)),
        ("cycles", f"{int(result.cycles)}" + _second_order(result)),
        ("orbital gradient", f"{float(result.gradient_norm):.1e} Hartree"),
    ]
    for name, value in _frontier(result):
        rows.append((name, f"{value:.6f} Hartree ({value * HARTREE_IN_EV:.3f} eV)"))
    if reference.kind == "uhf":
        half = 0.5 * (reference.nalpha - reference.nbeta)
        rows.append(("<S^2>", f"{float(result.spin_square):.6f} (pure spin {half * (half + 1):.4f})"))
    moment = np.asarray(result.dipole())
    x, y, z = (float(np.round(m, 4)) + 0.0 for m in moment)
    rows.append(("dipole", f"({x:.4f}, {y:.4f}, {z:.4f}) Debye, {np.linalg.norm(moment):.4f} in all"))
    charges = "  ".join(
        f"{label} {charge + 0.0:+.4f}"
        for label, charge in zip(result.mol.labels[:12], _rounded(result.charges), strict=False)
    )
    rows.append(("Mulliken charges / e", charges + (" ..." if result.mol.natm > 12 else "")))
    return rows


def _on_grid(result):
    """Lines about the functional; none for Hartree-Fock."""
    if result.method.xc is None:
        return []
    points, electrons = result.method.xc.template.size, float(result.grid_electrons)
    return [
        ("  exchange-correlation", f"{float(result.energy_xc):.10f} Hartree"),
        ("grid", f"{points} points, which find {electrons:.6f} electrons"),
    ]


def misfit(result):
    """A sentence if the grid does not hold the electrons, else an empty string."""
    if bool(grid_fits(result.reference, result.grid_electrons)):
        return ""
    return (
        f"The {result.kind} calculation of {result.mol!r} finds {float(result.grid_electrons):.4f} electrons on its "
        f"grid of {result.method.xc.template.size} points, but there are "
        f"{result.reference.nalpha + result.reference.nbeta}: the grid is far too coarse for this density. Choose a "
        "finer one, for example level 3 (the default) or 5. Where that does not help, the density reaches beyond the "
        "outermost points, as of loosely bound electrons in very diffuse functions; throw=False returns the result."
    )


def _rounded(values):
    return [float(np.round(value, 4)) for value in np.asarray(values)]


def _removed(result):
    count = int(result.removed)
    return f", {count} linear combinations removed as linearly dependent" if count else ""


def _second_order(result):
    count = int(result.second_order_cycles)
    return f", {count} of them second order" if count else ""


def _frontier(result):
    """Highest occupied and lowest virtual level over both spins."""
    levels, occupations = np.asarray(result.mo_energy), np.asarray(result.mo_occ)
    frontier = []
    if (occupations > 0).any():
        frontier.append(("HOMO", levels[occupations > 0].max()))
    virtual = (occupations == 0) & (levels < 1e8)
    if virtual.any():
        frontier.append(("LUMO", levels[virtual].min()))
    return frontier


def _abstract(result):
    return not all(isinstance(leaf, np.ndarray) or _concrete(leaf) for leaf in jax.tree.leaves(result))


def _concrete(leaf):
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)


def _headline(result):
    mol = result.mol
    kind = result.kind if result.xc is None else f"{result.kind} {result.xc}"
    return f"{kind} of {mol.formula}, {mol.basis}, charge {mol.charge}, spin {mol.spin}"


_ALARM = "NOT CONVERGED: the numbers below are those of an unfinished calculation and must not be used."


def text(result):
    """Lines for a terminal."""
    if _abstract(result) or np.ndim(result.energy):
        return f"Result({result.kind}, traced or batched)"
    lines = [_headline(result)]
    if not bool(result.converged):
        lines = ["*** " + _ALARM + " ***", *lines]
    else:
        lines[0] += ": converged"
    width = max(len(name) for name, _ in _rows(result))
    return "\n".join([*lines, *(f"  {name:<{width}}  {value}" for name, value in _rows(result))])


def html(result):
    """A table for a notebook."""
    if _abstract(result) or np.ndim(result.energy):
        return f"<code>{escape(text(result))}</code>"
    alarm = "" if bool(result.converged) else f'<p style="color:#b00;font-weight:bold">{escape(_ALARM)}</p>'
    body = "".join(
        f'<tr><th style="text-align:left">{escape(name.strip())}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in _rows(result)
    )
    return f"{alarm}<table><caption><b>{escape(_headline(result))}</b></caption>{body}</table>"
