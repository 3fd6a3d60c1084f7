"""How much memory a build of J and K takes on a GPU."""

import jax

from jaxqc._checks import check_flag, check_molecule, checked_count
from jaxqc.integrals._decontraction import two_electron_shells
from jaxqc.molecule import Molecule

_NAME = "jaxqc.integrals.jk_memory"


def jk_memory(
    mol: Molecule, densities: int = 1, *, coulomb: bool = True, exchange: bool = True, symmetric: bool = False
) -> int:
    """The most memory that `jaxqc.integrals.jk` takes on an NVIDIA GPU, its operands and results included.

    An upper bound from the sizes of molecule and basis, whatever the geometry. A build is bounded by the environment
    variable `JAXQC_MEMORY` in GiB, or else by what JAX may take of the GPU: where J does not fit in Hermite Gaussians,
    it is built from quartets, more slowly; where that does not fit either, `jk` raises `ValueError`.

    **Arguments:**

    - `mol`: the molecule.
    - `densities`: how many at once.
    - `coulomb`, `exchange`, `symmetric`: as in `jk`.

    **Returns:** bytes within the limit, or those of the smallest build where it does not fit.

    **Raises:** `ValueError`, `TypeError` for no density, no truth value, or when neither matrix is wanted.

    **Example:**

        bytes = jaxqc.integrals.jk_memory(jaxqc.Molecule("He 0 0 0", basis="sto-3g"))
    """
    from jaxqc.integrals import _cuda_jk, _cuda_memory

    check_molecule(mol, _NAME)
    densities = checked_count(densities, "densities", _NAME, 1)
    for label, value in (("coulomb", coulomb), ("exchange", exchange), ("symmetric", symmetric)):
        check_flag(value, label, _NAME)
    if not (coulomb or exchange):
        raise ValueError(f"{_NAME} was asked for neither matrix; coulomb or exchange must be True.")
    shells, _ = jax.eval_shape(two_electron_shells, mol)
    size = ((shells.ls, shells.nprims), mol.cart, densities, int(coulomb) + int(exchange), bool(symmetric))
    most = _cuda_memory.needed(*size, coulomb and max(shells.ls) <= _cuda_jk._HERMITE_LMAX)
    return int(most if most <= _cuda_memory.limit() else _cuda_memory.needed(*size, False))
