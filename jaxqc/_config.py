"""Process-wide settings made at import: double precision, supported versions, the persistent compilation cache."""

import contextlib
import hashlib
import importlib
import os
import platform
import warnings
from pathlib import Path

import jax

if jax.__version__ == "0.10.2":
    raise ImportError(
        "jaxqc cannot run on jax 0.10.2: its CPU back end crashes on high-rank reductions and miscompiles "
        "(jax-ml/jax#39257). Install another version, for example `pip install 'jax>=0.10,!=0.10.2'`."
    )

jax.config.update("jax_enable_x64", True)


def _setting(name):
    """A setting of JAX; settings come and go with its versions."""
    return getattr(jax.config, name, None)


def _cache_root() -> Path:
    """The folder of everything that jaxqc keeps on disk."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxqc"


def _machine() -> str:
    """A short name of the kind of processor: compiled programs are not shared between different ones."""
    features = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def _enable_compilation_cache():
    """Keeps compiled XLA programs on disk, unless the user chose a place (or none) himself."""
    if os.environ.get("JAXQC_COMPILATION_CACHE", "1") == "0" or _setting("jax_compilation_cache_dir"):
        return
    try:
        root = _cache_root() / "xla" / _machine()
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # not writable, or no home directory
        return
    jax.config.update("jax_compilation_cache_dir", str(root))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.01)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    # A damaged entry is compiled again, which is no news to the user.
    message = "Error (reading|writing) persistent compilation cache entry"
    warnings.filterwarnings("ignore", message, category=UserWarning)
    _hide_false_alarms()


def _hide_false_alarms():
    """Keeps XLA from printing an error for every program loaded from the cache.

    It complains that the processor lacks the features "prefer-no-gather" and "prefer-no-scatter". They are preferences
    of the compiler rather than instructions; real differences of processors are told apart by the name of the folder.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") != "1" or _setting("jax_logging_level") not in (None, "NOTSET"):
        return  # the user chose a level ("1" is what JAX itself sets)
    # Only this call has an effect after jaxlib has read its environment, which it does when JAX is imported.
    with contextlib.suppress(ImportError):
        set_level = getattr(importlib.import_module("jaxlib.utils"), "absl_set_min_log_level", None)
        if set_level is not None:
            set_level(3)


_enable_compilation_cache()
