"""Self-consistent field: `jaxqc.scf(mol)`, its derivatives, guesses, stability.

The package itself can be called, so that both `jaxqc.scf(mol)` and `jaxqc.scf.stability(mol, result)` work.
"""

import sys
from types import ModuleType
from typing import cast

from jaxqc.scf._driver import energy as energy
from jaxqc.scf._driver import gradient as gradient
from jaxqc.scf._driver import scf as _scf
from jaxqc.scf._errors import ConvergenceError as ConvergenceError
from jaxqc.scf._result import Result as Result
from jaxqc.scf._stability import Stability as Stability
from jaxqc.scf._stability import spin_flip as spin_flip
from jaxqc.scf._stability import stability as stability


class _CallableModule(ModuleType):
    __call__ = staticmethod(_scf)
    ConvergenceError = ConvergenceError
    Result = Result
    Stability = Stability
    energy = staticmethod(energy)
    gradient = staticmethod(gradient)
    spin_flip = staticmethod(spin_flip)
    stability = staticmethod(stability)


sys.modules[__name__].__class__ = _CallableModule
# `from jaxqc.scf import scf` and `jaxqc.scf` are the same object, in whatever order things are imported.
scf = cast(_CallableModule, sys.modules[__name__])
