"""Exchange with erfc(omega r)/r on GPUs: kernels run on the CPU against PySCF, and bounds against all integrals."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_cuda_eri as emulation
import two_electron_cases as cases

from jaxqc.gpu import Step, Unit, float64, int32, operand, result
from jaxqc.integrals import _cuda_pairs as cuda_pairs
from jaxqc.integrals import _cuda_short as cuda_short
from jaxqc.integrals._shells import ShellList

emulated, change, tier = emulation.emulated, emulation.change, emulation.tier

_BOUNDS = Unit(str(Path(__file__).with_name("cuda_short_bound.cu")), ("short_bounds",), (), ("eri_short.cuh",))


@pytest.fixture(autouse=True)
def _emulated(emulated, emulator, monkeypatch):
    monkeypatch.setattr(cuda_short, "call", emulator.call)


def _prepared(mole):
    """Plan and pairs of a PySCF Mole, none of them dropped."""
    host = cases.shell_list(mole)
    shells = ShellList(host.ls, host.nprims, *map(jnp.asarray, (host.centers, host.exponents, host.coefficients)))
    plan = cuda_pairs.plan(shells.ls, shells.nprims, mole.cart)
    operands = (shells.centers, shells.exponents, shells.coefficients)
    bounds = lambda p: jnp.zeros(len(p.shells), np.float32)  # noqa: E731
    return plan, cuda_pairs.prepare(plan, *operands, 1e-30, bounds)


def _largest(mole, ls, omega):
    """The largest |(ij|kl)| of erfc for all quartets of shells, and of 1/r; from libcint."""
    first = cuda_pairs._first_functions(ls, mole.cart)[:-1]
    out = []
    for w in (-omega, 0.0):
        with mole.with_range_coulomb(w):
            eri = np.abs(mole.intor("int2e"))
        for axis in range(4):
            eri = np.maximum.reduceat(eri, first, axis)
        out.append(eri)
    return out


_RNG = np.random.default_rng(5)
SYSTEMS = {
    "tight and diffuse": [[[0, [900.0, 0.2], [5.0, 0.9]], [0, [0.02, 1.0]], [1, [300.0, 1.0]], [1, [0.03, 1.0]]]] * 2,
    "contracted": [[cases.contraction(_RNG, l, 3, 0.05, 60.0) for l in (0, 1, 2)]] * 2,
    "high": [[[2, [0.08, 1.0], [1.5, 0.6]], [3, [0.2, 1.0]]], [[0, [0.1, 1.0]], [4, [0.5, 1.0]]]],
    "general": [[cases.contraction(_RNG, l, 3, 0.1, 20.0, nctr=2) for l in (0, 1)], [[2, [0.15, 1.0]]]],
}


@pytest.mark.parametrize("distance", [0.0, 1.5, 6.0, 20.0, 60.0])
@pytest.mark.parametrize(("name", "cart"), [(name, cart) for name in SYSTEMS for cart in (False, True)][1:], ids=str)
def test_no_integral_is_above_its_bound(name, distance, cart, emulator):
    direction = np.array([0.48, -0.6, 0.64])
    mole = cases.mole([np.zeros(3), distance * direction], SYSTEMS[name], cart)
    plan, pairs = _prepared(mole)
    i, j = np.asarray(pairs.shells)[np.asarray(pairs.info)[:, 3] > 0].T
    places, charges = cuda_short.reach(plan, pairs)
    for omega in (0.11, 0.4, 3.0):
        arguments = (operand(0), operand(1), float64(omega), int32(plan.npair), result(0))
        step = Step(_BOUNDS, "short_bounds", 128, arguments, grid=-(-(plan.npair**2) // 128))
        shape = jax.ShapeDtypeStruct((plan.npair, plan.npair), jnp.float32)
        (bounds,) = emulator.call("bounds", [step], [shape], places, charges)
        live = np.asarray(pairs.info)[:, 3] > 0
        bounds = np.asarray(bounds, np.float64)[live][:, live]
        exact, full = _largest(mole, plan.ls, omega)
        exact, full = (x[i[:, None], j[:, None], i, j] for x in (exact, full))
        noise = 1e-15 * np.max(full)
        assert np.all(exact <= np.exp(bounds) + noise)
        # and it is of use: for two Gaussians it is within a factor of 10 of the integral
        if name == "tight and diffuse" and distance == 20.0 and omega == 0.11:
            s = np.asarray([l == 0 for l in plan.ls])
            far = (i[:, None] == j[:, None]) & (i == j) & (s[i][:, None] & s[i]) & (exact > 1e-9) & (bounds < 0.0)
            assert np.any(far & (exact < 1e-2 * full)) and np.all(np.exp(bounds[far]) < 20.0 * exact[far])


@pytest.mark.parametrize(("kinds", "cart"), [("s", False), ("ga", True)])
def test_exchange_is_that_of_all_integrals(kinds, cart, tier):
    case = emulation.case(0, 1, ncenter=2, cart=cart, omega=-0.5)
    density = case.densities(kinds)
    got = emulation.lowered(case.shells, density, cart, -0.5, symmetric=kinds == "s")
    # On either side integrals are differences of those of two operators.
    emulation.assert_close(got, case.reference(density), 4e-12)


@pytest.mark.parametrize(("bra", "ket"), [((2, 1), (2, 0)), ((2, 2), (2, 2))], ids=emulation.label)
def test_classes_with_d(bra, ket):
    emulation.check_class(emulation.case(0, 1, 2, ncenter=2, omega=-0.3), bra, ket, coulomb=False, short=True)


def test_what_is_left_out_is_below_the_threshold():
    """A chain: quartets are dropped for their distance that would not be for the size of their pairs."""
    places = np.array([[0.0, 0.0, 6.0 * k] for k in range(5)])
    mole = cases.mole(places, [[[0, [0.9, 0.4], [0.3, 0.8]], [1, [0.5, 1.0]]]] * 5)
    host = cases.shell_list(mole)
    shells = ShellList(host.ls, host.nprims, *map(jnp.asarray, (host.centers, host.exponents, host.coefficients)))
    density = cases.densities(np.random.default_rng(3), mole.nao, "s") * 0.1
    want = cases.reference(mole, density, -0.4)[1]
    errors = []
    for threshold in (1e-5, 1e-9):
        got = emulation.lowered(shells, density, omega=-0.4, threshold=threshold)[1]
        errors.append(float(np.max(np.abs(np.asarray(got) - want))))
        assert errors[-1] <= 200 * threshold
    assert errors[0] > 1e-9  # something was left out


@pytest.mark.parametrize("omega", [150.0, 3.0])
def test_beyond_a_limit_it_is_the_difference_of_two_operators(omega):
    case = emulation.case(0, ncenter=2, omega=-omega)
    density = case.densities("s")
    emulation.assert_close(emulation.lowered(case.shells, density, omega=-omega), case.reference(density), 1e-9)
