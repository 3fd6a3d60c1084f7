"""Fractions of the weights of grid points that the partition of space leaves to their atoms."""

import jax

from jaxqc.xc._grid_becke import reference_fractions


def partition_fractions(coords, points, owner, radii, *, partition) -> jax.Array:
    """See `reference_fractions`."""
    return reference_fractions(coords, points, owner, radii, partition=partition)
