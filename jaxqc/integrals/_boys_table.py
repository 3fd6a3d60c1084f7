"""The Boys function from a table, in plain JAX, and the table itself: for devices without a compiled handler."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

RANGE, INVERSE_STEP, TERMS = 64, 8, 10


@functools.cache
def boys_table(order: int) -> np.ndarray:
    r"""Rows $T = i / 8$ up to 64 with $e^{-T}, F_0(T), \dots, F_{order + 9}(T)$; made in extended precision."""
    t = np.arange(RANGE * INVERSE_STEP + 1, dtype=np.longdouble) / INVERSE_STEP
    decay, top = np.exp(-t), order + TERMS - 1
    # F_top = exp(-T) sum_i (2T)^i / ((2 top + 1)(2 top + 3) ... (2 top + 2i + 1)); every term is positive.
    term = np.full_like(t, np.longdouble(1) / (2 * top + 1))
    total, i = term.copy(), 0
    while np.any(term > total * np.longdouble(1e-22)):
        i += 1
        term = term * 2 * t / (2 * top + 2 * i + 1)
        total += term
    values = [decay * total]
    for m in range(top - 1, -1, -1):
        values.append((2 * t * values[-1] + decay) / (2 * m + 1))
    return np.stack([decay, *values[::-1]], axis=1).astype(np.float64)


def boys_of_table(order: int, argument: jax.Array) -> jax.Array:
    """F_order(T): a Taylor series about the nearest row of the table, and for large T the upward recursion."""
    table = jnp.asarray(boys_table(order)[:, order + 1 :])
    inside = jnp.where(argument < RANGE, argument, 0.0)
    row = jnp.round(jnp.maximum(inside, 0.0) * INVERSE_STEP).astype(jnp.int32)
    step = row.astype(jnp.float64) / INVERSE_STEP - inside
    value = table[row, TERMS - 1]
    for k in range(TERMS - 1, 0, -1):
        value = table[row, k - 1] + value * step / k
    large = jnp.where(argument < RANGE, 1.0 * RANGE, argument)
    upward = np.sqrt(np.pi) / 2 / jnp.sqrt(large)
    for m in range(order):
        upward = ((2 * m + 1) * upward - jnp.exp(-large)) * (0.5 / large)
    return jnp.where(argument >= 0, jnp.where(argument < RANGE, value, upward), jnp.nan)
