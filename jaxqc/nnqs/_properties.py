"""Properties of vectors on a set of configurations that follow from their one-particle density."""

import jax
import jax.numpy as jnp

from jaxqc._checks import check_molecule
from jaxqc.nnqs._density_matrices import density_matrices


def ao_density(ham, configurations, vector, ket=None) -> jax.Array:
    r"""One-particle density in atomic orbitals, summed over spins, with the frozen orbitals.

    D = 2 C_frozen C_frozen^T + C dm1 C^T, for a normalised vector. With `ket` it is the transition density
    <vector| |ket>, to which the frozen orbitals contribute as much as the two vectors overlap.

    Args:
        ham: `Hamiltonian` from `Hamiltonian.from_molecule`.
        configurations: `Configurations`, or (n, words) uint64 keys.
        vector, ket: as for `density_matrices`.

    Returns:
        (nao, nao), electrons.

    Raises:
        TypeError, ValueError: an argument is not what it must be; `ham` has no orbitals of a molecule.
    """
    return _density(ham, configurations, vector, ket, "jaxqc.nnqs.ao_density")[0]


def dipole_moment(
    mol, ham, configurations, vector, ket=None, *, unit: str = "debye", origin=(0.0, 0.0, 0.0)
) -> jax.Array:
    r"""Dipole moment mu = sum_A Z_A (R_A - O) - Tr D (r - O) of a vector on a set of configurations.

    Args:
        mol: the `Molecule` of which `ham` was made.
        ham: `Hamiltonian` from `Hamiltonian.from_molecule`.
        configurations: `Configurations`, or (n, words) uint64 keys, for example of `SelectedCI` or `Solution`.
        vector: (n,) or (count,) normalised coefficients.
        ket: another vector, for the transition dipole moment <vector| mu |ket>; None for `vector` itself.
        unit: "debye", or "au" (e a0).
        origin: O, (3,) Bohr; matters for ions only.

    Returns:
        (3,).

    Raises:
        TypeError, ValueError: an argument is not what it must be; `ham` has no orbitals, or those of another molecule.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("Li 0 0 0; H 0 0 1.6", basis="sto-3g")
        >>> ham = jaxqc.nnqs.Hamiltonian.from_molecule(mol)
        >>> found = jaxqc.nnqs.selected_ci(ham)
        >>> moment = jaxqc.nnqs.dipole_moment(mol, ham, found.configurations, found.vector)
        >>> print(f"{abs(moment[2]):.2f}")
        4.62
    """
    from jaxqc import integrals
    from jaxqc.scf._result import DEBYE

    name = "jaxqc.nnqs.dipole_moment"
    check_molecule(mol, name)
    if unit not in ("debye", "au"):
        raise ValueError(f"Argument unit of {name} is {unit!r}, but it must be 'debye' or 'au'.")
    density, overlap = _density(ham, configurations, vector, ket, name)
    if density.shape[0] != mol.nao:
        raise ValueError(
            f"Argument mol of {name} has {mol.nao} atomic orbitals and argument ham {density.shape[0]}; they must be "
            "of the same molecule."
        )
    origin = jnp.asarray(origin, jnp.float64)
    electrons = jnp.einsum("ij,xji->x", density, integrals.dipole(mol, origin))
    moment = overlap * (jnp.asarray(mol.numbers, jnp.float64) @ (mol.coords - origin)) - electrons
    return moment * DEBYE if unit == "debye" else moment


def _density(ham, configurations, vector, ket, name):
    """The density, and the overlap of the two vectors."""
    dm1, _ = density_matrices(ham, configurations, vector, ket)
    if ham.orbitals is None:
        raise ValueError(
            f"The Hamiltonian given to {name} has no orbitals of a molecule; make it with "
            "jaxqc.nnqs.Hamiltonian.from_molecule, or use jaxqc.nnqs.density_matrices and integrals of your own."
        )
    frozen = ham.orbitals.shape[1] - ham.norb
    core, orbitals = ham.orbitals[:, :frozen], ham.orbitals[:, frozen:]
    overlap = jnp.trace(dm1) / (ham.nalpha + ham.nbeta)
    return 2.0 * overlap * core @ core.T + orbitals @ dm1 @ orbitals.T, overlap
