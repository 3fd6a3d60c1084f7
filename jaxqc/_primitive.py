"""JAX primitives over traceable functions: what every compiled kernel of jaxqc needs besides its derivative rules."""

import functools

import jax
import jax.numpy as jnp
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


def install(primitive, call, shapes) -> None:
    """Gives a primitive its evaluation, abstract evaluation, batching, and lowering for the CPU.

    Elsewhere it is refused by a sentence, unless it gets another lowering (`jaxqc._platform.lower_on_cuda`).

    **Arguments:** `primitive`: a `jax.extend.core.Primitive`; `call(*operands, **parameters)`: its value on the CPU (a
    list where the primitive has several results); `shapes(*operands, **parameters)`: the results' shapes, all of
    float64.
    """
    # Outside of jit, too, the lowering of the platform decides.
    compiled = functools.lru_cache(maxsize=256)(lambda **p: jax.jit(functools.partial(primitive.bind, **p)))
    primitive.def_impl(lambda *operands, **parameters: compiled(**parameters)(*operands))

    def abstract(*operands, **parameters):
        avals = [ShapedArray(s, jnp.float64) for s in shapes(*operands, **parameters)]
        return avals if primitive.multiple_results else avals[0]

    def refuse(*_, **__):
        raise NotImplementedError(
            f"{primitive.name} has a kernel for CPUs, but not for the device on which JAX computes here. {USE_CPU}"
        )

    primitive.def_abstract_eval(abstract)
    for function, platform in ((refuse, None), (call, "cpu")):
        lowering = mlir.lower_fun(function, multiple_results=primitive.multiple_results)
        mlir.register_lowering(primitive, lowering, platform=platform)
    batching.primitive_batchers[primitive] = sequential_batch(primitive)
