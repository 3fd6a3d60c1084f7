"""Whether J comes from the quartets that make K, or from Hermite Gaussians while those make K alone.

J asks for more quartets than K where molecules are extended: exchange falls with the distance, the Coulomb potential of
a density does not. Which way is faster depends on how many more. That is known on the device only, so that both ways
are launched, and one of them finds nothing to do.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.ffi_kernels.rcg.cartesian import ncart
from jaxqc.integrals._cuda_pairs import PairPlan, Pairs

# With fewer shells J costs little next to K, and less than the preparation of the other way.
SHELLS = 500
# J by Hermite Gaussians takes 0.6 to 1.1 times as long as K alone on an H200 (cc-pVDZ to cc-pVQZ, 57 to 212 atoms).
_RATIO = 1.7
_SAMPLES, _AT_ONCE = 64, 8  # bra pairs


def apart(plan: PairPlan, pairs: Pairs, bounds: jax.Array, threshold: float) -> jax.Array:
    """Whether K alone and J by Hermite Gaussians are the faster way; a boolean on the device.

    **Arguments:** `bounds`: logarithms of the largest elements of the density's blocks, of `density_bounds`.
    """
    both, exchange = work(plan, pairs, bounds, threshold)
    return both > _RATIO * exchange


def work(
    plan: PairPlan, pairs: Pairs, bounds: jax.Array, threshold: float, samples: int = _SAMPLES
) -> tuple[jax.Array, jax.Array]:
    """The work of the quartets that J or K asks for, and of those that K asks for, from some of the bra pairs.

    A quartet counts by its primitives and Cartesian functions.
    """
    sizes = np.concatenate([np.full(count, ncart(la) * ncart(lb), np.float32) for la, lb, _, count in plan.classes])
    weight = jnp.asarray(sizes) * pairs.info[:, 3].astype(jnp.float32)
    rank = jnp.cumsum(pairs.info[:, 3] > 0)
    chosen = (jnp.arange(samples) * rank[-1]) // samples + 1
    k, l = pairs.shells.T
    zero, four = jnp.zeros((), jnp.float32), np.float32(np.log(4.0))

    def of_bra(n):
        i, j = pairs.shells[n]
        logs = pairs.bound[n] + pairs.bound - np.float32(np.log(threshold))
        most_k = jnp.maximum(jnp.maximum(bounds[i, k], bounds[i, l]), jnp.maximum(bounds[j, k], bounds[j, l]))
        most_j = jnp.maximum(bounds[i, j], bounds[k, l]) + four
        each = weight[n] * weight
        both = jnp.sum(jnp.where(logs + jnp.maximum(most_j, most_k) > 0.0, each, zero))
        return both, jnp.sum(jnp.where(logs + most_k > 0.0, each, zero))

    both, exchange = jax.lax.map(of_bra, jnp.searchsorted(rank, chosen), batch_size=_AT_ONCE)
    return jnp.sum(both), jnp.sum(exchange)
