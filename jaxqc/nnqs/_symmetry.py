"""Labels of orbitals: of irreducible representations of an Abelian point group, whose product is the exclusive or."""

import jax
import numpy as np
from jax.core import Tracer

_DEGENERATE = 1e-5  # Hartree; closer levels may be mixed
_IMPURE = 1e-6  # norm of other representations in an orbital, which are left out; energies change by its square
_FORBIDDEN = 1e-7  # of the largest integral; what labels forbid must be below


def without_forbidden(one, two, irreps) -> tuple[np.ndarray, np.ndarray] | None:
    """Integrals, with zeros where the exclusive or of their labels is not 0: what is there is rounding.

    None where it is more than that.
    """
    labels = np.asarray(irreps)
    pairs = labels[:, None] ^ labels
    cleaned = []
    for array, kept in ((np.asarray(one), pairs == 0), (np.asarray(two), (pairs[:, :, None, None] ^ pairs) == 0)):
        largest = np.max(np.abs(array), where=~kept, initial=0.0)
        if largest > _FORBIDDEN * max(1.0, float(np.max(np.abs(array)))):
            return None
        cleaned.append(np.where(kept, array, 0.0))
    return cleaned[0], cleaned[1]


def rotated_labels(irreps, u) -> tuple[int, ...] | None:
    """Labels of the columns of an orthogonal matrix; None where one mixes representations."""
    if irreps is None or isinstance(u, Tracer):
        return None
    labels, size = np.asarray(irreps), np.abs(np.asarray(u))
    found = labels[np.argmax(size, axis=0)]
    mixed = np.max(size, where=labels[:, None] != found, initial=0.0)
    return tuple(int(g) for g in found) if mixed < _FORBIDDEN else None


def adapted_orbitals(mol, mo_coeff, energies, bounds) -> tuple[np.ndarray, tuple[int, ...]] | None:
    """Orbitals made pure within their degenerate levels, and PySCF's labels of them in D2h or a subgroup of it.

    Args:
        mol: `Molecule`.
        mo_coeff: (nao, n) orbitals.
        energies: (n,) Hartree.
        bounds: places between orbitals over which they must not be mixed.

    Returns:
        None where the molecule has no symmetry or the orbitals have not that of the molecule.
    """
    basis = _symmetry_basis(mol)
    if basis is None or isinstance(mo_coeff, Tracer):
        return None
    overlap, adapted, labels = basis
    orbitals, energies = np.array(mo_coeff), np.asarray(energies)
    gaps = {*(np.flatnonzero(np.diff(energies) > _DEGENERATE) + 1), *bounds, 0, len(energies)}
    edges = sorted(gaps)
    found = np.zeros(len(energies), int)
    for start, end in zip(edges, edges[1:], strict=False):
        level = orbitals[:, start:end]
        parts = [c.T @ overlap @ level for c in adapted]  # in orthonormal bases of the representations
        _, turn = np.linalg.eigh(sum(k * part.T @ part for k, part in enumerate(parts)))
        parts = [part @ turn for part in parts]
        norms = np.array([np.linalg.norm(part, axis=0) for part in parts])
        for k, g in enumerate(np.argmax(norms, axis=0)):
            if np.linalg.norm(np.delete(norms[:, k], g)) > _IMPURE:
                return None
            orbitals[:, start + k] = adapted[g] @ parts[g][:, k] / norms[g, k]
            found[start + k] = labels[g]
    return orbitals, tuple(int(g) for g in found)


def _symmetry_basis(mol):
    """Overlap matrix, orthonormal symmetry-adapted orbitals of each representation, and labels of these."""
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(mol)):
        return None
    molecule = mol.to_pyscf()
    molecule.symmetry = True
    molecule.build(False, False)
    abelian = {"Dooh": "D2h", "SO3": "D2h", "Coov": "C2v"}
    if molecule.groupname in abelian:
        molecule.symmetry_subgroup = abelian[molecule.groupname]
        molecule.build(False, False)
    if molecule.groupname == "C1":
        return None
    overlap = molecule.intor_symmetric("int1e_ovlp")
    adapted = []
    for c in molecule.symm_orb:
        values, vectors = np.linalg.eigh(c.T @ overlap @ c)
        adapted.append(c @ vectors / np.sqrt(values))
    return overlap, adapted, [int(g) for g in molecule.irrep_id]
