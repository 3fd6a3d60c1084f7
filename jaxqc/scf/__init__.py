"""Self-consistent field: `jaxqc.scf(mol)`, its derivatives, guesses, stability.

The package itself can be called, so that both `jaxqc.scf(mol)` and `jaxqc.scf.stability(mol, result)` work.
"""

import sys
from functools import wraps
from types import ModuleType

from jaxqc.scf._driver import energy as energy
from jaxqc.scf._driver import gradient as gradient
from jaxqc.scf._driver import scf as _scf
from jaxqc.scf._errors import ConvergenceError as ConvergenceError
from jaxqc.scf._result import Result as Result
from jaxqc.scf._stability import Stability as Stability
from jaxqc.scf._stability import spin_flip as spin_flip
from jaxqc.scf._stability import stability as stability


class _CallableModule(ModuleType):
    @wraps(_scf)
    def __call__(self, *args, **kwargs):
        return _scf(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
# `from jaxqc.scf import scf` and `jaxqc.scf` are the same object, in whatever order things are imported.
scf = sys.modules[__name__]
