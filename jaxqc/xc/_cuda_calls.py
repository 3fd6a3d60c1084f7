"""The primitives of exchange and correlation on a GPU: operands and parameters as `_density` binds them."""

from jaxqc.integrals._shells import ShellList
from jaxqc.xc import _cuda
from jaxqc.xc._cells import RowLists
from jaxqc.xc._cuda_rules import ROWS


def _split(operands, layout, which):
    """Shells, points and the lists for densities (0) or potentials (1) among the operands of a primitive."""
    centers, exponents, coefficients, points = operands[:4]
    arrays = operands[5 + 6 * which : 11 + 6 * which]
    lists = RowLists(ROWS[which], arrays[2].shape[1], *arrays)
    return ShellList(layout[0], layout[1], centers, exponents, coefficients), points, lists


def density(*operands, layout, cart, row, epsilon, ncomp):
    """`jaxqc_xc_density`."""
    shells, points, lists = _split(operands, layout, 0)
    return _cuda.density(shells, cart, points, lists, operands[-1], ncomp, epsilon)


def potential(*operands, layout, cart, row, epsilon, ncomp):
    """`jaxqc_xc_potential`."""
    shells, points, lists = _split(operands, layout, 1)
    return _cuda.potential(shells, cart, points, lists, operands[-1], epsilon, deterministic=_cuda.deterministic())


def gradient(*operands, layout, cart, row, epsilon, ncomp):
    """`jaxqc_xc_gradient`."""
    shells, points, lists = _split(operands, layout, 0)
    return _cuda.gradient(shells, cart, points, lists, operands[-2], operands[-1], epsilon)
