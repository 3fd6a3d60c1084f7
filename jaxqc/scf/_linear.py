"""MINRES for symmetric, possibly singular or indefinite systems (doi:10.1137/0712047)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class _State(NamedTuple):
    count: jax.Array
    x: jax.Array
    v_old: jax.Array
    v: jax.Array
    w_old: jax.Array
    w: jax.Array
    gamma: jax.Array
    eta: jax.Array
    cosines: jax.Array  # of the last two rotations
    sines: jax.Array


def minres(product, right, *, tolerance=1e-11, max_steps=200):
    """Solves A x = b for symmetric A; the least-squares solution of least norm where A is singular.

    Args:
        product: x -> A x.
        right: array b of any shape.
        tolerance: residual, relative to |b|, at which to stop.
        max_steps: bound on the number of products.

    Returns:
        x, of the shape of b; NaN where the residual is still above 1e-6 |b| at the end, unless b is 0.
    """
    norm = jnp.linalg.norm(right)
    zero = jnp.zeros_like(right)
    one = jnp.ones(())

    def body(s):
        image = product(s.v)
        delta = jnp.sum(s.v * image)
        following = image - delta * s.v - s.gamma * s.v_old
        gamma = jnp.linalg.norm(following)
        (c_old, c), (s_old, sine) = s.cosines, s.sines
        a0 = c * delta - c_old * sine * s.gamma
        a1 = jnp.sqrt(a0 * a0 + gamma * gamma)
        a2 = sine * delta + c_old * c * s.gamma
        a3 = s_old * s.gamma
        safe = jnp.where(a1 == 0.0, 1.0, a1)
        cosine, new_sine = a0 / safe, gamma / safe
        w = (s.v - a3 * s.w_old - a2 * s.w) / safe
        return _State(
            count=s.count + 1,
            x=s.x + cosine * s.eta * w,
            v_old=s.v,
            v=following / jnp.where(gamma == 0.0, 1.0, gamma),
            w_old=s.w,
            w=w,
            gamma=gamma,
            eta=-new_sine * s.eta,
            cosines=jnp.stack([c, cosine]),
            sines=jnp.stack([sine, new_sine]),
        )

    def proceed(s):
        # gamma = 0 ends the Krylov space: nothing more can be gained.
        return (jnp.abs(s.eta) > tolerance * norm) & (s.count < max_steps) & ((s.count == 0) | (s.gamma > 0.0))

    start = _State(
        count=jnp.asarray(0),
        x=zero,
        v_old=zero,
        v=right / jnp.where(norm == 0.0, 1.0, norm),
        w_old=zero,
        w=zero,
        # The first step must not see the norm of b as a coupling to an earlier vector: v_old is 0, the sines are 0.
        gamma=norm,
        eta=norm,
        cosines=jnp.stack([one, one]),
        sines=jnp.zeros((2,)),
    )
    end = jax.lax.while_loop(proceed, body, start)
    return jnp.where(jnp.abs(end.eta) > 1e-6 * norm, jnp.nan, end.x)
