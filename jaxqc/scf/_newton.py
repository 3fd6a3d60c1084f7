"""One trust-region Newton step of the orbitals (Steihaug's truncated conjugate gradients, doi:10.1137/0720042)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxqc.scf._method import MeanField
from jaxqc.scf._reference import density_of
from jaxqc.scf._rotation import gradient_pairs, hessian_diagonal, hessian_product, pair_mask, rotate, to_orbitals

_MAX_MICRO = 16
_LARGEST_RADIUS = 2.0


class NewtonStep(NamedTuple):
    """State after the step; the old one, with a smaller radius, where the energy did not fall."""

    coefficients: jax.Array
    density: jax.Array
    mean_field: MeanField
    energy: jax.Array
    change: jax.Array
    error: jax.Array
    gradient_norm: jax.Array
    radius: jax.Array


def newton_step(
    reference, coefficients, density, mean_field, energy, radius, hcore, overlap, build, evaluate
) -> NewtonStep:
    """Minimises the quadratic model of the energy within the trust radius, and takes the step if the energy falls.

    Args:
        reference: `Reference`.
        coefficients: (nset, nao, nao).
        density: (nspin, nao, nao) of these orbitals.
        mean_field: `MeanField` of this density.
        energy: (), Hartree.
        radius: (), trust radius in the metric of the diagonal Hessian, Hartree^(1/2).
        hcore, overlap: (nao, nao).
        build: `Builder` of mean fields.
        evaluate: (density, mean field) -> energy, DIIS error, gradient norm.

    Returns:
        `NewtonStep`.
    """
    fock = to_orbitals(reference, coefficients, hcore[None] + mean_field.total)
    mask = pair_mask(reference, coefficients)
    gradient = gradient_pairs(reference, fock, mask)
    scale = jnp.where(mask, 1.0 / jnp.sqrt(hessian_diagonal(reference, fock)), 0.0)
    response = build.response(density)

    def product(step):
        return scale * hessian_product(reference, coefficients, fock, mask, response, scale * step)

    step, predicted = steihaug(product, scale * gradient, radius)
    new_coefficients = rotate(coefficients, scale * step, overlap)
    new_density = density_of(reference, new_coefficients)
    new_field = build(new_density)
    new_energy, new_error, new_norm = evaluate(new_density, new_field)
    change = new_energy - energy

    # Below this size energies are noise, and the step is judged by its prediction alone.
    noise = 1e-12 * jnp.maximum(1.0, jnp.abs(energy))
    quality = jnp.where(jnp.abs(predicted) < noise, 1.0, change / jnp.minimum(predicted, -1e-300))
    taken = jnp.where(jnp.isfinite(new_energy), quality > 0.0, False) | (jnp.abs(change) < noise)
    length = jnp.linalg.norm(step)
    new_radius = jnp.where(
        quality < 0.25,
        0.3 * length,
        jnp.where((quality > 0.75) & (length > 0.8 * radius), jnp.minimum(2.0 * radius, _LARGEST_RADIUS), radius),
    )
    _, old_error, old_norm = evaluate(density, mean_field)
    return NewtonStep(
        coefficients=jnp.where(taken, new_coefficients, coefficients),
        density=jnp.where(taken, new_density, density),
        mean_field=jax.tree.map(lambda new, old: jnp.where(taken, new, old), new_field, mean_field),
        energy=jnp.where(taken, new_energy, energy),
        change=jnp.where(taken, change, jnp.inf),
        error=jnp.where(taken, new_error, old_error),
        gradient_norm=jnp.where(taken, new_norm, old_norm),
        radius=jnp.maximum(new_radius, 1e-6),
    )


class _Steihaug(NamedTuple):
    count: jax.Array
    step: jax.Array
    product: jax.Array  # H step
    residual: jax.Array
    direction: jax.Array
    done: jax.Array


def steihaug(product, gradient, radius):
    """Truncated conjugate gradients for min g.x + x.H.x/2 within |x| <= radius; follows negative curvature.

    Args:
        product: x -> H x.
        gradient: array g.
        radius: () bound on the norm of the step.

    Returns:
        step (shape of g), predicted change () of the model.
    """
    norm = jnp.linalg.norm(gradient)
    target = norm * jnp.minimum(0.1, jnp.sqrt(norm))

    def dot(a, b):
        return jnp.sum(a * b)

    def body(s):
        curved = product(s.direction)
        curvature = dot(s.direction, curved)
        squared = dot(s.residual, s.residual)
        length = squared / jnp.where(curvature == 0.0, 1.0, curvature)
        inside = s.step + length * s.direction
        leaves = (curvature <= 0.0) | (jnp.linalg.norm(inside) >= radius)
        # Where the path leaves the trust region it ends on its border: |x + t d| = radius.
        dd, xd, xx = dot(s.direction, s.direction), dot(s.step, s.direction), dot(s.step, s.step)
        root = jnp.sqrt(jnp.maximum(xd * xd + dd * (radius * radius - xx), 0.0))
        border = (root - xd) / jnp.where(dd == 0.0, 1.0, dd)
        t = jnp.where(leaves, border, length)
        residual = s.residual - t * curved
        new_squared = dot(residual, residual)
        ratio = new_squared / jnp.where(squared == 0.0, 1.0, squared)
        return _Steihaug(
            count=s.count + 1,
            step=s.step + t * s.direction,
            product=s.product + t * curved,
            residual=residual,
            direction=residual + ratio * s.direction,
            done=leaves | (jnp.sqrt(new_squared) <= target),
        )

    zero = jnp.zeros_like(gradient)
    start = _Steihaug(jnp.asarray(0), zero, zero, -gradient, -gradient, norm == 0.0)
    end = jax.lax.while_loop(lambda s: ~s.done & (s.count < _MAX_MICRO), body, start)
    return end.step, dot(gradient, end.step) + 0.5 * dot(end.step, end.product)
