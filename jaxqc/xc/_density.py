r"""Density, its gradient and the kinetic energy density on a grid, linear in the density matrix, and the transpose.

$R: D \to (\rho, \nabla\rho, \tau)$ and $R^T$ are mutual transposes, so that the potential, its derivatives and those of
the energy follow from differentiating a pointwise function of the features.
"""

import jax
import jax.numpy as jnp

from jaxqc.integrals._shells import ShellList
from jaxqc.molecule import Molecule
from jaxqc.xc import _oracle
from jaxqc.xc._cells import Layout, shells_of
from jaxqc.xc._features_type import COMPONENTS


def density_features(
    mol: Molecule | ShellList, layout: Layout, density: jax.Array, kind: str, *, cart: bool | None = None
) -> jax.Array:
    r"""Density, its gradient and the kinetic energy density at the points of a layout.

    $\rho = \sum_{\mu\nu} \phi_\mu D_{\mu\nu} \phi_\nu$, $\nabla\rho$, $\tau = \frac12 \sum_k \partial_k\phi D \partial_k\phi$
    with the symmetric part of each density. Linear in `density`; differentiable in it, in the molecule and in the points.

    **Arguments:**

    - `mol`: the molecule, or a `ShellList` with `cart`.
    - `layout`: from `build_layout`, for this molecule.
    - `density`: shape `(nset, nao, nao)`; electrons.
    - `kind`: "lda" (rho), "gga" (rho and its gradient) or "mgga" (these and tau).

    **Returns:** shape `(nset, ncomp, n)` with `ncomp` 1, 4 or 5, in the order of `layout.points`; electrons/Bohr^3, electrons/Bohr^4,
    Hartree/Bohr^3.
    """
    shells, cart = shells_of(mol, cart)
    symmetric = 0.5 * (density + jnp.swapaxes(density, 1, 2))
    return _oracle.features(shells, layout.points, symmetric, cart=cart, ncomp=COMPONENTS[kind])
