"""The Boys function, on which every Coulomb integral over Gaussians rests."""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxqc.integrals._boys_table import boys_of_table
from jaxqc.integrals._library import cpu_handler

MAX_ORDER = 40


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def _boys(order: int, argument: jax.Array) -> jax.Array:
    def on_cpu(argument):
        result = jax.ShapeDtypeStruct(argument.shape, argument.dtype)
        return jax.ffi.ffi_call(cpu_handler("jaxqc_boys"), result, vmap_method="broadcast_all")(argument, order=order)

    elsewhere = functools.partial(boys_of_table, order)
    return jax.lax.platform_dependent(argument, cpu=on_cpu, default=elsewhere)


@_boys.defjvp
def _boys_jvp(order, primals, tangents):
    return _boys(order, primals[0]), -boys(order + 1, primals[0]) * tangents[0]


def boys(order: int, argument: ArrayLike) -> jax.Array:
    r"""The Boys function $F_m(T) = \int_0^1 t^{2m} e^{-T t^2} dt$, to about $10^{-15}$ relative.

    Boys, Proc. R. Soc. Lond. A 200, 542 (1950), doi:10.1098/rspa.1950.0036.

    **Arguments:**

    - `order`: $m$, static, from 0 to 40.
    - `argument`: $T \ge 0$, any shape, dimensionless.

    **Returns:** $F_m(T)$, shaped as `argument`. Differentiable: $dF_m/dT = -F_{m+1}$. NaN where $T$ is negative or NaN.

    **Raises:** `ValueError` when `order` is not an integer from 0 to 40.

    ```python
    jaxqc.integrals.boys(0, 1.0)   # 0.7468241328124270
    ```
    """
    if not isinstance(order, int) or not 0 <= order <= MAX_ORDER:
        raise ValueError(f"`order` of `boys` is {order!r}, but it must be an integer from 0 to {MAX_ORDER}.")
    return _boys(order, jnp.asarray(argument, jnp.float64))
