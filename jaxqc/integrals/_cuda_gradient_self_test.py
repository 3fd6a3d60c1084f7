"""A test of freshly compiled kernels of the gradient of J and K on the device at hand, against those of the CPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.integrals import _cuda_gradient, _cuda_jk, _cuda_pairs
from jaxqc.integrals._cuda_classes import Variant
from jaxqc.integrals._cuda_self_test import _shells
from jaxqc.integrals._jk import jk, nao_of
from jaxqc.integrals._shells import ShellList

_THRESHOLD = 1e-13
_TOLERANCE = 1e-10  # of the largest derivative


def _difference(ls: tuple[int, ...], variant: Variant) -> float:
    """The largest difference from the gradient of the CPU, relative to its largest element."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        shells = _shells(ls)
        nao = nao_of(shells.ls, variant.cart)
        x = np.random.default_rng(2).normal(size=(3, 1, nao, nao))
        density, *weights = matrices = x + x.swapaxes(-1, -2)
        operator: dict[str, Any] = dict(
            coulomb=variant.coulomb, exchange=variant.exchange, omega=0.0, threshold=_THRESHOLD
        )

        def energy(centers):
            moved = ShellList(shells.ls, shells.nprims, centers, shells.exponents, shells.coefficients)
            built = jk(moved, jnp.asarray(density), cart=variant.cart, **operator)
            return sum((jnp.sum(w * x) for w, x in zip(weights, built, strict=True) if len(x)), jnp.zeros(()))

        expected = np.asarray(jax.grad(energy)(shells.centers))
        host = [np.asarray(x) for x in (shells.centers, shells.exponents, shells.coefficients)]
    plan = _cuda_pairs.plan(shells.ls, shells.nprims, variant.cart)
    centers, exponents, coefficients, *on_device = (jnp.asarray(x) for x in (*host, *matrices))
    schwarz = functools.partial(_cuda_jk.schwarz, plan)
    pairs = _cuda_pairs.prepare(plan, centers, exponents, coefficients, _THRESHOLD, schwarz)
    part = jnp.zeros(1, jnp.int32)
    sums = _cuda_gradient.sums(plan, pairs, variant, part, 1, 0.0, _THRESHOLD, *on_device, test=False)
    error = np.max(np.abs(np.asarray(sums) - expected)) / np.max(np.abs(expected))
    return float(error) if np.isfinite(error) else np.inf


def verify(ls: tuple[int, ...], variant: Variant) -> None:
    """Tests the kernels of all classes of shells of the angular momenta `ls`.

    **Raises:** `RuntimeError` where the gradient differs from that of the CPU.
    """
    worst = _difference(ls, variant)
    if worst > _TOLERANCE:
        raise RuntimeError(
            f"The GPU kernels of the gradient of J and K, compiled for this device ({variant}), give results that "
            f"differ from those of the CPU by {worst:.1e} of the largest element, for shells of l = "
            f"{', '.join(map(str, ls))}. Remove them with `jaxqc kernels clear`, update the driver and the CUDA wheels "
            "of JAX, or compute on CPUs (JAX_PLATFORMS=cpu)."
        )
