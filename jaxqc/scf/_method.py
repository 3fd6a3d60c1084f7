"""What is minimised: Hartree-Fock or a density functional on a grid, as static facts of a calculation.

Numbers that may be differentiated, the parameters of a user's functional, travel beside it as plain arrays.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxqc import integrals
from jaxqc._bound_functional import BoundFunctional
from jaxqc._platform import on_gpu
from jaxqc.scf import _fock

# Share of the electrons that a grid may lose or gain before results are refused.
_GRID_ERROR = 0.01


@dataclass(frozen=True)
class KohnSham:
    """The exchange-correlation part of a calculation: static and hashable.

    Attributes:
        functional: the functional without its parameters.
        template: the `GridTemplate` from which points and weights follow for given coordinates.
        partition: how space is divided among the atoms, "becke" or "ssf".
        epsilon: bound on what is left out of densities and potentials, Hartree.
        capacity: most shells that a row of the grid can list; None for all.
        grid_response: whether points and weights move with the nuclei where energies are differentiated.
    """

    functional: BoundFunctional
    template: Any
    partition: str
    epsilon: float
    capacity: int | None = None
    grid_response: bool = True


@dataclass(frozen=True)
class Method:
    """The energy functional of a calculation.

    Attributes:
        threshold: screening threshold of the two-electron integrals, Hartree.
        xc: the exchange-correlation part, or None for Hartree-Fock.
        mesh: the devices that share integrals and grid, or None.
        precision: of the two-electron integrals, "double" or "mixed".
    """

    threshold: float
    xc: KohnSham | None = None
    mesh: Mesh | None = None
    precision: str = "double"

    def __getstate__(self):
        # Devices belong to a process: a result that is kept, or sent to another one, is without them.
        return {**self.__dict__, "mesh": None}

    @property
    def exchange(self) -> tuple[tuple[float, float], ...]:
        """Terms (coefficient, omega) of exact exchange."""
        return ((1.0, 0.0),) if self.xc is None else self.xc.functional.exchange

    @property
    def without_response(self) -> "Method":
        """The same method where nothing is differentiated, so that one program serves both kinds of gradient."""
        return self if self.xc is None else replace(self, xc=replace(self.xc, grid_response=True))

    @property
    def xc_name(self) -> str | None:
        return None if self.xc is None else self.xc.functional.name


def kind_name(reference, method) -> str:
    """Name of a kind of calculation, such as "UHF" or "UKS"."""
    kind = reference.kind if method.xc is None else reference.kind.replace("hf", "ks")
    return kind.upper()


class Arguments(NamedTuple):
    """What the energy is a function of."""

    mol: Any
    field: Any  # (3,) electric field, atomic units, or None
    parameters: tuple[jax.Array, ...]  # of the functional; empty for one by name
    points: jax.Array | None = None  # (n,) int32, as of `Result`: points that have weights; None for all of them


class MeanField(NamedTuple):
    """What a density adds to the core Hamiltonian; the last three are None for Hartree-Fock."""

    two_electron: jax.Array  # (nspin, nao, nao) Hartree: Coulomb and exact exchange, linear in the density
    xc: jax.Array | None = None  # (nspin, nao, nao) Hartree: potential of exchange and correlation
    energy_xc: jax.Array | None = None  # () Hartree
    electrons: jax.Array | None = None  # () integral of the density over the grid

    @property
    def total(self):
        """(nspin, nao, nao) Hartree."""
        return self.two_electron if self.xc is None else self.two_electron + self.xc

    def energy(self, hcore, density):
        """Electronic energy of the density to which this belongs, (); Hartree."""
        one, two = _fock.electronic_energy(hcore, density, self.two_electron)
        return one + two if self.energy_xc is None else one + two + self.energy_xc


def grid_fits(reference, electrons):
    """Whether a grid integrates the density to the number of electrons, within a hundredth; True without a grid."""
    number = reference.nalpha + reference.nbeta
    return True if electrons is None else jnp.abs(electrons - number) < _GRID_ERROR * number


class Builder:
    """Builds mean fields of densities of one molecule; grid and lists of shells are made once.

    Args:
        arguments: `Arguments`.
        method: `Method`.
        differentiated: whether the energy will be differentiated with respect to the molecule: gradients have no
            kernels of short-range exchange.
    """

    def __init__(self, arguments, method, differentiated=False):
        self._mol, self._method, self._exchange = arguments.mol, method, method.exchange
        if on_gpu() and not differentiated:
            self._exchange = _fock.short_range(method.exchange, self._mol.nshell)
        self._xc = None
        if method.xc is not None:
            from jaxqc.scf._xc import GridEnergy

            self._xc = GridEnergy(arguments, method.xc, method.mesh)

    @property
    def levels_tell(self) -> bool:
        """Whether a virtual level below an occupied one shows a saddle point, as in Hartree-Fock."""
        return self._xc is None

    def two_electron(self, density):
        """The linear part, (nspin, nao, nao)."""
        method = self._method
        build = partial(
            integrals.jk,
            self._mol,
            threshold=method.threshold,
            symmetric=True,
            precision=method.precision,
            mesh=method.mesh,
        )
        return _fock.two_electron(build, density, self._exchange)

    def energy(self, hcore, density):
        """Electronic energy of a density, (); Hartree."""
        return MeanField(self.two_electron(density), energy_xc=self.xc_energy(density)[0]).energy(hcore, density)

    def xc_energy(self, density):
        """Exchange-correlation energy (), Hartree, and electrons on the grid (); None for Hartree-Fock."""
        return (None, None) if self._xc is None else self._xc.energy(density)

    def _potential(self, density):
        """The other part, its energy and its electrons, as arguments of `MeanField`."""
        return () if self._xc is None else self._xc.potential(density)

    def __call__(self, density) -> MeanField:
        """The mean field, built in one piece."""
        return MeanField(self.two_electron(density), *self._potential(density))

    def update(self, density, old_density, old: MeanField, base) -> MeanField:
        """The mean field, its linear part as `base` times the old one plus that of the difference of densities."""
        linear = base * old.two_electron + self.two_electron(density - base * old_density)
        return MeanField(linear, *self._potential(density))

    def response(self, density):
        """The function from a change of the density to that of the mean field, (nspin, nao, nao) both."""
        xc = self._xc
        if xc is None:
            return self.two_electron
        _, change_of = jax.linearize(lambda d: xc.potential(d)[0], density)
        return lambda change: self.two_electron(change) + change_of(change)
