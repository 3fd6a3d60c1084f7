"""Process-wide settings made at import: double precision, supported versions, the persistent compilation cache."""

import os
from pathlib import Path

import jax

if jax.__version__ == "0.10.2":
    raise ImportError(
        "jaxqc cannot run on jax 0.10.2: its CPU back end crashes on high-rank reductions and miscompiles "
        "(jax-ml/jax#39257). Install another version, for example `pip install 'jax>=0.10,!=0.10.2'`."
    )

jax.config.update("jax_enable_x64", True)


def _enable_compilation_cache():
    """Keeps compiled XLA programs on disk, unless the user chose a place (or none) himself."""
    if os.environ.get("JAXQC_COMPILATION_CACHE", "1") == "0" or jax.config.jax_compilation_cache_dir is not None:
        return
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxqc" / "xla"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(root))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


_enable_compilation_cache()
