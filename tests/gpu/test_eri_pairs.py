"""Shell pairs on an NVIDIA GPU against plain NumPy: the cases of the emulated kernels, and a larger one."""

import jax
import pytest
import test_cuda_pairs as emulated

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no NVIDIA GPU")


@pytest.mark.parametrize("name", [*emulated.CASES, "large"])
def test_all_pairs_are_listed_with_their_primitives(name, monkeypatch):
    monkeypatch.setitem(
        emulated.CASES, "large", emulated.Basis(emulated.random_shells(11, 120, 4, 4.0, most=9), seed=11)
    )
    emulated.test_all_pairs_are_listed_with_their_primitives(name)


def test_bounds_that_are_no_numbers_are_seen_and_left_out():
    emulated.test_bounds_that_are_no_numbers_are_seen_and_left_out()


@pytest.mark.parametrize("cart", [False, True])
def test_density_bounds_are_the_largest_elements_of_blocks(cart):
    emulated.test_density_bounds_are_the_largest_elements_of_blocks(cart, 3)


@pytest.mark.parametrize("sign", [1, -1])
def test_blocks_become_a_dense_matrix_plus_its_transpose(sign):
    emulated.test_blocks_become_a_dense_matrix_plus_its_transpose(False, sign)
