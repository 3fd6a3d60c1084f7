"""The result of a self-consistent field calculation."""

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc import integrals
from jaxqc.scf._method import Arguments, Method, kind_name
from jaxqc.scf._reference import Reference
from jaxqc.scf._view import html, text

# e a0 in Debye, CODATA 2010 as in PySCF: 1.602176565e-19 C * 0.52917721092e-10 m / 3.33564095198152e-30 C m.
DEBYE = 1.602176565e-19 * 0.52917721092e-10 / 3.33564095198152e-30


@partial(jax.tree_util.register_dataclass)
@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """A determinant from `jaxqc.scf`, converged unless `throw=False` was given and `converged` is False.

    Shapes are PySCF's: for RHF orbital arrays are (nao, nao) and (nao,); UHF has a leading axis of 2 (alpha, beta);
    ROHF has one set of orbitals with occupations 2, 1, 0, and densities and Fock matrices with a leading axis of 2.
    A frozen JAX pytree. `energy`, `density`, `fock` and what follows from them are differentiable with respect to the
    molecule and the field; derivatives of `mo_energy` hold for levels that are not degenerate, and those of `mo_coeff`
    are defined up to rotations among equally occupied orbitals.

    Attributes:
        energy: total energy, Hartree.
        converged: whether energy and orbital gradient are within their tolerances.
        cycles: iterations done, one Fock build each (second-order ones need more).
        mo_energy: orbital energies, Hartree, rising within each block of equal occupation. Orbitals that were removed
            for linear dependence come last, with energy 1e9 and coefficients 0.
        mo_coeff: orbital coefficients.
        mo_occ: occupations.
        density: density matrices, electrons.
        fock: Fock matrices, Hartree.
        overlap, hcore: (nao, nao) overlap and one-electron Hamiltonian (with the field, if there is one).
        energy_nuclear, energy_one_electron, energy_two_electron: parts of the energy, Hartree; the last one is Coulomb
            and exact exchange.
        energy_xc: exchange-correlation energy from the grid, Hartree; None for Hartree-Fock.
        grid_electrons: integral of the density over the grid, electrons; None for Hartree-Fock.
        gradient_norm: norm of the orbital gradient, Hartree (PySCF's scale).
        second_order_cycles: how many of the cycles were second-order steps.
        removed: number of vectors removed for linear dependence.
        energies, gradients: energy and gradient norm after each cycle, from the guess (0) on, (cycles + 1,); inside
            jit and vmap (max_cycles + 1,), with zeros after the last one.
        field: (3,) electric field, atomic units, or None.
        mol: the `Molecule`.
        parameters: arrays found inside of a user's functional.
        points: (n,) int32, the points of the grid's template that have weights, filled up by ~k, point k without its
            weight; None for all, or without a grid.
        reference: kind and numbers of electrons (static).
        method: Hartree-Fock or functional and grid (static).
    """

    energy: jax.Array
    converged: jax.Array
    cycles: jax.Array
    mo_energy: jax.Array
    mo_coeff: jax.Array
    density: jax.Array
    fock: jax.Array
    overlap: jax.Array
    hcore: jax.Array
    energy_nuclear: jax.Array
    energy_one_electron: jax.Array
    energy_two_electron: jax.Array
    energy_xc: jax.Array | None
    grid_electrons: jax.Array | None
    gradient_norm: jax.Array
    second_order_cycles: jax.Array
    removed: jax.Array
    energies: jax.Array
    gradients: jax.Array
    field: Any
    mol: Any
    parameters: tuple[jax.Array, ...]
    points: jax.Array | None
    reference: Reference = dataclass_field(metadata={"static": True})
    method: Method = dataclass_field(metadata={"static": True})

    @property
    def kind(self) -> str:
        """`"RHF"`, `"UHF"` or `"ROHF"`; `"RKS"`, `"UKS"` or `"ROKS"` with a functional."""
        return kind_name(self.reference, self.method)

    @property
    def xc(self) -> str | None:
        """Name of the functional, or None for Hartree-Fock."""
        return self.method.xc_name

    @property
    def arguments(self) -> Arguments:
        """What the energy is a function of."""
        return Arguments(self.mol, self.field, self.parameters, self.points)

    @property
    def mo_occ(self) -> jax.Array:
        """Occupations of the orbitals, (nao,) or (2, nao)."""
        occupations = self.reference.set_occupations
        return jnp.asarray(occupations if self.reference.kind == "uhf" else occupations[0])

    @property
    def total_density(self) -> jax.Array:
        """(nao, nao) density of both spins, electrons."""
        return self.density if self.density.ndim == 2 else jnp.sum(self.density, axis=0)

    @property
    def spin_square(self) -> jax.Array:
        """<S^2> of the determinant: S_z (S_z + 1) + N_beta - Tr D_alpha S D_beta S."""
        if self.reference.kind == "rhf":
            return jnp.zeros_like(self.energy)
        half = 0.5 * (self.reference.nalpha - self.reference.nbeta)
        shared = jnp.einsum("ij,jk,kl,li->", self.density[0], self.overlap, self.density[1], self.overlap)
        return half * (half + 1.0) + self.reference.nbeta - shared

    @property
    def charges(self) -> jax.Array:
        """(natm,) Mulliken charges, Z_A - sum_{i on A} (D S)_ii, units of e."""
        populations = jnp.einsum("ij,ji->i", self.total_density, self.overlap)
        owners = np.repeat(np.arange(self.mol.natm), np.diff(self.mol.aoslice, axis=1)[:, 0])
        on_atoms = jnp.zeros((self.mol.natm,)).at[owners].add(populations)
        return jnp.asarray(self.mol.numbers, dtype=on_atoms.dtype) - on_atoms

    @property
    def spin_populations(self) -> jax.Array:
        """(natm,) Mulliken spin populations, alpha less beta electrons."""
        owners = np.repeat(np.arange(self.mol.natm), np.diff(self.mol.aoslice, axis=1)[:, 0])
        if self.reference.kind == "rhf":
            return jnp.zeros((self.mol.natm,))
        populations = jnp.einsum("ij,ji->i", self.density[0] - self.density[1], self.overlap)
        return jnp.zeros((self.mol.natm,)).at[owners].add(populations)

    def dipole(self, unit: str = "debye", origin=(0.0, 0.0, 0.0)) -> jax.Array:
        """Dipole moment mu = sum_A Z_A (R_A - O) - Tr D (r - O).

        Args:
            unit: `"debye"` (as PySCF's default) or `"au"` (e a0).
            origin: (3,) Bohr; matters for ions only.

        Returns:
            (3,) dipole moment.
        """
        if unit not in ("debye", "au"):
            raise ValueError(f"Argument unit is {unit!r}, but it must be 'debye' or 'au'.")
        origin = jnp.asarray(origin, dtype=self.energy.dtype)
        # r - O enters through the trace of D S, so one set of integrals serves every origin.
        electrons = jnp.einsum("ij,xji->x", self.total_density, integrals.dipole(self.mol))
        electrons = electrons - origin * jnp.sum(self.total_density * self.overlap)
        charges = jnp.asarray(self.mol.numbers, dtype=self.energy.dtype)
        moment = charges @ (self.mol.coords - origin[None]) - electrons
        return moment * DEBYE if unit == "debye" else moment

    @property
    def gap(self) -> jax.Array:
        """Smallest difference of a virtual and an occupied level of the same spin, Hartree; inf if there is none."""
        levels = self.mo_energy if self.mo_energy.ndim == 2 else self.mo_energy[None]
        gaps = [jnp.asarray(jnp.inf)]
        pairs = (
            zip(levels, (self.reference.nalpha, self.reference.nbeta), strict=True)
            if self.reference.kind == "uhf"
            else [(levels[0], self.reference.nalpha)]
        )
        for values, nocc in pairs:
            if 0 < nocc < self.reference.nao:
                gaps.append(values[nocc] - values[nocc - 1])
        return jnp.min(jnp.stack(gaps))

    def __repr__(self):
        return text(self)

    def _repr_html_(self):
        return html(self)
