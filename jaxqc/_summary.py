"""What people want to know of a result, as plain numbers: one place for the terminal and for QCSchema."""

from dataclasses import dataclass

import jax
import numpy as np

from jaxqc.scf import Result


@dataclass(frozen=True)
class Level:
    """A frontier orbital: its number among those of its spin (from 1), its energy in Hartree; spin "" means both."""

    name: str
    spin: str
    number: int
    energy: float


@dataclass(frozen=True)
class Summary:
    """Numbers of one result, on the host.

    Attributes:
        energy, nuclear, one_electron, two_electron: Hartree.
        xc: exchange-correlation energy, Hartree; grid_points and grid_electrons: of its grid. None for Hartree-Fock.
        dipole: (3,) e a0.
        charges, spin_populations: (natm,) Mulliken, e and electrons.
        spin_square: <S^2>, and `pure_spin_square` that of a pure spin state.
        levels: HOMO and LUMO of each spin, as far as they exist.
        gap: smallest difference of virtual and occupied levels of one spin, Hartree; None if there is none.
        nmo: number of orbitals, without vectors removed for linear dependence.
    """

    energy: float
    nuclear: float
    one_electron: float
    two_electron: float
    xc: float | None
    grid_points: int | None
    grid_electrons: float | None
    dipole: np.ndarray
    charges: np.ndarray
    spin_populations: np.ndarray
    spin_square: float
    pure_spin_square: float
    levels: tuple[Level, ...]
    gap: float | None
    nmo: int


@jax.jit
def _properties(result):
    """Everything that takes integrals or matrices, as one program."""
    return result.dipole("au"), result.charges, result.spin_populations, result.spin_square


def summarise(result: Result) -> Summary:
    """Returns the numbers of a result that is not traced."""
    dipole, charges, spin_populations, spin_square = jax.device_get(_properties(result))
    levels = _frontier(result)
    spin = 0.5 * (result.reference.nalpha - result.reference.nbeta)
    return Summary(
        energy=float(result.energy),
        nuclear=float(result.energy_nuclear),
        one_electron=float(result.energy_one_electron),
        two_electron=float(result.energy_two_electron),
        xc=None if result.energy_xc is None else float(result.energy_xc),
        grid_points=None if result.method.xc is None else result.method.xc.template.size,
        grid_electrons=None if result.grid_electrons is None else float(result.grid_electrons),
        dipole=dipole,
        charges=charges,
        spin_populations=spin_populations,
        spin_square=float(spin_square),
        pure_spin_square=spin * (spin + 1.0),
        levels=levels,
        gap=_gap(levels),
        nmo=result.reference.nao - int(result.removed),
    )


def _frontier(result):
    reference = result.reference
    energies = np.atleast_2d(np.asarray(result.mo_energy))
    nmo = reference.nao - int(result.removed)
    if reference.kind == "uhf":
        spins = [("alpha", energies[0], reference.nalpha), ("beta", energies[1], reference.nbeta)]
    else:
        # For ROHF the HOMO is the highest singly occupied orbital, the LUMO the lowest empty one.
        spins = [("", energies[0], reference.nalpha)]
    levels = []
    for spin, values, occupied in spins:
        if occupied > 0:
            levels.append(Level("HOMO", spin, occupied, float(values[occupied - 1])))
        if occupied < nmo:
            levels.append(Level("LUMO", spin, occupied + 1, float(values[occupied])))
    return tuple(levels)


def _gap(levels):
    energies = {(level.name, level.spin): level.energy for level in levels}
    spins = {level.spin for level in levels}
    gaps = [
        energies["LUMO", spin] - energies["HOMO", spin]
        for spin in spins
        if ("LUMO", spin) in energies and ("HOMO", spin) in energies
    ]
    return min(gaps) if gaps else None
