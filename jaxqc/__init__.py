"""jaxqc: differentiable quantum chemistry in JAX on compiled integral kernels."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from jaxqc import _config as _config

if TYPE_CHECKING:
    from jaxqc import integrals as integrals
    from jaxqc.molecule import Molecule as Molecule
    from jaxqc.scf import energy as energy
    from jaxqc.scf import gradient as gradient
    from jaxqc.scf import scf as scf

__version__ = "0.1.0"

# Public names are imported on first use, so that `import jaxqc` stays cheap.
_PUBLIC = {
    "Molecule": "jaxqc.molecule",
    "energy": "jaxqc.scf",
    "gradient": "jaxqc.scf",
    "scf": "jaxqc.scf",
    "integrals": None,
}


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'jaxqc' has no attribute {name!r}")
    module = _PUBLIC[name]
    value = _import_module(f"jaxqc.{name}") if module is None else getattr(_import_module(module), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_PUBLIC])
