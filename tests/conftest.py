"""Settings of all tests: double precision, strict dtype promotion, warnings as errors, markers."""

import ctypes
import gc
import importlib.metadata
import os
from pathlib import Path

import hypothesis
import jax
import pytest

import jaxqc  # switches double precision on
from jaxqc.gpu import nvrtc

jax.config.update("jax_numpy_dtype_promotion", "strict")
# Workers share what any of them has compiled, however small.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

_SLOW = os.environ.get("JAXQC_SLOW") == "1"

# Most of the time of a test goes into compilation. The workers of a parallel run, which measure no times, compile with
# the options that jaxqc uses for its own calculations, in half the time; JAXQC_SLOW=1 compiles as XLA does by default.
# XLA reads them when it first compiles; one that it does not know would end the process.
_QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
if (
    "PYTEST_XDIST_WORKER" in os.environ
    and not _SLOW
    and os.environ.get("JAXQC_GPU") != "1"
    and importlib.metadata.version("jaxlib").startswith("0.10.")
):
    os.environ.setdefault("XLA_FLAGS", _QUICK)

# The same examples in every run; JAXQC_SLOW=1 looks for new ones.
hypothesis.settings.register_profile(
    "jaxqc",
    deadline=None,
    derandomize=not _SLOW,
    database=None,
    max_examples=1000 if _SLOW else 100,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("jaxqc")


@pytest.fixture(scope="session")
def hydrogen_fluoride():
    return jaxqc.Molecule("H 0 0 0; F 0 0 0.917", basis="sto-3g")


@pytest.fixture
def fresh_kernels(tmp_path, monkeypatch):
    """NVIDIA's run-time compiler, and an empty place for what it compiles."""
    try:
        nvrtc()
    except ImportError as error:
        pytest.skip(f"needs NVRTC: {error}")
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(tmp_path))


# Compiled programs are kept for the life of a process; a worker that runs many modules would fill the memory.
_MEMORY = 2.5e9


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    yield
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return
    if resident > _MEMORY:
        jax.clear_caches()
        gc.collect()
        if hasattr(ctypes.CDLL(None), "malloc_trim"):
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what is freed


@pytest.fixture(scope="session")
def emulator(tmp_path_factory):
    """Runs CUDA kernels on the CPU; what one test has compiled serves all tests of the process."""
    from cuda_emulation import Emulator, available

    if not available():
        pytest.skip("needs g++")
    return Emulator(tmp_path_factory.mktemp("emulated"))


_MARKERS = {
    "slow": ("JAXQC_SLOW", "takes minutes"),
    "gpu": ("JAXQC_GPU", "needs a GPU"),
}


def pytest_configure(config):
    for name, (variable, reason) in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {reason}; runs with {variable}=1")
    config.addinivalue_line("filterwarnings", "error")
    # One worker may read what another is writing; it then compiles the program itself.
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache:UserWarning")


def pytest_collection_modifyitems(config, items):
    for name, (variable, reason) in _MARKERS.items():
        if os.environ.get(variable) == "1":
            continue
        skip = pytest.mark.skip(reason=f"{reason}; set {variable}=1 to run it")
        for item in items:
            if name in item.keywords:
                item.add_marker(skip)
