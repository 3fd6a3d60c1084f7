r"""Orbital values and densities on a grid in plain JAX: slow, dense, differentiable in everything.

The compiled kernels are checked against these functions, and derivatives for which there is no kernel run through them.
Points are taken in chunks, whose intermediate arrays are made again in reverse mode, so that memory stays bounded.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.integrals._axis_map import AxisMap
from jaxqc.integrals._shells import (
    ShellList,
    cartesian_offsets,
    cartesian_powers,
    cartesian_to_spherical,
    offsets,
)

_CHUNK_ELEMENTS = 2**22  # of one orbital array (ncomp, points, nao) or radial array (points, nprim)


@functools.lru_cache(maxsize=64)
def _tables(ls: tuple[int, ...], nprims: tuple[int, ...]):
    """Static maps: primitives to shells (padded), functions to shells, powers of functions."""
    width, nshell = max(nprims), len(ls)
    start = offsets(nprims)
    place = np.minimum(start[:-1, None] + np.arange(width), start[-1] - 1)
    there = np.arange(width) < np.asarray(nprims)[:, None]
    shell_of = np.repeat(np.arange(nshell), np.diff(cartesian_offsets(ls)))
    powers = np.concatenate([np.asarray(cartesian_powers(l)).reshape(-1, 3) for l in ls])
    return AxisMap.take(place.reshape(-1), int(start[-1])), there, AxisMap.take(shell_of, nshell), powers


def _monomials(delta: jax.Array, powers: np.ndarray, to_functions: AxisMap, lmax: int):
    """x^a y^b z^c of each function at each point, and its derivatives (3, ...); delta (points, nshell, 3)."""
    values, slopes = [], []
    for axis in range(3):
        d = to_functions(delta[..., axis], 1)
        table = [jnp.ones_like(d)]
        for _ in range(lmax):
            table.append(table[-1] * d)
        n = powers[:, axis]
        value, slope = jnp.zeros_like(d), jnp.zeros_like(d)
        for k in range(lmax + 1):
            value = value + jnp.asarray((n == k) * 1.0)[None] * table[k]
            if k:
                slope = slope + jnp.asarray((n == k) * float(k))[None] * table[k - 1]
        values.append(value)
        slopes.append(slope)
    x, y, z = values
    return x * y * z, jnp.stack([slopes[0] * y * z, x * slopes[1] * z, x * y * slopes[2]])


def orbitals(shells: ShellList, points: jax.Array, *, cart: bool, gradient: bool) -> jax.Array:
    r"""Values of the functions at points, and their derivatives: the numbers of PySCF's `eval_ao`.

    **Arguments:**

    - `shells`: the basis.
    - `points`: shape `(n, 3)`, Bohr.
    - `cart`: Cartesian functions instead of spherical ones.
    - `gradient`: whether $\partial_x, \partial_y, \partial_z$ are wanted.

    **Returns:** shape `(4, n, nao)`, or `(1, n, nao)` without derivatives.
    """
    to_rows, there, to_functions, powers = _tables(shells.ls, shells.nprims)
    exponents = to_rows(shells.exponents, 0).reshape(there.shape)
    coefficients = to_rows(shells.coefficients, 0).reshape(there.shape) * jnp.asarray(there * 1.0)
    delta = points[:, None, :] - shells.centers[None]
    r2 = jnp.sum(delta * delta, axis=-1)
    terms = coefficients[None] * jnp.exp(-exponents[None] * r2[..., None])
    radial = to_functions(jnp.sum(terms, axis=-1), 1)
    value, slopes = _monomials(delta, powers, to_functions, max(shells.ls))
    parts = (value * radial)[None]
    if gradient:
        slope = to_functions(jnp.sum(-2.0 * exponents[None] * terms, axis=-1), 1)
        along = to_functions(jnp.moveaxis(delta, -1, 0), 2)
        parts = jnp.concatenate([parts, slopes * radial[None] + (value * slope)[None] * along])
    return parts if cart else cartesian_to_spherical(shells.ls)(parts, 2)


def _chunk_features(shells, points, density, cart, ncomp):
    phi = orbitals(shells, points, cart=cart, gradient=ncomp > 1)
    x = jnp.einsum("pi,sij->spj", phi[0], density)
    out = [jnp.einsum("spj,pj->sp", x, phi[0])[:, None]]
    if ncomp > 1:
        out.append(2.0 * jnp.einsum("spj,kpj->skp", x, phi[1:]))
    if ncomp > 4:
        y = jnp.einsum("kpi,sij->kspj", phi[1:], density)
        out.append(0.5 * jnp.einsum("kspj,kpj->sp", y, phi[1:])[:, None])
    return jnp.concatenate(out, axis=1)


def features(shells: ShellList, points: jax.Array, density: jax.Array, *, cart: bool, ncomp: int) -> jax.Array:
    r"""Density, its gradient and the kinetic energy density at points, without screening.

    $\rho = \sum \phi_\mu D_{\mu\nu} \phi_\nu$, $\nabla\rho$, $\tau = \frac12 \sum_k \partial_k\phi D \partial_k\phi$
    for a symmetric density.

    **Arguments:**

    - `points`: shape `(n, 3)`, Bohr.
    - `density`: shape `(nset, nao, nao)`, symmetric.
    - `ncomp`: 1 for rho, 4 for rho and its gradient, 5 for these and tau.

    **Returns:** shape `(nset, ncomp, n)`.
    """
    n, nset = points.shape[0], density.shape[0]
    per_point = max(10 * shells.nao_cart, len(shells.exponents), 4 * nset * density.shape[1])
    chunk = max(1, min(n, _CHUNK_ELEMENTS // per_point))
    nchunk = -(-n // chunk)
    if n == 0:
        return jnp.zeros((nset, ncomp, 0))
    padded = jnp.concatenate([points, jnp.broadcast_to(points[-1:], (nchunk * chunk - n, 3))])
    body = jax.checkpoint(lambda p: _chunk_features(shells, p, density, cart, ncomp))
    out = jax.lax.map(body, padded.reshape(nchunk, chunk, 3))
    return jnp.moveaxis(out, 0, 2).reshape(nset, ncomp, nchunk * chunk)[..., :n]
