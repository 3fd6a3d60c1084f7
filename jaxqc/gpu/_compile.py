"""What is compiled, under which key, and its resources."""

import concurrent.futures
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxqc.gpu import _cache
from jaxqc.gpu._nvrtc import nvrtc

_RESOURCES = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@functools.cache
def source_folder() -> Path:
    """Where the CUDA sources of this package lie."""
    spec = importlib.util.find_spec("jaxqc.ffi_kernels")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "cuda"


@functools.cache
def _source(name: str) -> str:
    return (source_folder() / name).read_text()


@dataclass(frozen=True)
class Unit:
    """One translation unit: a source file, its kernels, macros, headers by name, and generated headers."""

    file: str
    kernels: tuple[str, ...]
    defines: tuple[tuple[str, int], ...] = ()
    headers: tuple[str, ...] = ()
    generated: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What messages call it."""
        return " ".join([self.file, *(f"{key}={value}" for key, value in self.defines)])

    def texts(self) -> dict[str, str]:
        """The headers that it includes."""
        return {name: _source(name) for name in self.headers} | dict(self.generated)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the compiler."""
        return tuple(f"-D{key}={value}" for key, value in self.defines)


@functools.lru_cache(maxsize=4096)
def key_of(unit: Unit, arch: int) -> str:
    """The key of a unit: a hash of all texts and options, the architecture and the version of the compiler."""
    content = [_source(unit.file), sorted(unit.texts().items()), unit.options, arch, nvrtc().version]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Built:
    """A compiled unit."""

    key: str
    cubin: bytes
    log: str

    def resources(self) -> dict[str, dict[str, int]]:
        """Registers, bytes of stack and of spills of each kernel, as ptxas reports them."""
        return {
            found["kernel"]: {
                "registers": int(found["registers"]),
                "stack": int(found["stack"]),
                "spill": int(found["stores"]) + int(found["loads"]),
            }
            for found in _RESOURCES.finditer(self.log)
        }


def _build_one(unit: Unit, arch: int) -> Built:
    key = key_of(unit, arch)
    kept = _cache.read(key)
    if kept is not None:
        return Built(key, *kept)
    cubin, log = nvrtc().compile(_source(unit.file), unit.name, arch, unit.options, unit.texts())
    _cache.write(key, f"sm_{arch} {unit.name}", cubin, log)
    return Built(key, cubin, log)


def build(units: Sequence[Unit], arch: int, progress: Callable[[Unit], None] | None = None) -> list[Built]:
    """Compiles units in parallel threads, or takes them from the cache.

    **Arguments:** `progress` is called after each unit, in its thread.

    **Raises:** `CompilationError` with the compiler's log; `ImportError` without NVRTC.
    """
    nvrtc()
    workers = max(
        1, min(len(units), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    )

    def one(unit: Unit) -> Built:
        built = _build_one(unit, arch)
        if progress is not None:
            progress(unit)
        return built

    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="jaxqc-nvrtc") as pool:
        return list(pool.map(one, units))
