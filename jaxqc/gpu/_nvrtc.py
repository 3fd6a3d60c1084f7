"""NVRTC, NVIDIA's run-time compiler, through ctypes: it comes with the CUDA wheels of JAX and needs no GPU."""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SYSTEM_FOLDERS = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")


class CompilationError(RuntimeError):
    """A CUDA source that NVRTC refuses; the message has the compiler's log."""


def _wheel_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        # CUDA 13 wheels share nvidia/cu13/lib; those of CUDA 12 have a folder for each library.
        yield from sorted(Path(root).glob("cu*/lib"), reverse=True)


def candidates() -> Iterator[str]:
    """Names to try, best first: what JAXQC_NVRTC_LIBRARY names, the libraries of wheels, those of the system."""
    override = os.environ.get("JAXQC_NVRTC_LIBRARY")
    if override:
        yield override
        return
    folders = list(_wheel_folders())
    if home := os.environ.get("CUDA_HOME"):
        folders.append(Path(home) / "lib64")
    for folder in folders + [Path(name) for name in _SYSTEM_FOLDERS]:
        for path in sorted(folder.glob("libnvrtc.so*"), key=lambda p: len(p.name)):
            yield str(path)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class Nvrtc:
    """The compiler. Calls may come from several threads at once: ctypes lets them run in parallel."""

    def __init__(self, path: str):
        self.path = path
        # Wheels of some versions do not say where the library finds its second half, which then must be there already
        for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = (major.value, minor.value)

    def _check(self, status: int, what: str) -> None:
        if status:
            text = self._library.nvrtcGetErrorString(status).decode()
            raise CompilationError(f"The run-time compiler {self.path} failed in {what}: {text}.")

    def _text(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{name}Size")(program, ctypes.byref(size)), f"nvrtcGet{name}Size")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{name}")(program, buffer), f"nvrtcGet{name}")
        return buffer.raw

    def compile(
        self, source: str, name: str, arch: int, options: Sequence[str] = (), headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, str]:
        """Compiles CUDA C++ to machine code.

        **Arguments:**

        - `source`: the text.
        - `name`: what messages call it.
        - `arch`: compute capability, 90 for sm_90.
        - `options`: further options of the compiler.
        - `headers`: texts that `#include` finds by name.

        **Returns:** the cubin, and the log with registers, stack and spills of each kernel.

        **Raises:** `CompilationError` with the log.
        """
        headers = dict(headers or {})
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*[text.encode() for text in headers.values()])
        names = (ctypes.c_char_p * len(headers))(*[key.encode() for key in headers])
        created = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names
        )
        self._check(created, "nvrtcCreateProgram")
        try:
            # Functions without annotation are the device's: NVRTC before 13.2 takes generic lambdas for the host's
            flags = [f"--gpu-architecture=sm_{arch}", "--std=c++17", "--device-as-default-execution-space"]
            flags += ["--ptxas-options=-v", *options]
            array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
            status = self._library.nvrtcCompileProgram(program, len(flags), array)
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise CompilationError(
                    f"NVRTC {self.version[0]}.{self.version[1]} ({self.path}) could not compile {name} for sm_{arch} "
                    f"with {' '.join(flags)}:\n{log}"
                )
            return self._text(program, "CUBIN"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def nvrtc() -> Nvrtc:
    """The run-time compiler of this machine.

    **Raises:** `ImportError` when there is none.
    """
    tried = []
    for name in candidates():
        try:
            return Nvrtc(name)
        except (OSError, AttributeError) as error:
            tried.append(f"{name}: {error}")
    raise ImportError(
        "NVRTC, which compiles the CUDA kernels of jaxqc, was not found. It comes with the CUDA version of JAX: "
        "install jax[cuda13], or name the file libnvrtc.so in the environment variable JAXQC_NVRTC_LIBRARY. Tried "
        + ("; ".join(tried) or "nothing")
        + "."
    )
