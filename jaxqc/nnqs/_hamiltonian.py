"""The electronic Hamiltonian in a basis of orthonormal spatial orbitals."""

from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._checks import check_molecule, check_precision
from jaxqc.elements import shorten
from jaxqc.nnqs._symmetry import rotated_labels, without_forbidden


@partial(jax.tree_util.register_dataclass)
@dataclass(frozen=True, eq=False)
class Hamiltonian:
    r"""H = E_0 + sum_pq h_pq E_pq + 1/2 sum_pqrs (pq|rs) (E_pq E_rs - delta_qr E_ps), a frozen JAX pytree.

    Make one with `from_molecule`, `from_fcidump` or `from_integrals`, which check what they are given.

    Attributes:
        constant: () energy of nuclei and frozen electrons, Hartree.
        one: (norb, norb) one-electron integrals h_pq, Hartree.
        two: (norb, norb, norb, norb) two-electron integrals (pq|rs) in chemists' order, Hartree.
        nalpha, nbeta: numbers of electrons (static).
        irreps: labels of the orbitals, norb of them, of an Abelian group whose product is the exclusive or (static);
            None where they are not known.
        orbitals: (nao, nfrozen + norb) coefficients in atomic orbitals, frozen orbitals first, of a Hamiltonian from
            `from_molecule`; None where they are not known.
    """

    constant: jax.Array
    one: jax.Array
    two: jax.Array
    nalpha: int = dataclass_field(metadata={"static": True})
    nbeta: int = dataclass_field(metadata={"static": True})
    irreps: tuple[int, ...] | None = dataclass_field(default=None, metadata={"static": True})
    orbitals: jax.Array | None = None

    @property
    def norb(self) -> int:
        """Number of spatial orbitals."""
        return self.one.shape[0]

    @classmethod
    def from_integrals(cls, one, two, nalpha: int, nbeta: int, constant=0.0, irreps=None) -> "Hamiltonian":
        """A Hamiltonian from arrays.

        Args:
            one: (norb, norb) symmetric one-electron integrals, Hartree.
            two: (norb, norb, norb, norb) two-electron integrals (pq|rs), Hartree, with the eight symmetries of real
                orbitals.
            nalpha, nbeta: numbers of electrons, 0 to norb each, at least one in all.
            constant: energy of nuclei and frozen electrons, Hartree.
            irreps: norb labels of the orbitals, or None. Integrals that they forbid are set to zero.

        Raises:
            TypeError: a number of electrons is no whole number.
            ValueError: shapes do not fit, integrals are not finite or not symmetric or contradict the labels, electrons
                do not fit.

        Example:
            >>> import numpy as np, jaxqc
            >>> ham = jaxqc.nnqs.Hamiltonian.from_integrals(np.diag([-1.0, 0.5]), np.zeros((2,) * 4), 1, 0)
            >>> ham.norb
            2
        """
        name = "jaxqc.nnqs.Hamiltonian.from_integrals"
        check_precision(name)
        one, two = _array(one, "one", name, 2), _array(two, "two", name, 4)
        constant = _array(constant, "constant", name, 0)
        norb = one.shape[0]
        if one.shape != (norb, norb) or two.shape != (norb,) * 4 or norb == 0:
            raise ValueError(
                f"Arguments one and two of {name} have the shapes {one.shape} and {two.shape}; they must be "
                "(norb, norb) and (norb, norb, norb, norb), with one orbital or more. Unpack integrals that are stored "
                "with symmetry, for example with pyscf.ao2mo.restore(1, two, norb)."
            )
        _check_symmetry(one, two, name)
        nalpha, nbeta = check_electrons(norb, nalpha, nbeta, name)
        if irreps is not None:
            irreps = tuple(int(g) for g in irreps)
            if len(irreps) != norb or min(irreps) < 0:
                raise ValueError(
                    f"Argument irreps of {name} is {shorten(irreps)}; it must be {norb} whole numbers from 0 on."
                )
            cleaned = without_forbidden(one, two, irreps)
            if cleaned is None:
                raise ValueError(
                    f"Argument irreps of {name} is {shorten(irreps)}, but integrals are not zero where the exclusive "
                    "or of their labels is not 0. Correct the labels (ORBSYM of a FCIDUMP file), or leave them out."
                )
            one, two = cleaned
        constant, one, two = (jax.device_put(x) for x in (constant, one, two))
        return cls(constant, one, two, nalpha, nbeta, irreps)

    @classmethod
    def from_molecule(cls, mol, result=None, frozen: int = 0, active=None, natural: bool = False) -> "Hamiltonian":
        """The Hamiltonian of a molecule in the orbitals of a self-consistent field.

        Orbitals are labelled where atoms are within some 1e-7 Angstrom of places of an Abelian point group: a geometry
        of fewer digits than that may lose its labels (`irreps` is None), which costs time and changes no result.

        Args:
            mol: `jaxqc.Molecule`.
            result: its `jaxqc.scf.Result` with one set of orbitals (RHF, RKS, ROHF, ROKS); None computes Hartree-Fock.
            frozen: how many of the lowest orbitals stay doubly occupied.
            active: how many orbitals after those are kept; None for all of them.
            natural: turn the orbitals into natural orbitals of a small selected CI; they span the same space.

        Raises:
            TypeError, ValueError: an argument is not what it must be.

        Example:
            >>> import jaxqc
            >>> mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
            >>> jaxqc.nnqs.Hamiltonian.from_molecule(mol).norb
            2
        """
        from jaxqc.nnqs._molecule import molecular_integrals

        check_molecule(mol, "jaxqc.nnqs.Hamiltonian.from_molecule")
        found, orbitals, irreps = molecular_integrals(mol, result, frozen, active)
        ham = cls(*found, irreps=irreps, orbitals=orbitals)._cleaned()
        if natural:
            from jaxqc.nnqs._selected import natural_orbitals

            ham = ham.rotate(natural_orbitals(ham))
        return ham

    @classmethod
    def from_fcidump(cls, path) -> "Hamiltonian":
        """Reads a FCIDUMP file of real, spin-restricted integrals.

        Source: Knowles and Handy 1989, doi:10.1016/0010-4655(89)90033-7.

        Raises:
            ValueError: the file is not one, or contradicts itself; the message says where.
        """
        from jaxqc.nnqs._fcidump import read

        return cls.from_integrals(**read(path))

    def to_fcidump(self, path, tolerance: float = 1e-15) -> None:
        """Writes a FCIDUMP file; integrals below `tolerance` in magnitude are left out."""
        from jaxqc.nnqs._fcidump import write

        write(self, path, tolerance)

    def rotate(self, u) -> "Hamiltonian":
        """The same Hamiltonian in the orbitals sum_p phi_p u_pq, with `u` (norb, norb) orthogonal. Labels are kept
        unless it mixes orbitals of different ones."""
        u = jnp.asarray(u, jnp.float64)
        orbitals = self.orbitals
        if orbitals is not None:
            frozen = orbitals.shape[1] - self.norb
            orbitals = orbitals.at[:, frozen:].set(orbitals[:, frozen:] @ u)
        one, two, irreps = u.T @ self.one @ u, transform(self.two, u), rotated_labels(self.irreps, u)
        return replace(self, one=one, two=two, irreps=irreps, orbitals=orbitals)._cleaned()

    def _cleaned(self) -> "Hamiltonian":
        """With zeros where the labels forbid integrals; without labels where they are not those of the integrals."""
        cleaned = None if self.irreps is None else without_forbidden(self.one, self.two, self.irreps)
        if cleaned is None:
            return replace(self, irreps=None)
        return replace(self, one=jnp.asarray(cleaned[0]), two=jnp.asarray(cleaned[1]))


def transform(two, coefficients) -> jax.Array:
    """(pq|rs) = sum_ijkl (ij|kl) C_ip C_jq C_kr C_ls, one index after the other."""
    for _ in range(4):
        two = jnp.tensordot(two, coefficients, axes=(0, 0))
    return two


def check_electrons(norb, nalpha, nbeta, name):
    """Numbers of electrons as ints.

    Raises:
        TypeError: one is no whole number.
        ValueError: they do not fit into the orbitals.
    """
    for label, value in (("nalpha", nalpha), ("nbeta", nbeta)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"Argument {label} of {name} must be a whole number, but it is {shorten(value)}.")
        if not 0 <= value <= norb:
            raise ValueError(
                f"Argument {label} of {name} is {value}, but {norb} orbitals hold 0 to {norb} electrons of one spin."
            )
    if nalpha + nbeta == 0:
        raise ValueError(f"{name} was given no electrons; nalpha + nbeta must be at least 1.")
    if nalpha == nbeta == norb and norb in (32, *range(64, norb + 1, 64)):
        raise ValueError(
            f"All {norb} orbitals are full, which leaves a single configuration whose key is that of an unused row. "
            "Its energy is that of the closed shell; add an empty orbital, or use jaxqc.scf."
        )
    return int(nalpha), int(nbeta)


def _array(value, label, name, rank):
    array = np.asarray(value)
    if array.ndim != rank or array.dtype.kind not in "iuf":
        kind = "a real number" if rank == 0 else f"a real array of {rank} axes"
        raise ValueError(
            f"Argument {label} of {name} must be {kind}, but it has {array.ndim} axes and the type {array.dtype}."
        )
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise ValueError(
            f"Argument {label} of {name} has {np.size(array) - np.count_nonzero(np.isfinite(array))} values that are "
            "infinite or not a number; look for the step of the integral transformation that made them."
        )
    return array


def _check_symmetry(one, two, name):
    scale = 1e-8 * max(1.0, float(np.max(np.abs(two))), float(np.max(np.abs(one))))
    broken = [("one", "h_pq and h_qp", np.max(np.abs(one - one.T)))]
    for label, axes in (("(pq|rs) and (qp|rs)", (1, 0, 2, 3)), ("(pq|rs) and (rs|pq)", (2, 3, 0, 1))):
        broken.append(("two", label, np.max(np.abs(two - two.transpose(axes)))))
    for label, which, size in broken:
        if size > scale:
            raise ValueError(
                f"Argument {label} of {name} lacks the symmetry of real orbitals: {which} differ by up to {size:.3g} "
                "Hartree. Integrals must be in chemists' order, (pq|rs) = integral of p(1)q(1) r(2)s(2) / r12; "
                "for physicists' <pr|qs> use two.transpose(0, 2, 1, 3)."
            )
