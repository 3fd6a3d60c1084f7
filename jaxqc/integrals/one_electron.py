"""Matrices of one-electron operators over the basis functions of a molecule."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxqc._checks import check_molecule
from jaxqc.elements import shorten
from jaxqc.integrals._one_electron import integrals
from jaxqc.integrals._shells import ShellList, cartesian_to_spherical
from jaxqc.molecule import Molecule


def _in_basis(mol: Molecule, shells: ShellList, matrix: jax.Array) -> jax.Array:
    """From Cartesian functions to those of the molecule, on the last two axes."""
    if mol.cart:
        return matrix
    to_spherical = cartesian_to_spherical(shells.ls)
    return to_spherical(to_spherical(matrix, -2), -1)


@jax.jit
def _overlap(mol: Molecule) -> jax.Array:
    shells = ShellList.from_molecule(mol)
    return _in_basis(mol, shells, integrals("multipole", 0, shells, None, jnp.zeros(3)))[0]


@jax.jit
def _kinetic(mol: Molecule) -> jax.Array:
    shells = ShellList.from_molecule(mol)
    return _in_basis(mol, shells, integrals("kinetic", 0, shells, None))


@jax.jit
def _nuclear(mol: Molecule) -> jax.Array:
    shells = ShellList.from_molecule(mol)
    charges = jnp.asarray(mol.numbers, jnp.float64)
    return _in_basis(mol, shells, integrals("nuclear", 0, shells, None, mol.coords, -charges[:, None]))


@jax.jit
def _dipole(mol: Molecule, origin: jax.Array) -> jax.Array:
    shells = ShellList.from_molecule(mol)
    return _in_basis(mol, shells, integrals("multipole", 1, shells, None, origin))


def overlap(mol: Molecule) -> jax.Array:
    r"""Overlap matrix $S_{ij} = \int \chi_i(r) \chi_j(r) dr$.

    **Arguments:**

    - `mol`: a `jaxqc.Molecule`.

    **Returns:** shape `(nao, nao)`, dimensionless, symmetric; PySCF's `int1e_ovlp`. Differentiable with respect to the
    coordinates, exponents and coefficients of `mol`, to any order.

    ```python
    mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.9", basis="cc-pvdz")
    s = jaxqc.integrals.overlap(mol)
    ```
    """
    check_molecule(mol, "jaxqc.integrals.overlap")
    return _overlap(mol)


def kinetic(mol: Molecule) -> jax.Array:
    r"""Kinetic energy matrix $T_{ij} = -\frac12 \int \chi_i(r) \nabla^2 \chi_j(r) dr$.

    **Arguments:**

    - `mol`: a `jaxqc.Molecule`.

    **Returns:** shape `(nao, nao)`, Hartree, symmetric; PySCF's `int1e_kin`. Differentiable with respect to the
    coordinates, exponents and coefficients of `mol`, to any order.

    ```python
    mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.9", basis="cc-pvdz")
    t = jaxqc.integrals.kinetic(mol)
    ```
    """
    check_molecule(mol, "jaxqc.integrals.kinetic")
    return _kinetic(mol)


def nuclear(mol: Molecule) -> jax.Array:
    r"""Attraction to the nuclei, $V_{ij} = -\sum_C Z_C \int \chi_i(r) |r - R_C|^{-1} \chi_j(r) dr$.

    McMurchie and Davidson, J. Comput. Phys. 26, 218 (1978), doi:10.1016/0021-9991(78)90092-X.
    Ghost atoms have no charge.

    **Arguments:**

    - `mol`: a `jaxqc.Molecule`.

    **Returns:** shape `(nao, nao)`, Hartree, symmetric; PySCF's `int1e_nuc`. Differentiable with respect to the
    coordinates, exponents and coefficients of `mol`, to any order.

    ```python
    mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.9", basis="cc-pvdz")
    v = jaxqc.integrals.nuclear(mol)
    ```
    """
    check_molecule(mol, "jaxqc.integrals.nuclear")
    return _nuclear(mol)


def dipole(mol: Molecule, origin: ArrayLike | Sequence[float] = (0.0, 0.0, 0.0)) -> jax.Array:
    r"""Dipole matrices $D^x_{ij} = \int \chi_i(r) (r - O)_x \chi_j(r) dr$, without the electron's charge of -1.

    **Arguments:**

    - `mol`: a `jaxqc.Molecule`.
    - `origin`: the point $O$, shape `(3,)`, Bohr.

    **Returns:** shape `(3, nao, nao)`, Bohr, symmetric in the last two axes; PySCF's `int1e_r`. Differentiable with
    respect to the coordinates, exponents and coefficients of `mol` and the origin, to any order.

    **Raises:** `TypeError`, `ValueError` when `origin` is not three finite real numbers.

    ```python
    mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.9", basis="cc-pvdz")
    d = jaxqc.integrals.dipole(mol, origin=mol.coords[0])
    ```
    """
    check_molecule(mol, "jaxqc.integrals.dipole")
    return _dipole(mol, _checked_origin(origin))


def _checked_origin(origin) -> jax.Array:
    expected = (
        "Argument origin of jaxqc.integrals.dipole must be three real numbers in Bohr, for example "
        "origin=(0.0, 0.0, 0.0)"
    )
    try:
        point = jnp.asarray(origin)
    except (TypeError, ValueError):
        raise TypeError(f"{expected}, but it is {shorten(origin)}.") from None
    if not (jnp.issubdtype(point.dtype, jnp.floating) or jnp.issubdtype(point.dtype, jnp.integer)):
        raise TypeError(f"{expected}, but it has the type {point.dtype}.")
    if point.shape != (3,):
        raise ValueError(f"{expected}, but it has the shape {point.shape}.")
    if not isinstance(point, Tracer) and not np.isfinite(point).all():
        raise ValueError(f"{expected}, but it is {shorten(origin)}.")
    return point.astype(jnp.float64)
