r"""Bounds for the operator $\mathrm{erfc}(\omega r)/r$ on a GPU that fall with the distance of the pairs of shells.

The operator is positive, so that Gaussians that are nowhere below a charge distribution repel others at least as much.
Integrals of two normalised Gaussians of exponents p and p' at a distance R are below $\mathrm{erfc}(w R)/R$, where
$1/w^2 = 1/\omega^2 + 1/p + 1/p'$: see eri_short.cuh.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, Unit, call, float64, int32, int64, operand, result
from jaxqc.integrals._cuda_pairs import PairPlan, Pairs

UNIT = Unit("eri_reach.cu", ("eri_reach",))
# Kernels take integrals of erf(omega r)/r from those of 1/r. With a larger omega few digits are left to make bounds of:
# what remains of integrals of exponents 1e-4 is 2e-8 here.
LARGEST = 100.0
_BLOCK = 128


def _angular(l: int, cart: bool) -> float:
    """Log of the largest value of functions r^-l chi(r) / R(r), those of s and p being in the radial part."""
    return 0.0 if l < 2 or cart else 0.5 * float(np.log((2 * l + 1) / (4.0 * np.pi)))


def reach(plan: PairPlan, pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    """Of each pair the place P, least exponent p, charge q and largest distance d from P of such Gaussians.

    **Returns:** P and 1/p, `(npair, 4)`; log q and d, `(npair, 2)`; single precision, the latter rounded up.
    """
    steps = []
    for la, lb, first, count in plan.classes:
        angular = _angular(la, plan.cart) + _angular(lb, plan.cart)
        arguments = (*(operand(i) for i in range(3)), int64(pairs.prims.shape[1]), int32(la), int32(lb))
        arguments += (float64(angular), int32(first), int32(count), result(0), result(1))
        steps.append(Step(UNIT, "eri_reach", _BLOCK, arguments, grid=-(-count // _BLOCK)))
    shapes = [jax.ShapeDtypeStruct((plan.npair, 4), jnp.float32), jax.ShapeDtypeStruct((plan.npair, 2), jnp.float32)]
    places, charges = call("jaxqc_eri_reach", steps, shapes, pairs.info, pairs.centers, pairs.prims)
    return places, charges
