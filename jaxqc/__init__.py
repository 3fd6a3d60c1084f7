"""jaxqc: differentiable quantum chemistry in JAX on compiled integral kernels."""

import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxqc import integrals as integrals
    from jaxqc import nnqs as nnqs
    from jaxqc import xc as xc
    from jaxqc.molecule import Molecule as Molecule
    from jaxqc.scf import ConvergenceError as ConvergenceError
    from jaxqc.scf import Result as Result
    from jaxqc.scf import energy as energy
    from jaxqc.scf import gradient as gradient
    from jaxqc.scf import scf as scf

__version__ = "0.1.0"

# Public names are imported on first use, so that `import jaxqc` stays cheap.
_PUBLIC = {
    "ConvergenceError": "jaxqc.scf",
    "Molecule": "jaxqc.molecule",
    "Result": "jaxqc.scf",
    "energy": "jaxqc.scf",
    "gradient": "jaxqc.scf",
    "scf": "jaxqc.scf",
    "integrals": None,
    "nnqs": None,
    "xc": None,
}


def _is_shell_command():
    """Whether this process is the shell command: it loads JAX when it computes, not to show its help."""
    return _Path(_sys.argv[0] if _sys.argv else "").stem == "jaxqc" or _sys.orig_argv[1:3] == ["-m", "jaxqc"]


if not _is_shell_command():
    from jaxqc import _config as _config


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'jaxqc' has no attribute {name!r}")
    _import_module("jaxqc._config")
    module = _PUBLIC[name]
    value = _import_module(f"jaxqc.{name}") if module is None else getattr(_import_module(module), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_PUBLIC])
