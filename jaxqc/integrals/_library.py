"""Finds the compiled CPU library, and registers its FFI handlers with JAX."""

import ctypes
import functools
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import jax

import jaxqc
from jaxqc._platform import default_platform
from jaxqc._primitive import USE_CPU

LIBRARY_NAME = "libjaxqc_cpu.so"

_registered: set[str] = set()


def _library_path() -> Path:
    override = os.environ.get("JAXQC_CPU_LIBRARY")
    if override:
        if Path(override).is_file():
            return Path(override)
        raise ImportError(
            f"The environment variable JAXQC_CPU_LIBRARY names {override!r}, which is not a file. "
            f"It must be the path of {LIBRARY_NAME}; unset it to use the library that is installed with jaxqc."
        )
    # The sources may be imported from elsewhere than where the library is installed: an editable install, or a checkout
    # as the current folder.
    folders = [Path(entry) for entry in jaxqc.__path__]
    folders += [Path(entry) / "jaxqc" for entry in sys.path if entry]
    for folder in folders:
        if (folder / LIBRARY_NAME).is_file():
            return folder / LIBRARY_NAME
    places = ", ".join(str(folder) for folder in folders)
    raise ImportError(
        f"The compiled library {LIBRARY_NAME} of jaxqc was not found in {places}. "
        "Install jaxqc with pip, which builds it, or set the environment variable JAXQC_CPU_LIBRARY to its path."
    )


@functools.cache
def load() -> ctypes.CDLL:
    """Loads the compiled CPU library, once.

    **Returns:** the library as a `ctypes.CDLL`.

    **Raises:** `ImportError` when it is missing or cannot be loaded.
    """
    path = _library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"The compiled library {path} of jaxqc could not be loaded: {error}.") from error
    if not hasattr(library, "jaxqc_select_isa"):
        raise ImportError(f"The library {path} is not the compiled library of jaxqc. Unset JAXQC_CPU_LIBRARY.")
    wanted = os.environ.get("JAXQC_ISA", "")
    if wanted and not library.jaxqc_select_isa(wanted.encode()):
        raise ImportError(
            f"The environment variable JAXQC_ISA asks for the instruction set {wanted!r}, which this processor or this "
            "build of jaxqc lacks. It must be 'auto', 'baseline', 'avx2' or 'avx512'; unset it for the best one."
        )
    threads = os.environ.get("JAXQC_NUM_THREADS", "")
    if threads and not (threads.isascii() and threads.isdigit() and 1 <= int(threads) <= 1024):
        raise ImportError(
            f"The environment variable JAXQC_NUM_THREADS is {threads!r}, but must be a whole number from 1 to 1024; "
            "unset it to use all processors."
        )
    return library


def register(names: Iterable[str]) -> None:
    """Registers those of the FFI handlers `names` that the library has; each of them once."""
    library = load()
    for name in names:
        if name not in _registered and hasattr(library, name):
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
            _registered.add(name)


def cpu_handler(name: str) -> str:
    """Registers the FFI handler `name` if need be and returns its name: for lowerings to the CPU.

    **Raises:** `ImportError` when the library has no such handler.
    """
    register([name])
    if name not in _registered:
        raise ImportError(
            f"The compiled library {_library_path()} has no handler {name!r}: it was built from another version "
            "of jaxqc. Reinstall jaxqc to build it again."
        )
    return name


def handler(name: str) -> str:
    """Registers the FFI handler `name` if need be and returns its name, to be given to `jax.ffi.ffi_call`.

    **Raises:** `ImportError` when the library has no such handler; `NotImplementedError` when JAX computes elsewhere
    than on the CPU by default.
    """
    platform = default_platform()
    if platform != "cpu":
        raise NotImplementedError(
            f"This part of jaxqc ({name.removeprefix('jaxqc_')}) has kernels for CPUs only, but JAX computes on "
            f"{platform!r} by default. {USE_CPU}"
        )
    return cpu_handler(name)
