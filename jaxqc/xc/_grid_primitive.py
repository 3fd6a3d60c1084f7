"""Primitives that are a compiled handler on the CPU, and plain JAX elsewhere."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxqc._primitive import evaluate_compiled, sequential_batch
from jaxqc.integrals._library import load, register


def compiled(name: str, results: Any) -> Callable[..., Any]:
    """The FFI handler `name` of the compiled library, as a function of its operands and attributes.

    **Raises:** `ImportError` when the library has no such handler.
    """
    register([name])
    if not hasattr(load(), name):
        raise ImportError(
            f"The compiled library of jaxqc has no handler {name!r}: it was built from another version of jaxqc. "
            "Reinstall jaxqc to build it again."
        )
    return jax.ffi.ffi_call(name, results, vmap_method="sequential")


def define_primitive(name: str, *, cpu, elsewhere, shapes, multiple_results: bool = False) -> Primitive:
    """A primitive without derivatives.

    **Arguments:** `cpu`, `elsewhere`: what computes it, functions of the operands and of static keyword arguments;
    `shapes`: its results as `ShapedArray`, from the operands; `multiple_results`: whether these are lists.
    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results

    evaluate_compiled(primitive)
    primitive.def_abstract_eval(lambda *operands, **static: shapes(*operands))
    mlir.register_lowering(primitive, mlir.lower_fun(elsewhere, multiple_results=multiple_results))
    mlir.register_lowering(primitive, mlir.lower_fun(cpu, multiple_results=multiple_results), platform="cpu")
    batching.primitive_batchers[primitive] = sequential_batch(primitive)
    return primitive
