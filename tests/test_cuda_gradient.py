"""The kernels of the gradients of J and K for GPUs, run thread by thread on the CPU, against the CPU's own kernels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import two_electron_cases as cases

from jaxqc.gpu import build
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals import _cuda_gradient as cuda_gradient
from jaxqc.integrals import _cuda_gradient_self_test as self_test
from jaxqc.integrals import _cuda_jk as cuda_jk
from jaxqc.integrals import _cuda_pairs as cuda_pairs
from jaxqc.integrals import _jk as jk_module
from jaxqc.integrals._shells import ShellList

TOLERANCE = 1e-12  # relative to the largest derivative


@pytest.fixture
def emulated(emulator, monkeypatch):
    for module in (cuda_gradient, cuda_jk, cuda_pairs):
        monkeypatch.setattr(module, "call", emulator.call)
    monkeypatch.setattr(cuda_jk, "_BUSY", 4)  # few blocks: the emulator runs one after the other


@pytest.fixture
def change(monkeypatch):
    """Changes how kernels are chosen and shaped."""

    def to(name, value):
        monkeypatch.setattr(cuda_gradient, name, value)
        cuda_gradient.kernel.cache_clear()

    yield to
    cuda_gradient.kernel.cache_clear()


def shells_of(ls, cart=False, ncenter=2):
    """Random shells of the angular momenta `ls` on each of `ncenter` places."""
    rng = np.random.default_rng(3 * len(ls) + max(ls))
    shells = [[cases.contraction(rng, l, (k + l) % 2 + 1, 0.3, 4.0) for l in ls] for k in range(ncenter)]
    return cases.shell_list(cases.mole(cases.CENTERS[:ncenter], shells, cart))


def random_matrices(shells, nset, symmetric, cart):
    """Densities and weights of J and K."""
    nao = jk_module.nao_of(shells.ls, cart)
    matrices = np.random.default_rng(nao).normal(size=(3, nset, nao, nao))
    return matrices + matrices.swapaxes(-1, -2) if symmetric else matrices


def lowered(shells, matrices, part=0, parts=1, **settings):
    arrays = (shells.centers, shells.exponents, shells.coefficients, *matrices, np.asarray([part], np.int32))
    operands: list[Any] = [jnp.asarray(x) for x in arrays]
    layout = (shells.ls, shells.nprims)
    return np.asarray(cuda_gradient.lowered(*operands, layout=layout, parts=parts, **settings))


def both(shells, nset=1, symmetric=True, cart=False, coulomb=True, exchange=True, omega=0.0, threshold=1e-13):
    """The gradient of the CUDA kernels and of those of the CPU for random densities and weights."""
    matrices = random_matrices(shells, nset, symmetric, cart)
    settings: dict[str, Any] = dict(cart=cart, coulomb=coulomb, exchange=exchange, omega=omega, threshold=threshold)
    reference: dict[str, Any] = settings | {"threshold": 1e-15}

    def energy(centers):
        density, *weights = (jnp.asarray(x) for x in matrices)
        moved = ShellList(shells.ls, shells.nprims, centers, shells.exponents, shells.coefficients)
        built = jk_module.jk(moved, density, **reference)
        return sum(jnp.sum(w * x) for w, x in zip(weights, built, strict=True) if len(x))

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        expected = np.asarray(jax.grad(energy)(jnp.asarray(shells.centers)))
    return lowered(shells, matrices, **settings), expected


def assert_same(found, reference, tolerance=TOLERANCE):
    np.testing.assert_allclose(found, reference, rtol=0, atol=tolerance * np.abs(reference).max())
    np.testing.assert_allclose(found.sum(axis=0), 0, atol=tolerance * np.abs(reference).max())


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("size", [0, 100])
def test_s_and_p_in_both_tiers(change, size):
    change("_REGISTER_SIZE", size)
    assert_same(*both(shells_of((0, 1))))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "settings",
    [
        dict(nset=2, symmetric=False),
        dict(omega=0.4),
        pytest.param(dict(exchange=False), marks=pytest.mark.slow),
        pytest.param(dict(coulomb=False, nset=3, symmetric=False, omega=0.7), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_settings(settings):
    assert_same(*both(shells_of((0, 1)), **settings))


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("ls", [(0, 1, 2), (1, 3), (0, 4), (2, 3), (5,)], ids=str)
def test_higher_functions(ls, cart):
    # Of h functions both lose digits in the horizontal recurrences; libcint's values differ from both by 1e-10.
    assert_same(*both(shells_of(ls, cart), cart=cart), 2e-11 if max(ls) > 4 else TOLERANCE)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("name", "value"), [("_EXCHANGE_BYTES", 900), ("_ONCE", 0), ("_REGISTER_SIZE", 300)])
def test_other_shapes(change, name, value):
    change(name, value)
    assert_same(*both(shells_of((1, 2))))


@pytest.mark.usefixtures("emulated")
def test_screening_keeps_the_gradient_and_drops_quartets(monkeypatch):
    centers = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.5], [0.0, 9.0, 0.0]])
    shells = cases.shell_list(cases.mole(centers, [[[0, [0.8, 1.0]]]] * 3))
    for threshold in (1e-13, 1e-6):
        found, reference = both(shells, threshold=threshold)
        assert_same(found, reference, 1e3 * threshold)
    assert not np.array_equal(found, both(shells, threshold=1e-13)[0])


@pytest.mark.usefixtures("emulated")
def test_kernels_test_themselves(monkeypatch):
    self_test.verify((0, 1), cuda_classes.Variant(False))
    right = cuda_gradient.sums
    monkeypatch.setattr(cuda_gradient, "sums", lambda *a, **k: right(*a, **k) * (1 + 1e-9))
    with pytest.raises(RuntimeError, match="kernels clear"):
        self_test.verify((0, 1), cuda_classes.Variant(False))


@pytest.mark.usefixtures("emulated")
def test_parts_add_up(change):
    change("_REGISTER_SIZE", 0)
    shells = shells_of((0, 1))
    matrices = random_matrices(shells, 1, True, False)
    settings: dict[str, Any] = dict(cart=False, coulomb=True, exchange=True, omega=0.0, threshold=1e-13)
    parts = [lowered(shells, matrices, part, 3, **settings) for part in range(3)]
    assert all(np.abs(x).max() > 0.01 for x in parts)
    assert_same(sum(parts), lowered(shells, matrices, **settings))


@pytest.mark.usefixtures("emulated")
def test_fixed_point_sums_do_not_depend_on_the_order(monkeypatch):
    monkeypatch.setenv("JAXQC_DETERMINISTIC", "1")
    shells = shells_of((0,), ncenter=4)
    found, reference = both(shells)
    assert_same(found, reference)
    monkeypatch.setattr(cuda_gradient, "_COPIES", 3)
    cuda_gradient.kernel.cache_clear()
    assert np.array_equal(both(shells)[0], found)
    cuda_gradient.kernel.cache_clear()


@pytest.mark.usefixtures("emulated")
def test_what_is_not_a_number_stays_so():
    shells = shells_of((0,))
    matrices = random_matrices(shells, 1, True, False)
    matrices[0, 0, 0, 1] = np.nan
    found = lowered(shells, matrices, cart=False, coulomb=True, exchange=False, omega=0.0, threshold=1e-13)
    assert np.isnan(found).all()


def _classes(lmax, least):
    pairs = [(la, lb) for la in range(lmax + 1) for lb in range(la + 1)]
    return [(b, k) for b, k in cuda_classes.classes(pairs) if max(b[0], k[0]) >= least]


# Bytes of spills that kernels with a group of lanes a quartet may have, by the highest l; with a thread, none.
SPILLS = {1: 0, 2: 160, 3: 2600}


@pytest.mark.parametrize(
    ("arch", "lmax", "cart"),
    [(90, 1, False), (90, 2, False), (90, 3, False), (80, 2, False), (90, 2, True)],
)
def test_resources(arch, lmax, cart, fresh_kernels):
    kernels = [
        cuda_gradient.kernel(b, k, cuda_classes.Variant(cart)) for b, k in _classes(lmax, lmax if lmax > 1 else 0)
    ]
    for kernel, built in zip(kernels, build([k.unit for k in kernels], arch), strict=True):
        (used,) = built.resources().values()
        blocks = dict(kernel.unit.defines)["MINBLOCKS"]
        assert used["registers"] * kernel.block * blocks <= 65536, (kernel.unit.name, used)
        assert kernel.shared * blocks <= 220_000, (kernel.unit.name, kernel.shared)
        if kernel.registers and arch == 90:
            assert used["spill"] == 0, (kernel.unit.name, used)
        if not cart:
            assert used["spill"] <= SPILLS[lmax], (kernel.unit.name, used)
