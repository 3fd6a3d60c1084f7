"""What kind of determinant is optimised: the static facts that shape every array of a calculation."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Reference:
    """Restricted, unrestricted or restricted open-shell determinant of `nao` orbitals.

    Orbitals come in `nset` sets (2 for UHF, else 1) and densities in `nspin` spin channels (1 for RHF, else 2):

    | kind | nset | nspin | occupations                              |
    |------|------|-------|------------------------------------------|
    | rhf  | 1    | 1     | 2 for the first nalpha                   |
    | uhf  | 2    | 2     | 1 for the first nalpha, nbeta of each set |
    | rohf | 1    | 2     | 1 for the first nalpha and nbeta of the one set |
    """

    kind: str
    nalpha: int
    nbeta: int
    nao: int

    @property
    def nset(self) -> int:
        return 2 if self.kind == "uhf" else 1

    @property
    def nspin(self) -> int:
        return 1 if self.kind == "rhf" else 2

    @property
    def occupations(self) -> np.ndarray:
        """(nspin, nao) occupation of each orbital in each spin channel."""
        index = np.arange(self.nao)
        if self.kind == "rhf":
            return np.where(index < self.nalpha, 2.0, 0.0)[None]
        return np.stack([index < self.nalpha, index < self.nbeta]).astype(float)

    @property
    def blocks(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each orbital set, the ranges of equally occupied orbitals; rotations inside one change nothing."""
        na, nb, n = self.nalpha, self.nbeta, self.nao
        if self.kind == "rhf":
            edges = [(0, na, n)]
        elif self.kind == "rohf":
            edges = [(0, nb, na, n)]
        else:
            edges = [(0, na, n), (0, nb, n)]
        return tuple(tuple((a, b) for a, b in zip(e[:-1], e[1:], strict=True) if b > a) for e in edges)

    @property
    def rotations(self) -> np.ndarray:
        """(nset, nao, nao) mask of the pairs (p, q) in which p is less occupied than q: the non-redundant rotations."""
        occ = self.set_occupations
        return occ[:, :, None] < occ[:, None, :]

    @property
    def set_occupations(self) -> np.ndarray:
        """(nset, nao) occupation of each orbital of each set (2/1/0 for RHF and ROHF)."""
        return self.occupations if self.nset == self.nspin else self.occupations.sum(axis=0, keepdims=True)


def per_spin(reference, per_set):
    """Repeats an array with a leading axis of orbital sets for each spin channel that uses the set."""
    if reference.nset == reference.nspin:
        return per_set
    return jnp.broadcast_to(per_set, (reference.nspin, *per_set.shape[1:]))


def over_sets(reference, per_spin_values):
    """Sums an array with a leading axis of spin channels over the channels of each orbital set."""
    if reference.nset == reference.nspin:
        return per_spin_values
    return jnp.sum(per_spin_values, axis=0, keepdims=True)


def density_of(reference, coefficients):
    """Density matrices of each spin channel, D_s = C n_s C^T.

    Args:
        reference: `Reference`.
        coefficients: (nset, nao, nao) orbital coefficients.

    Returns:
        (nspin, nao, nao) densities, electrons.
    """
    nocc = max(reference.nalpha, reference.nbeta)
    occupied = per_spin(reference, coefficients[:, :, :nocc])
    weights = jnp.asarray(reference.occupations[:, :nocc])
    return jnp.einsum("sip,sp,sjp->sij", occupied, weights, occupied)
