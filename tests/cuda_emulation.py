"""Runs the CUDA kernels of jaxqc on the CPU: sources compiled with g++ against `cuda_emulator.h`."""

import contextlib
import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxqc.gpu._compile import source_folder
from jaxqc.xc import _cuda_rules

_BLOCKS = 3  # of a launch that takes as many as the device holds
_HEADER = Path(__file__).with_name("cuda_emulator.h")


def available() -> bool:
    """Whether there is a compiler."""
    return shutil.which("g++") is not None


class Emulator:
    """Replaces `jaxqc.gpu.call`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._libraries: dict = {}

    def _library(self, unit):
        if unit not in self._libraries:
            texts = unit.texts()

            def inlined(text):
                text = text.replace("#pragma once", "").replace("#pragma unroll", "// unroll")
                return re.sub(r'#include "([\w.]+)"', lambda m: inlined(texts.pop(m[1], "")), text)

            body = inlined((source_folder() / unit.file).read_text())
            body = re.sub(
                r"extern __shared__ (\w+) (\w+)\[\];",
                r"\1* \2 = reinterpret_cast<\1*>(emulator::shared_store.data());",
                body,
            )
            entries = "".join(
                f'extern "C" void emulate_{k}(void** a, int x, int y, int threads, int shared) '
                f"{{ emulator::launch({k}, a, x, y, threads, shared); }}\n"
                for k in unit.kernels
            )
            path = self.folder / f"unit{len(self._libraries)}"
            defines = "".join(f"#define {key} {value}\n" for key, value in unit.defines)
            path.with_suffix(".cc").write_text(f'#include "{_HEADER}"\n{defines}{body}\n{entries}')
            subprocess.run(
                ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", f"{path}.so", f"{path}.cc"],
                check=True,
            )
            self._libraries[unit] = ctypes.CDLL(f"{path}.so")
        return self._libraries[unit]

    def _run(self, steps, results, operands):
        for step in steps:
            arrays, keep = (operands, results), []
            for kind, value in step.arguments:
                if kind < 2:
                    keep.append(ctypes.c_void_p(arrays[kind][value & 255].ctypes.data + (value >> 8)))
                elif kind == 4:
                    keep.append(ctypes.c_int64(value))  # the bits of a double
                else:
                    keep.append((ctypes.c_int64 if kind == 2 else ctypes.c_int32)(value))
            pointers = (ctypes.c_void_p * len(keep))(*[ctypes.addressof(k) for k in keep])
            function = getattr(self._library(step.unit), f"emulate_{step.kernel}")
            function(pointers, step.grid or _BLOCKS, step.grid_y, step.block, step.shared)

    def call(self, target, steps, results, *operands, zeroed=(), check=None):
        """As `jaxqc.gpu.call`."""

        def host(*arrays):
            out = [np.full(r.shape, np.array(0 if k in zeroed else -77).astype(r.dtype)) for k, r in enumerate(results)]
            self._run(steps, out, [np.ascontiguousarray(a) for a in arrays])
            return out

        return list(jax.pure_callback(host, list(results), *operands, vmap_method="sequential"))


@contextlib.contextmanager
def xc_kernels_on_the_cpu(emulator: Emulator, *modules):
    """Within it the emulator runs the kernels of exchange and correlation that `modules` call, in new programs."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "call", emulator.call)
            patch.setattr(module, "architecture", lambda: 90)
        patch.setattr(_cuda_rules, "on_gpu", lambda: True)
        jax.clear_caches()
        yield
    jax.clear_caches()
