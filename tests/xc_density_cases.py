"""Shells, points and PySCF's densities for tests of the densities on a grid."""

import jax.numpy as jnp
import numpy as np
from pyscf.dft import numint
from two_electron_cases import CENTERS, contraction, mole, shell_list

from jaxqc.xc._cells import build_layout

COMPONENTS = {"lda": 1, "gga": 4, "mgga": 5}


def points_around(rng, n, spread=1.5):
    """Random points about the centres, the first of them on a nucleus; and weights."""
    points = CENTERS[rng.integers(len(CENTERS), size=n)] + spread * rng.normal(size=(n, 3))
    points[:1] = CENTERS[0]
    return points, rng.uniform(0.1, 1.0, n)


def small_mole(cart=False, lmax=2, natm=3, seed=0):
    """Contracted shells up to lmax on each of a few centres."""
    rng = np.random.default_rng(seed)
    shells = [[contraction(rng, l, 1 + (l + k) % 3, 0.15, 6.0) for l in range(lmax + 1)] for k in range(natm)]
    return mole(CENTERS, shells, cart)


def symmetric(rng, nset, nao):
    """Random symmetric matrices."""
    d = rng.normal(size=(nset, nao, nao))
    return d + d.transpose(0, 2, 1)


def layout_of(mole, points, weights, **options):
    """The shells of a PySCF Mole and a layout for them."""
    shells = shell_list(mole)
    options = {"epsilon": 0.0, "row": 48, "cart": bool(mole.cart), **options}
    return shells, build_layout(shells, jnp.asarray(points), jnp.asarray(weights), **options)


def pyscf_features(mole, points, density, kind):
    """rho, its gradient and tau of symmetric densities from PySCF, (nset, ncomp, n)."""
    ao = mole.eval_gto("GTOval_cart_deriv1" if mole.cart else "GTOval_sph_deriv1", points)
    out = [numint.eval_rho(mole, ao, d, xctype="MGGA", hermi=1, with_lapl=False) for d in density]
    return np.array(out)[:, : COMPONENTS[kind]]


def relative(value, expected):
    """Largest difference relative to the largest element."""
    value, expected = np.asarray(value), np.asarray(expected)
    return float(np.max(np.abs(value - expected), initial=0.0) / max(1e-300, np.max(np.abs(expected), initial=0.0)))


def pyscf_potential(mole, points, cotangent):
    """V of cotangents (nset, ncomp, n) of the features from PySCF's orbital values."""
    ao = mole.eval_gto("GTOval_cart_deriv1" if mole.cart else "GTOval_sph_deriv1", np.asarray(points))
    out = []
    for c in np.asarray(cotangent):
        half = 0.5 * c[0, :, None] * ao[0] + sum(c[k, :, None] * ao[k] for k in range(1, min(len(c), 4)))
        y = ao[0].T @ half
        if len(c) == 5:
            y = y + 0.25 * sum(ao[k].T @ (c[4, :, None] * ao[k]) for k in (1, 2, 3))
        out.append(y + y.T)
    return np.array(out)
