"""Electron-repulsion integrals: direct Coulomb and exchange matrices, and the full tensor of small molecules."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike

from jaxqc._checks import check_molecule, checked_precision
from jaxqc._parallel import checked_mesh, replicated
from jaxqc.integrals._contraction import contract
from jaxqc.integrals._decontraction import two_electron_shells
from jaxqc.integrals._jk import jk as _jk
from jaxqc.integrals._shells import ShellList, cartesian_to_spherical
from jaxqc.molecule import Molecule


def jk(
    mol: Molecule,
    density: ArrayLike,
    *,
    coulomb: bool = True,
    exchange: bool = True,
    omega: float = 0.0,
    threshold: float = 1e-13,
    symmetric: bool = False,
    precision: str = "double",
    mesh: Mesh | None = None,
) -> tuple[jax.Array | None, jax.Array | None]:
    r"""Coulomb and exchange matrices of one density or several, integral-direct.

    $J_{ij} = \sum_{kl} (ij|kl) D_{lk}$ and $K_{il} = \sum_{jk} (ij|kl) D_{jk}$; integrals are never stored.
    A quartet is skipped when its Schwarz bound times the largest density element it meets falls below `threshold`,
    as in PySCF; for omega < 0, GPUs skip quartets for the distance of their pairs as well. The sums run in a fixed
    order: the same bits on every run and for any number of threads.

    **Arguments:**

    - `mol`: the molecule.
    - `density`: shape `(nao, nao)` or `(n, nao, nao)`, symmetric or not; electrons.
    - `coulomb`, `exchange`: which of the matrices are wanted.
    - `omega`: 0 for $1/r$, positive for $\mathrm{erf}(\omega r)/r$, negative for $\mathrm{erfc}(|\omega| r)/r$; 1/Bohr.
    - `threshold`: of the screening; Hartree.
    - `symmetric`: promises that the densities are symmetric, which saves work on GPUs.
    - `precision`: `"double"`, or `"mixed"`: GPUs compute quartets whose bound, as above, is below 1e-5 Hartree in
      single precision, and sum them in double precision. The error of each is at most about 1e-6 of its bound, 1e-5
      with f functions (and more where primitives of a contraction cancel): 1e-11 to 1e-10 Hartree, of either sign.
      CPUs, and derivatives, always work in double precision.
    - `mesh`: a `jax.sharding.Mesh` whose devices share the work; each holds the density, and gets the whole result.

    **Returns:** `(J, K)`, each shaped as `density`, in Hartree; None for a matrix that is not wanted.

    **Raises:** `ValueError` for a density of another shape, a threshold that is not positive, an unknown precision, or
    when neither matrix is wanted.

    **Source:** Häser and Ahlrichs, doi:10.1002/jcc.540100111.

    **Example:**

        mol = jaxqc.Molecule("He 0 0 0", basis="sto-3g")
        J, K = jaxqc.integrals.jk(mol, 2 * jnp.ones((1, 1)))
    """
    check_molecule(mol, "jaxqc.integrals.jk")
    matrix = _checked_density(mol, density)
    if not (coulomb or exchange):
        raise ValueError("jaxqc.integrals.jk was asked for neither J nor K: set coulomb=True or exchange=True.")
    if not (_is_number(threshold) and 0 < threshold < 1):
        raise ValueError(
            f"The threshold of jaxqc.integrals.jk must be a number above 0 and below 1 Hartree, but is {threshold!r}; "
            "1e-13 is usual."
        )
    _check_omega("jk", omega)
    mixed = checked_precision(precision, "jaxqc.integrals.jk") == "mixed"
    mesh = checked_mesh(mesh, "jaxqc.integrals.jk")
    mol, matrix = replicated((mol, matrix), mesh)
    stack = matrix if matrix.ndim == 3 else matrix[None]
    shells, contraction = two_electron_shells(mol)
    if contraction is not None:
        stack = contraction @ stack @ contraction.T

    j, k = _jk(
        shells,
        stack,
        cart=mol.cart,
        coulomb=bool(coulomb),
        exchange=bool(exchange),
        omega=float(omega),
        threshold=float(threshold),
        symmetric=bool(symmetric),
        mixed=mixed,
        mesh=mesh,
    )
    if contraction is not None:
        j, k = (contraction.T @ x @ contraction for x in (j, k))
    if matrix.ndim == 2:
        return j[0] if coulomb else None, k[0] if exchange else None
    return j if coulomb else None, k if exchange else None


def eri(mol: Molecule, *, omega: float = 0.0) -> jax.Array:
    r"""All electron-repulsion integrals $(ij|kl)$ in chemists' notation.

    $(ij|kl) = \int \chi_i(1) \chi_j(1) r_{12}^{-1} \chi_k(2) \chi_l(2)$. Needs 16 bytes for each quartet of Cartesian
    functions: for small molecules.

    **Arguments:**

    - `mol`: the molecule.
    - `omega`: as in `jk`; 1/Bohr.

    **Returns:** shape `(nao, nao, nao, nao)`, Hartree.

    **Raises:** `ValueError` when that exceeds 8 GB.

    **Example:**

        eri = jaxqc.integrals.eri(jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g"))
    """
    check_molecule(mol, "jaxqc.integrals.eri")
    shells = ShellList.from_molecule(mol)
    # The tensor is made over Cartesian functions and then carried over, with a second one beside it.
    size = 16e-9 * shells.nao_cart**4
    _check_omega("eri", omega)
    if size > 8:
        raise ValueError(
            f"jaxqc.integrals.eri would need {size:.0f} GB for {mol.nao} functions ({shells.nao_cart} Cartesian ones); "
            "use jaxqc.integrals.jk, which never stores integrals."
        )

    def build(w: float) -> jax.Array:
        out = contract("eri", (shells,) * 4, jnp.zeros((0, 0, 0)), float(w), 1e-16)
        if not mol.cart:
            for axis in range(4):
                out = cartesian_to_spherical(shells.ls)(out, axis)
        return out

    return build(0.0) - build(-omega) if omega < 0 else build(omega)


def _is_number(value) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _check_omega(function: str, omega) -> None:
    # Beyond these limits the operator is 1/r or nothing in double precision.
    if not (_is_number(omega) and (omega == 0 or 1e-6 <= abs(omega) <= 1e6)):
        raise ValueError(
            f"omega of jaxqc.integrals.{function} must be 0 or a number of magnitude 1e-6 to 1e6 (1/Bohr), "
            f"but is {omega!r}."
        )


def _checked_density(mol: Molecule, given: ArrayLike) -> jax.Array:
    try:
        density = jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The density of jaxqc.integrals.jk must be an array of real numbers, but is {given!r}."
        ) from error
    if not (jnp.issubdtype(density.dtype, jnp.floating) or jnp.issubdtype(density.dtype, jnp.integer)):
        raise ValueError(
            f"The density of jaxqc.integrals.jk must be real, but its dtype is {density.dtype}; "
            "build J and K of the real and the imaginary part."
        )
    density = density.astype(jnp.float64)
    if density.ndim not in (2, 3) or density.shape[-2:] != (mol.nao, mol.nao):
        raise ValueError(
            f"The density of jaxqc.integrals.jk has shape {density.shape}, but must be ({mol.nao}, {mol.nao}) "
            f"or (n, {mol.nao}, {mol.nao}) for this molecule and basis."
        )
    return density
