"""The exchange-correlation energy of a density as one scalar function, on a grid that is made once.

Everything else, potential, its response and derivatives with respect to the molecule and to parameters of the
functional, follows by differentiating it.
"""

from jaxqc.xc import build_layout, xc_energy
from jaxqc.xc._grid import place


def energy_on_grid(mol, parameters, xc):
    """Prepares grid and lists of shells.

    Args:
        mol: `Molecule`.
        parameters: arrays of the functional.
        xc: `KohnSham`.

    Returns:
        Function from a density (nspin, nao, nao) to its exchange-correlation energy (), Hartree, and the integral of
        the density over the grid ().
    """
    functional = xc.functional.apply(parameters)
    grid = place(xc.template, mol.coords, xc.partition, moving=xc.grid_response)
    layout = build_layout(mol, grid.coords, grid.weights, epsilon=xc.epsilon)

    def energy(density):
        electrons, exc = xc_energy(mol, layout, functional, density)
        return exc, electrons

    return energy
