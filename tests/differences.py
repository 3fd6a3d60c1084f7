"""Finite differences, the oracle of derivatives."""

import jax.numpy as jnp
import numpy as np


def central(function, x, step=1e-3):
    """Central differences of fourth order along each element of x; elements come first in the result."""
    x = np.asarray(x)
    rows = []
    for index in np.ndindex(x.shape):
        unit = np.zeros_like(x)
        unit[index] = step
        far, near = ([np.asarray(function(jnp.asarray(x + k * s * unit))) for s in (1, -1)] for k in (2, 1))
        rows.append((8.0 * (near[0] - near[1]) - (far[0] - far[1])) / (12.0 * step))
    return np.array(rows).reshape(x.shape + rows[0].shape)
