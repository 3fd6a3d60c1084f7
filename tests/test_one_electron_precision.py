"""Primitive integrals against 60-digit arithmetic, tight beside diffuse and far apart, where libcint loses digits."""

import jax.numpy as jnp
import numpy as np
import pytest
from one_electron_reference import Pair

from jaxqc.integrals._one_electron import integrals
from jaxqc.integrals._shells import ShellList, cartesian_powers

POINT = (0.3, -0.7, 0.9)
ANGULAR = [(0, 0), (1, 0), (0, 2), (2, 2), (1, 4), (3, 3), (5, 2), (4, 6), (6, 6), (8, 3), (8, 8)]
SEPARATIONS = {
    "coincident": np.zeros(3),
    "near": np.array([0.02, -0.05, 0.01]),
    "bonded": np.array([0.7, 1.1, -0.4]),
    "far": np.array([11.0, -9.0, 7.0]),
}


def one_primitive(l, exponent, center):
    return ShellList((l,), (1,), jnp.asarray(center)[None], jnp.asarray([exponent]), jnp.ones(1))


def value(kind, a, b):
    if kind == "overlap":
        return np.asarray(integrals("multipole", 0, a, b, jnp.zeros(3)))[0]
    if kind == "kinetic":
        return np.asarray(integrals("kinetic", 0, a, b))
    return np.asarray(integrals("nuclear", 0, a, b, jnp.asarray([POINT]), jnp.ones((1, 1))))


def exact(kind, pair, powers_a, powers_b):
    if kind == "nuclear":
        return float(pair.nuclear(powers_a, powers_b, POINT))
    return float(getattr(pair, kind)(powers_a, powers_b))


@pytest.mark.parametrize("separation", SEPARATIONS)
@pytest.mark.parametrize("exponents", [(0.8, 1.3), (1e-2, 2e-2), (1e6, 0.7e6), (1e6, 1e-2), (1e-2, 1e3), (1e6, 1.0)])
@pytest.mark.parametrize("kind", ["overlap", "kinetic", "nuclear"])
def test_error_is_small_beside_the_diagonal_integrals(kind, exponents, separation):
    """|error| <= 1e-13 sqrt(X_aa X_bb), for both orders of the two functions."""
    rng = np.random.default_rng(3)
    a, b = exponents
    ra = np.array([0.1, 0.2, -0.3])
    rb = ra + SEPARATIONS[separation]
    for la, lb in ANGULAR:
        first, second = one_primitive(la, a, ra), one_primitive(lb, b, rb)
        got = value(kind, first, second)
        back = value(kind, second, first)
        scale_a = np.sqrt(np.abs(np.diag(value(kind, first, first))))
        scale_b = np.sqrt(np.abs(np.diag(value(kind, second, second))))
        pair = Pair(a, ra, b, rb)
        for _ in range(2):
            i, j = rng.integers(got.shape[0]), rng.integers(got.shape[1])
            reference = exact(kind, pair, cartesian_powers(la)[i], cartesian_powers(lb)[j])
            bound = 1e-13 * scale_a[i] * scale_b[j]
            assert abs(got[i, j] - reference) <= bound, (la, lb, i, j, got[i, j], reference)
            assert abs(back[j, i] - reference) <= bound, (la, lb, i, j, back[j, i], reference)
