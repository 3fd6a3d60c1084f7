"""How the primitives of exchange and correlation reach their GPU kernels; imports those only where a GPU computes."""

import functools
import importlib

import jax
from jax.interpreters import mlir

# Points a row on the GPU, for densities and for potentials; layouts are padded to the larger.
ROWS = (64, 256)


def on_gpu() -> bool:
    """Whether JAX computes on an NVIDIA GPU by default."""
    default = jax.config.values["jax_default_device"]
    return (getattr(default, "platform", default) or jax.default_backend()) in ("gpu", "cuda")


def lower_on_cuda(primitive, module: str = "_cuda_calls") -> None:
    """Gives a primitive the lowering for NVIDIA GPUs: the function of `module` that bears its name."""
    name = primitive.name.removeprefix("jaxqc_xc_").removeprefix("jaxqc_")

    def call(*operands, **parameters):
        return getattr(importlib.import_module(f"jaxqc.xc.{module}"), name)(*operands, **parameters)

    lowering = mlir.lower_fun(call, multiple_results=primitive.multiple_results)
    mlir.register_lowering(primitive, lowering, platform="cuda")
    # Outside of jit, too, the lowering of the platform decides.
    compiled = functools.lru_cache(maxsize=256)(lambda **p: jax.jit(functools.partial(primitive.bind, **p)))
    primitive.def_impl(lambda *operands, **parameters: compiled(**parameters)(*operands))
