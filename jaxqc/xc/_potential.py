r"""The exchange-correlation energy of a density matrix, and one exchange-correlation step.

$E_{xc}[D] = \sum_g w_g f(R_g D)$: $R$ is linear (`density_features`), $f$ a function of the features at one point. Its
derivatives need no other rule: $V = R^T (w\, \partial f)$ is the gradient, $f_{xc}$ the derivative of $V$ along
a change of the density, and the nuclear gradient the derivative through orbitals, points and weights.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc._bound_functional import bind
from jaxqc._checks import check_molecule
from jaxqc.xc._cells import Layout, build_layout
from jaxqc.xc._density import density_features
from jaxqc.xc._features_type import Features
from jaxqc.xc._grid import Grid, check_grid
from jaxqc.xc.functionals import Functional, functional


def point_features(features: jax.Array, kind: str) -> Features:
    """`Features` of both spins from the rows of `density_features`: one set (the sum of equal spins) or two."""
    # Split, and behind a barrier: derivatives are made by one loop over the points and then put side by side. Those of
    # slices are sums of padded arrays, for each of which XLA would compute them again.
    split = jax.lax.split(features, {"lda": (1,), "gga": (1, 3), "mgga": (1, 3, 1)}[kind], axis=1)
    rows = [x[:, 0] if x.shape[1] == 1 else x for x in jax.lax.optimization_barrier(tuple(split))]
    return Features.of(*(jnp.stack((0.5 * x[0],) * 2) if features.shape[0] == 1 else x for x in rows))


def xc_energy(mol, layout: Layout, xc: Functional, density: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Number of electrons and exchange-correlation energy on a grid; pure, differentiable in every array.

    **Arguments:**

    - `mol`: the molecule, whose coordinates, exponents and coefficients are differentiable.
    - `layout`: the grid in rows, from `build_layout`; its points and weights are differentiable.
    - `xc`: the functional; exact exchange is no part of this energy.
    - `density`: `(nao, nao)` of equal spins together, or `(2, nao, nao)`.

    **Returns:** $\sum_g w_g \rho_g$ and $\sum_g w_g f_g$ in Hartree, scalars.
    """
    sets = density[None] if density.ndim == 2 else density
    features = density_features(mol, layout, sets, xc.kind)
    # Behind barriers: XLA would compute the functional and its derivatives within these sums, several times slower.
    rho, energy_density = jax.lax.optimization_barrier(
        (features[:, 0], xc.energy_density(point_features(features, xc.kind)))
    )
    return jnp.sum(layout.weights[None] * rho), jnp.dot(layout.weights, energy_density)


def _step(mol, layout, density, parameters, bound):
    xc = bound.apply(parameters)

    def energy(d):
        nelec, exc = xc_energy(mol, layout, xc, d)
        return exc, nelec

    (exc, nelec), potential = jax.value_and_grad(energy, has_aux=True)(density)
    return nelec, exc, potential


_compiled = jax.jit(_step, static_argnames="bound")


def potential(mol, grid, xc, density, *, epsilon: float = 1e-12, mesh=None):
    r"""One exchange-correlation step: electrons, energy and potential matrix of a density matrix on a grid.

    $N = \sum_g w_g \rho_g$, $E_{xc} = \sum_g w_g f_g$, $V_{\mu\nu} = \partial E_{xc} / \partial D_{\mu\nu}$.

    **Arguments:**

    - `mol`: the `jaxqc.Molecule`.
    - `grid`: a `jaxqc.xc.Grid` of this molecule, or a `Layout` that many steps share, from
      `jaxqc.xc.build_layout(mol, grid.coords, grid.weights)`.
    - `xc`: a name such as "b3lyp", a `Functional`, or a function of `Features`.
    - `density`: shape `(nao, nao)` (equal spins, both together) or `(2, nao, nao)` (alpha, beta); symmetric: of another
      matrix its symmetric part counts.
    - `epsilon`: contributions below this are left out (0: none); the error of the energy stays below 1e-9 Hartree an
      atom at 1e-12. A `Layout` brings its own.
    - `mesh`: a `jax.sharding.Mesh` over which the rows of the grid are dealt; None for one device.

    **Returns:** number of electrons, energy in Hartree (both scalars; without exact exchange), and the potential in the
    shape of the density, Hartree.

    **Raises:** `TypeError`, `ValueError` for arguments without meaning, in a sentence that says which.

    Source: MakoXC; the transposed pair is restated in the documentation of `jaxqc.xc`.

    >>> mol = jaxqc.Molecule("He 0 0 0", basis="def2-svp")
    >>> nelec, exc, vxc = jaxqc.xc.potential(mol, jaxqc.xc.Grid(mol), "pbe", jaxqc.scf(mol).density)
    >>> round(float(nelec), 4)
    2.0
    """
    if mesh is not None:
        from jaxqc.xc._sharding import sharded_potential

        return sharded_potential(mol, grid, xc, density, mesh, epsilon=epsilon)
    check_molecule(mol, "jaxqc.xc.potential")
    functional_ = functional(xc)
    density = _check_density(mol, density)
    if isinstance(grid, Layout):
        layout = grid
    elif isinstance(grid, Grid):
        _check_epsilon(epsilon)
        check_grid(mol, grid)
        layout = build_layout(mol, grid.coords, grid.weights, epsilon=epsilon, coarse=True)
    else:
        raise TypeError(
            f"Argument grid must be a jaxqc.xc.Grid or a Layout of one, but it is {type(grid).__name__}. "
            "Make one with jaxqc.xc.Grid(mol, level=3)."
        )
    bound, parameters = bind(functional_)
    # The number of points before padding is of no matter here, and would compile anew for each geometry.
    layout = dataclasses.replace(layout, npoint=layout.points.shape[0])
    return _compiled(mol, layout, density, parameters, bound=bound)


def _check_epsilon(epsilon) -> None:
    number = isinstance(epsilon, int | float | np.integer | np.floating) and not isinstance(epsilon, bool)
    if not number or not 0.0 <= epsilon <= 1e-3:
        raise ValueError(
            f"Argument epsilon must be a number from 0 (no screening) to 1e-3, but it is {epsilon!r}. "
            "1e-12 is the default; 1e-10 is faster, with errors of up to 1e-7 Hartree an atom."
        )


def _check_density(mol, density):
    if density is None or isinstance(density, str | bytes):
        raise TypeError(
            f"Argument density must be an array of shape ({mol.nao}, {mol.nao}) or (2, {mol.nao}, {mol.nao}), but it "
            f"is {density!r}."
        )
    density = jnp.asarray(density)
    if density.shape not in ((mol.nao, mol.nao), (2, mol.nao, mol.nao)):
        raise ValueError(
            f"Argument density must have the shape ({mol.nao}, {mol.nao}) (both spins together) or (2, {mol.nao}, "
            f"{mol.nao}) (alpha, beta) for this molecule, but it has {density.shape}."
        )
    if not jnp.issubdtype(density.dtype, jnp.floating):
        raise TypeError(f"Argument density must be real numbers, but its type is {density.dtype}.")
    if not isinstance(density, Tracer) and not bool(jnp.isfinite(density).all()):
        raise ValueError("Argument density must be finite, but it holds infinities or values that are no numbers.")
    return density.astype(jnp.float64)
