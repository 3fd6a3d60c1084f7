"""The Boys function against 60-digit arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_electron_reference import boys as reference

from jaxqc.integrals import boys

ARGUMENTS = np.concatenate(
    [
        [0.0, 1e-300, 1e-16, 1e-8, 1e-3, 0.0624999, 0.0625, 0.0625001, 0.125],
        np.random.default_rng(1).uniform(0.0, 70.0, 60),
        [63.9374, 63.9376, np.nextafter(64.0, 0.0), 64.0, 64.0001, 100.0, 249.0, 699.9, 700.1, 1e3, 12345.6, 1e5, 1e6],
    ]
)


@pytest.mark.parametrize("order", range(0, 33))
def test_relative_error_below_1e14_at_every_order_and_argument(order):
    exact = np.array([float(reference(order, float(t))) for t in ARGUMENTS])
    np.testing.assert_allclose(np.asarray(boys(order, ARGUMENTS)), exact, rtol=1e-14, atol=0.0)


def test_highest_order():
    arguments = np.array([0.0, 0.3, 17.7, 63.99, 64.0, 90.0, 1000.0])
    exact = np.array([float(reference(40, float(t))) for t in arguments])
    np.testing.assert_allclose(np.asarray(boys(40, arguments)), exact, rtol=2e-14, atol=0.0)


def test_value_at_zero_is_a_rational():
    for order in range(41):
        assert float(boys(order, 0.0)) == pytest.approx(1.0 / (2 * order + 1), rel=4e-16)


def test_first_and_second_derivative():
    t = 3.7
    first = jax.grad(lambda x: boys(2, x))(t)
    second = jax.grad(jax.grad(lambda x: boys(2, x)))(t)
    assert float(first) == pytest.approx(-float(reference(3, t)), rel=1e-14)
    assert float(second) == pytest.approx(float(reference(4, t)), rel=1e-14)


def test_shapes_jit_and_vmap():
    arguments = jnp.asarray(np.linspace(0.0, 80.0, 12).reshape(3, 4))
    plain = boys(5, arguments)
    assert plain.shape == (3, 4)
    np.testing.assert_array_equal(jax.jit(lambda x: boys(5, x))(arguments), plain)
    np.testing.assert_array_equal(jax.vmap(lambda x: boys(5, x))(arguments), plain)


def test_invalid_arguments_give_nan_and_neighbours_stay():
    values = np.asarray(boys(1, np.array([1.0, np.nan, -1.0, np.inf, 2.0])))
    np.testing.assert_array_equal(np.isnan(values), [False, True, True, False, False])
    assert values[3] == 0.0
    assert values[4] == pytest.approx(float(reference(1, 2.0)), rel=1e-14)


@pytest.mark.parametrize("order", [-1, 41, 1.0, "0", None])
def test_bad_order_is_named(order):
    with pytest.raises(ValueError, match="`order` of `boys`"):
        boys(order, 1.0)
