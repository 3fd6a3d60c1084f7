"""A function of the features as a functional: which features it reads is found by tracing it."""

import jax
import jax.numpy as jnp

from jaxqc.xc._features_type import COMPONENTS, KINDS, Features

_POINTS = 7  # no axis of the features has this length, so a wrong axis shows


def example(kind):
    """Abstract features of a kind."""
    array = jax.ShapeDtypeStruct
    values = (
        array((2, _POINTS), jnp.float64),
        array((2, 3, _POINTS), jnp.float64),
        array((2, _POINTS), jnp.float64),
    )
    return Features(kind, values[: {1: 1, 4: 2, 5: 3}[COMPONENTS[kind]]])


def kind_of(function, kind=None):
    """The lowest kind whose features suffice to the function; its result is checked."""
    name = getattr(function, "__name__", type(function).__name__)
    for candidate in (kind,) if kind else KINDS:
        try:
            out = jax.eval_shape(function, example(candidate))
        except AttributeError as error:
            if candidate in (kind, KINDS[-1]) or not str(error).startswith("The feature "):
                raise
            continue
        if not hasattr(out, "shape") or out.shape != (_POINTS,) or not jnp.issubdtype(out.dtype, jnp.floating):
            got = f"{out.dtype} of shape {out.shape}" if hasattr(out, "shape") else f"a {type(out).__name__}"
            raise ValueError(
                f"The functional {name!r} must return one real energy per volume for each of n grid points, shape "
                f"(n,); for n = {_POINTS} points it returned {got}. Sum over spins, and do not sum over points."
            )
        return candidate
    raise AssertionError
