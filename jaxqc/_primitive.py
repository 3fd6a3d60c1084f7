"""JAX primitives over traceable functions: what every compiled kernel of jaxqc needs besides its derivative rules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

USE_CPU = (
    "To compute on the CPU, set the environment variable JAX_PLATFORMS=cpu before Python starts, or call "
    'jax.config.update("jax_default_device", jax.devices("cpu")[0]).'
)


def zero_tangent(value) -> ad.Zero:
    """The symbolic zero tangent of a value."""
    return ad.Zero.from_primal_value(value)  # pyright: ignore[reportAttributeAccessIssue]


def sequential_batch(primitive):
    """A batching rule that makes one call after the other: each call is parallel by itself."""

    def rule(operands, axes, **parameters):
        mapped = [i for i, axis in enumerate(axes) if axis is not None]
        moved = tuple(jnp.moveaxis(operands[i], axes[i], 0) for i in mapped)

        def one(arrays):
            full = list(operands)
            for i, array in zip(mapped, arrays, strict=True):
                full[i] = array
            return primitive.bind(*full, **parameters)

        result = jax.lax.map(one, moved)
        return (result, [0] * len(result)) if primitive.multiple_results else (result, 0)

    return rule


def on_host(primitive, shapes):
    """What computes a primitive on the CPU for a program that runs elsewhere: slow steps that have no other kernel.

    **Arguments:** `primitive`; `shapes(*operands, **parameters)`: the results' shapes, all of float64.
    """

    def compute(*operands, **parameters):
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return jax.tree.map(np.asarray, primitive.bind(*map(jnp.asarray, operands), **parameters))

    def call(*operands, **parameters):
        results = [jax.ShapeDtypeStruct(s, jnp.float64) for s in shapes(*operands, **parameters)]
        results = results if primitive.multiple_results else results[0]
        host = functools.partial(compute, **parameters)
        return jax.pure_callback(host, results, *operands, vmap_method="sequential")

    return call


def evaluate_compiled(primitive) -> None:
    """Outside of jit, too, and where that is switched off, the lowering of the platform decides."""
    compiled = functools.lru_cache(maxsize=256)(lambda **p: jax.jit(functools.partial(primitive.bind, **p)))

    def evaluate(*operands, **parameters):
        with jax.disable_jit(False):  # else it would end here again
            return compiled(**parameters)(*operands)

    primitive.def_impl(evaluate)


def install(primitive, call, shapes, elsewhere=None) -> None:
    """Gives a primitive its evaluation, abstract evaluation, batching, and lowering.

    **Arguments:** `primitive`: a `jax.extend.core.Primitive`; `call(*operands, **parameters)`: its value on the CPU (a
    list where the primitive has several results); `shapes(*operands, **parameters)`: the results' shapes, all of
    float64; `elsewhere`: its value on other devices. Without it they refuse the primitive by a sentence, unless they
    get a lowering of their own (`jaxqc._platform.lower_on_cuda`).
    """
    evaluate_compiled(primitive)

    def abstract(*operands, **parameters):
        avals = [ShapedArray(s, jnp.float64) for s in shapes(*operands, **parameters)]
        return avals if primitive.multiple_results else avals[0]

    def refuse(*_, **__):
        raise NotImplementedError(
            f"{primitive.name} has a kernel for CPUs, but not for the device on which JAX computes here. {USE_CPU}"
        )

    primitive.def_abstract_eval(abstract)
    for function, platform in ((elsewhere or refuse, None), (call, "cpu")):
        lowering = mlir.lower_fun(function, multiple_results=primitive.multiple_results)
        mlir.register_lowering(primitive, lowering, platform=platform)
    batching.primitive_batchers[primitive] = sequential_batch(primitive)
