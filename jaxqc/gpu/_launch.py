"""Launches of compiled kernels as one FFI call on XLA's stream."""

import ctypes
import functools
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxqc
from jaxqc._primitive import USE_CPU
from jaxqc.gpu import _cache
from jaxqc.gpu._compile import Unit, build, key_of
from jaxqc.gpu._nvrtc import nvrtc

LIBRARY_NAME = "libjaxqc_gpu.so"
_MESSAGE = 2048

_lock = threading.Lock()
_targets: set[str] = set()
_loaded: set[Unit] = set()
_passed: set[str] = set()  # keys

Argument = tuple[int, int]


def operand(index: int, offset: int = 0) -> Argument:
    """The address of an operand of the call, plus an offset in bytes."""
    return (0, index + 256 * offset)


def result(index: int, offset: int = 0) -> Argument:
    """The address of a result of the call, plus an offset in bytes."""
    return (1, index + 256 * offset)


def int64(value: int) -> Argument:
    """A number of 64 bits."""
    return (2, int(value))


def int32(value: int) -> Argument:
    """A number of 32 bits."""
    return (3, int(value))


def float64(value: float) -> Argument:
    """A number in double precision."""
    return (4, struct.unpack("<q", struct.pack("<d", value))[0])


@dataclass(frozen=True)
class Step:
    """One launch: `grid` blocks (0: as many as the device holds at once) of `block` threads; `shared` is in bytes.

    Neighbours that are `concurrent` may run at the same time.
    """

    unit: Unit
    kernel: str
    block: int
    arguments: tuple[Argument, ...]
    grid: int = 0
    grid_y: int = 1
    shared: int = 0
    concurrent: bool = False


@functools.cache
def _library() -> ctypes.CDLL:
    override = os.environ.get("JAXQC_GPU_LIBRARY")
    folders = [Path(entry) for entry in jaxqc.__path__] + [Path(entry) / "jaxqc" for entry in sys.path if entry]
    paths = [Path(override)] if override else [folder / LIBRARY_NAME for folder in folders]
    for path in paths:
        if path.is_file():
            library = ctypes.CDLL(str(path))
            library.jaxqc_gpu_add.argtypes = [
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.POINTER(ctypes.c_int),
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_int,
            ]
            return library
    raise ImportError(
        f"The library {LIBRARY_NAME} of jaxqc was not found in {', '.join(str(path.parent) for path in paths)}. "
        "Install jaxqc with pip, which builds it, or set the environment variable JAXQC_GPU_LIBRARY to its path. "
        f"{USE_CPU}"
    )


def check_ready() -> None:
    """Checks that kernels can be compiled and launched.

    **Raises:** `ImportError` where the compiler or the library of launches is missing, `RuntimeError` where there is no
    GPU or no driver; each says what to do.
    """
    nvrtc()
    architecture()


def _register(target: str) -> None:
    if target not in _targets:
        capsule = jax.ffi.pycapsule(_library().jaxqc_gpu_launch)
        jax.ffi.register_ffi_target(target, capsule, platform="CUDA")
        _targets.add(target)


@functools.cache
def architecture() -> int:
    """Compute capability of the first GPU that JAX uses, 90 for 9.0.

    **Raises:** `RuntimeError` where there is no GPU.
    """
    message = ctypes.create_string_buffer(_MESSAGE)
    arch = _library().jaxqc_gpu_arch(_ordinals()[0], message, _MESSAGE)
    if arch < 0:
        raise RuntimeError(f"The compute capability of the GPU could not be read: {message.value.decode()}.")
    return arch


@functools.cache
def _ordinals() -> tuple[int, ...]:
    devices = jax.local_devices(backend="cuda")
    return tuple(d.id if d.local_hardware_id is None else d.local_hardware_id for d in devices)


def load(units: Sequence[Unit]) -> None:
    """Compiles units where need be and loads their kernels on all GPUs of this process."""
    with _lock:
        missing = [unit for unit in dict.fromkeys(units) if unit not in _loaded]
        if not missing:
            return
        ordinals = _ordinals()
        array = (ctypes.c_int * len(ordinals))(*ordinals)
        for unit, built in zip(missing, build(missing, architecture()), strict=True):
            message = ctypes.create_string_buffer(_MESSAGE)
            names = ";".join(unit.kernels).encode()
            failed = _library().jaxqc_gpu_add(
                built.key.encode(), built.cubin, names, array, len(ordinals), message, _MESSAGE
            )
            if failed:
                raise RuntimeError(
                    f"The compiled kernels of {unit.name} could not be loaded: {message.value.decode()}."
                )
            _loaded.add(unit)


def _test(units: Sequence[Unit], check: Callable[[], None]) -> None:
    """Runs a test of units unless all of them have passed it, in this process or before."""
    arch = architecture()
    keys = {key_of(unit, arch) for unit in units} - _passed
    if not all(_cache.tested(key) for key in keys):
        with jax.ensure_compile_time_eval():
            check()
        for key in keys:
            _cache.mark_tested(key)
    _passed.update(keys)


def call(
    target: str,
    steps: Sequence[Step],
    results: Sequence[jax.ShapeDtypeStruct],
    *operands: jax.Array,
    zeroed: Sequence[int] = (),
    check: Callable[[], None] | None = None,
) -> list[jax.Array]:
    """Runs launches one after the other on XLA's stream.

    **Arguments:**

    - `target`: the name of the call, seen in profiles.
    - `steps`: the launches.
    - `results`: shapes and types of the results.
    - `zeroed`: which results are cleared before the first launch.
    - `check`: a test that raises where a kernel is wrong; run once for each cubin that is fresh on this machine.

    **Returns:** the results.
    """
    load([step.unit for step in steps])
    if check is not None:
        _test([step.unit for step in steps], check)
    _register(target)
    arch = architecture()
    flat: list[int] = []
    for step in steps:
        flat += [step.grid, step.grid_y, step.block, step.shared, int(step.concurrent), len(step.arguments)]
        flat += [number for argument in step.arguments for number in argument]
    kernels = ";".join(f"{key_of(step.unit, arch)}/{step.kernel}" for step in steps)
    run: Any = jax.ffi.ffi_call(target, tuple(results), vmap_method="sequential")
    out = run(
        *operands, kernels=kernels, steps=np.asarray(flat, np.int64), zeroed=np.asarray(list(zeroed) or [-1], np.int64)
    )
    return list(out)
