"""Fock matrices, energies and orbital gradients of a given density."""

import jax
import jax.numpy as jnp

from jaxqc import integrals
from jaxqc.scf._reference import over_sets

# GPUs build K of erfc(omega r)/r faster than that of erf(omega r)/r, and J alone beside it, from so many shells on and
# with such an omega, 1/Bohr, that many pairs are out of its reach: experiments/eri_gpu_short.md.
_SHELLS, _OMEGA = 500, 0.1
_NOTHING = 1e-15  # what rounding leaves of a coefficient


def core_hamiltonian(mol, field=None):
    """One-electron Hamiltonian h = T + V, plus F.r in a uniform electric field F.

    Args:
        mol: `Molecule`.
        field: (3,) electric field, atomic units, or None.

    Returns:
        (nao, nao) Hartree.
    """
    hcore = integrals.kinetic(mol) + integrals.nuclear(mol)
    if field is not None:
        hcore = hcore + jnp.einsum("x,xij->ij", field, integrals.dipole(mol))
    return hcore


def nuclear_energy(mol, field=None):
    """Repulsion of the nuclei, less their dipole energy Z R.F in a field; Hartree."""
    energy = mol.energy_nuc()
    if field is not None:
        charges = jnp.asarray(mol.numbers, dtype=mol.coords.dtype)
        energy = energy - jnp.einsum("a,ax,x->", charges, mol.coords, field)
    return energy


def short_range(exchange, nshell):
    """Terms of exact exchange, K(1/r) less K(erfc) in the place of K(erf) where GPUs are faster so.

    Args:
        exchange: terms (coefficient, omega), omega >= 0, as of `two_electron`.
        nshell: number of shells of the molecule.

    Returns:
        terms of the same sum.
    """
    terms = dict((omega, coefficient) for coefficient, omega in exchange)
    if nshell < _SHELLS or 0.0 not in terms:
        return exchange
    for omega in [w for w in terms if w >= _OMEGA]:
        coefficient = terms.pop(omega)
        terms[0.0] += coefficient
        terms[-omega] = -coefficient
    return tuple((c, omega) for omega, c in terms.items() if abs(c) > _NOTHING)


def two_electron(build, density, exchange=((1.0, 0.0),)):
    """Coulomb and exact exchange G: J - K/2 of one closed-shell density, J(alpha + beta) - K(spin) of two.

    Args:
        build: `jaxqc.integrals.jk` with all but the density, `coulomb`, `exchange` and `omega`.
        density: (nspin, nao, nao).
        exchange: terms (coefficient, omega) of K = sum c K(omega); omega 0 is 1/r, omega > 0 is erf(omega r)/r, and
            omega < 0 is erfc(|omega| r)/r.

    Returns:
        (nspin, nao, nao) Hartree.
    """
    scales = dict((omega, coefficient) for coefficient, omega in exchange)
    full = 0.0 in scales  # J and K of 1/r come from one build; alone, one J serves both spins
    coulomb, exact = build(density if full else jnp.sum(density, axis=0, keepdims=True), exchange=full)
    assert coulomb is not None  # it was asked for
    found = {0.0: exact} if full else {}
    found |= {omega: build(density, coulomb=False, omega=omega)[1] for omega in scales if omega != 0.0}
    total = jnp.broadcast_to(jnp.sum(coulomb, axis=0, keepdims=True), density.shape)
    share = 0.5 if len(density) == 1 else 1.0
    for omega, matrix in found.items():
        total = total - share * scales[omega] * matrix
    return total


def electronic_energy(hcore, density, mean_field):
    """One- and two-electron parts of the energy, Tr D h and 1/2 Tr D G; Hartree."""
    one = jnp.einsum("ij,sij->", hcore, density)
    two = 0.5 * jnp.einsum("sij,sij->", mean_field, density)
    return one, two


def commutator(reference, fock, density, overlap, transform):
    """DIIS error X^T (F D S - S D F) X of each orbital set, and the norm of the orbital gradient.

    The norm counts each occupied-virtual pair once and has PySCF's scale: |2 F_ai| for RHF, |F_ai| for UHF.

    Returns:
        errors (nset, nao, nao), norm (), Hartree.
    """
    product = over_sets(reference, jnp.einsum("sij,sjk,kl->sil", fock, density, overlap))
    error = product - product.mT
    error = jnp.einsum("ji,sjk,kl->sil", transform, error, transform)
    return error, jnp.sqrt(0.5 * jnp.sum(error * error))


def effective_fock(reference, fock, density, overlap):
    """One Fock matrix for each orbital set; for ROHF the effective matrix of Roothaan.

    With projectors c, o, v on closed, open and virtual space the blocks are (Fa + Fb)/2 on the diagonal and between
    closed and virtual, Fb between closed and open, Fa between open and virtual: the choice of Guest and Saunders
    (doi:10.1080/00268977400102171) with which PySCF works, so orbital energies agree.
    """
    if reference.kind != "rohf":
        return fock
    alpha, beta = fock
    mean = 0.5 * (alpha + beta)
    closed = density[1] @ overlap
    opened = (density[0] - density[1]) @ overlap
    virtual = jnp.eye(reference.nao) - density[0] @ overlap
    half = (
        0.5 * (closed.T @ mean @ closed + opened.T @ mean @ opened + virtual.T @ mean @ virtual)
        + opened.T @ beta @ closed
        + opened.T @ alpha @ virtual
        + virtual.T @ mean @ closed
    )
    return (half + half.T)[None]


def symmetric(matrix):
    """The symmetric part of each matrix."""
    return 0.5 * (matrix + matrix.mT)


def canonical_transform(overlap, threshold):
    """Canonical orthogonalisation with static shapes: X = U s^(-1/2), columns of eigenvalues below threshold zero.

    Args:
        overlap: (nao, nao).
        threshold: eigenvalues of the overlap below it are removed.

    Returns:
        X (nao, nao) with X^T S X = 1 on the kept columns, and the mask (nao,) of removed columns.
    """
    values, vectors = jnp.linalg.eigh(overlap)
    removed = values < threshold
    scale = jnp.where(removed, 0.0, 1.0 / jnp.sqrt(jnp.where(removed, 1.0, values)))
    return vectors * scale[None], removed


def lifted(matrix, removed):
    """The diagonal matrix that lifts the functions `removed` above all eigenvalues of another matrix.

    The lift is of the size of that matrix, since a huge one would cost digits in eigh.
    """
    lift = 10.0 + 2.0 * jnp.max(jnp.abs(jnp.einsum("ii->i", matrix)))
    return jnp.where(jnp.eye(matrix.shape[0], dtype=bool) & removed[None], lift, 0.0)


def diagonalise(fock, transform, removed):
    """Orbitals of each Fock matrix, by rising energy; removed vectors are lifted above every occupied level.

    Returns:
        coefficients (nset, nao, nao); the columns of removed vectors are zero.
    """

    def one(matrix):
        orthogonal = transform.T @ matrix @ transform
        _, vectors = jnp.linalg.eigh(symmetric(orthogonal) + lifted(orthogonal, removed))
        kept = jnp.sum(jnp.where(removed[:, None], 0.0, vectors**2), axis=0) > 0.5
        return transform @ (vectors * kept.astype(vectors.dtype)[None])

    return jax.vmap(one)(fock)
