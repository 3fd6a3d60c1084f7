"""Integrals over contracted Gaussian functions, differentiable to every order."""

from jaxqc.integrals.boys import boys as boys
from jaxqc.integrals.memory import jk_memory as jk_memory
from jaxqc.integrals.one_electron import dipole as dipole
from jaxqc.integrals.one_electron import kinetic as kinetic
from jaxqc.integrals.one_electron import nuclear as nuclear
from jaxqc.integrals.one_electron import overlap as overlap
from jaxqc.integrals.two_electron import eri as eri
from jaxqc.integrals.two_electron import jk as jk
