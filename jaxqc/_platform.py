"""Where JAX computes, and how primitives get the kernels of NVIDIA GPUs; imports those only where a GPU computes."""

import importlib
import os

import jax
from jax.interpreters import mlir


def default_platform() -> str:
    """The platform on which JAX computes by default: "cpu", "gpu" (or "cuda"), ..."""
    default = jax.config.values["jax_default_device"]
    return getattr(default, "platform", default) or jax.default_backend()


def on_gpu() -> bool:
    """Whether JAX computes on an NVIDIA GPU by default."""
    return default_platform() in ("gpu", "cuda")


def deterministic() -> bool:
    """Whether GPU kernels sum in fixed point, so that results do not depend on the order: JAXQC_DETERMINISTIC=1."""
    return os.environ.get("JAXQC_DETERMINISTIC") == "1"


def lower_on_cuda(primitive, module: str, name: str) -> None:
    """Gives a primitive the lowering for NVIDIA GPUs: the function `name` of `module`, imported when needed."""

    def call(*operands, **parameters):
        return getattr(importlib.import_module(module), name)(*operands, **parameters)

    lowering = mlir.lower_fun(call, multiple_results=primitive.multiple_results)
    mlir.register_lowering(primitive, lowering, platform="cuda")
