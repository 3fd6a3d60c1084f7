"""A test of freshly compiled two-electron kernels on the device at hand, against the kernels of the CPU."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.integrals import _cuda_hermite, _cuda_jk, _cuda_pairs
from jaxqc.integrals._cuda_classes import Variant
from jaxqc.integrals._jk import jk as reference
from jaxqc.integrals._jk import nao_of
from jaxqc.integrals._shells import ShellList

_THRESHOLD = 1e-13
_ADVICE = (
    ". Remove them with `jaxqc kernels clear`, update the driver and the CUDA wheels of JAX, or compute on CPUs "
    "(JAX_PLATFORMS=cpu)."
)
_TOLERANCE = 1e-10  # of the largest element: high angular momenta lose a few digits
_TOLERANCE_SINGLE = 1e-4
_OMEGA = 0.5  # where the operator is attenuated
_ALL = 1e30  # bound of quartets in single precision


def _shells(ls: tuple[int, ...]) -> ShellList:
    """For each l a contracted shell and two single functions, on three centres; two of them share one."""
    centers = np.array([[0.0, 0.1, -0.2], [0.9, -0.7, 1.1], [-1.3, 0.4, 0.6]])
    size = len(ls)
    exponents = np.array([[1.9, 0.6, 0.45, 1.2] for _ in ls]) * (1.0 + 0.1 * np.arange(size))[:, None]
    coefficients = np.array([[0.3, 0.5, 0.8, -0.7]] * size)
    place = np.array([[n % 3, (n + 1) % 3, (n + 1 + n // 3) % 3] for n in range(size)])
    return ShellList(
        tuple(l for l in ls for _ in range(3)),
        (2, 1, 1) * size,
        jnp.asarray(centers[place.reshape(-1)]),
        jnp.asarray(exponents.reshape(-1)),
        jnp.asarray(coefficients.reshape(-1)),
    )


def _case(ls: tuple[int, ...], cart: bool, sets: int, coulomb: bool, exchange: bool, omega: float = 0.0):
    """Shells, their arrays with symmetric densities, and J and K of the CPU."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        shells = _shells(ls)
        nao = nao_of(shells.ls, cart)
        x = np.random.default_rng(1).normal(size=(sets, nao, nao))
        density = x + x.transpose(0, 2, 1)
        expected = reference(
            shells,
            jnp.asarray(density),
            cart=cart,
            coulomb=coulomb,
            exchange=exchange,
            omega=omega,
            threshold=_THRESHOLD,
        )
        host = [np.asarray(x) for x in (shells.centers, shells.exponents, shells.coefficients, density)]
        return shells, host, [np.asarray(x) for x in expected]


def _error(found: jax.Array, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest element."""
    error = np.max(np.abs(np.asarray(found) - expected)) / np.max(np.abs(expected))
    return float(error) if np.isfinite(error) else np.inf


def _difference(ls: tuple[int, ...], variant: Variant) -> float:
    """The largest difference of J and K from those of the CPU; all in single precision for a mixed variant."""
    omega = -_OMEGA if variant.short else 0.0
    shells, host, expected = _case(ls, variant.cart, variant.sets, variant.coulomb, variant.exchange, omega)
    plan = _cuda_pairs.plan(shells.ls, shells.nprims, variant.cart)
    schwarz = functools.partial(_cuda_jk.schwarz, plan, omega=omega)

    # One program: many small ones would take longer to compile.
    @jax.jit
    def build(centers, exponents, coefficients, density):
        pairs = _cuda_pairs.prepare(plan, centers, exponents, coefficients, _THRESHOLD, schwarz)
        bounds = _cuda_pairs.density_bounds(plan.ls, plan.cart, density)
        sums = _cuda_jk.blocked(plan, pairs, density, bounds, variant, -omega, _THRESHOLD, test=False, single=_ALL)
        return [_cuda_jk.floating(x, variant) for x in sums]

    blocks = build(*map(jnp.asarray, host))
    worst = 0.0
    for wanted, block, matrix in zip((variant.coulomb, variant.exchange), blocks, expected, strict=True):
        if wanted:
            worst = max(worst, _error(_cuda_pairs.unblock(plan.ls, plan.cart, block, 1), matrix))
    return worst


def verify(ls: tuple[int, ...], variant: Variant) -> None:
    """Tests the kernels of all classes of shells of the angular momenta `ls`.

    **Raises:** `RuntimeError` where a matrix differs from that of the CPU.
    """
    if variant.mixed:
        verify(ls, replace(variant, mixed=False))
    tolerance = _TOLERANCE_SINGLE if variant.mixed else _TOLERANCE
    worst = _difference(ls, variant)
    if worst > tolerance:
        wrong = [l for l in ls if _difference((l,), variant) > tolerance]
        raise RuntimeError(
            f"The GPU kernels of electron-repulsion integrals, compiled for this device ({variant}), give results that "
            f"differ from those of the CPU by {worst:.1e} of the largest element"
            + (f"; shells of l = {', '.join(map(str, wrong))} alone show it" if wrong else "")
            + _ADVICE
        )


@functools.cache  # several calls of one build ask for it
def verify_coulomb(ls: tuple[int, ...], cart: bool, sets: int) -> None:
    """Tests the kernels of J by Hermite Gaussians for shells of the angular momenta `ls`.

    **Raises:** `RuntimeError` where J differs from that of the CPU.
    """
    shells, host, (expected, _) = _case(ls, cart, sets, True, False)
    plan = _cuda_hermite.plan(shells.ls, shells.nprims, cart)
    options = _cuda_hermite.Options(threshold=_THRESHOLD, single=0.0)

    @jax.jit
    def build(*operands):
        return _cuda_hermite.coulomb(plan, _cuda_hermite.prepare(plan, *operands[:3]), operands[3], options)

    worst = _error(build(*map(jnp.asarray, host)), expected)
    if worst > _TOLERANCE:
        raise RuntimeError(
            f"The GPU kernels of Coulomb matrices, compiled for this device, give results that differ from those of "
            f"the CPU by {worst:.1e} of the largest element, for shells of l = {', '.join(map(str, ls))}{_ADVICE}"
        )
