"""Exchange-correlation functionals: written in JAX, from PySCF's libxc, or the user's own.

Every functional of jaxqc is a pointwise function of the spin densities, written from its paper over one sanitiser
(`_point`): spin-polarised, in the form energy per volume, finite with finite derivatives everywhere.
"""

from jaxqc.xc.functionals._functional import Functional as Functional
from jaxqc.xc.functionals._names import names as names
from jaxqc.xc.functionals._resolve import functional as functional
