"""The exchange-correlation energy of a density as one scalar function, on a grid that is made once.

Everything else, potential, its response and derivatives with respect to the molecule and to parameters of the
functional, follows by differentiating it.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxqc.scf._compile import outermost, quick_jit
from jaxqc.scf._fock import symmetric
from jaxqc.xc import build_layout, xc_energy
from jaxqc.xc._grid import place
from jaxqc.xc._sharding import ShardedLayout, shard_layout, sharded_xc_energy

# Up to so many shells each row of the grid has room for all of them.
_FEW = 160
# Numbers of points are rounded up to so many leading bits.
_BITS = 6


class GridEnergy:
    """Exchange-correlation energies of densities of one molecule on one grid.

    Args:
        arguments: `Arguments`.
        xc: `KohnSham`.
        mesh: the devices to which the rows of the grid are dealt, or None.
    """

    def __init__(self, arguments, xc, mesh=None):
        mol = arguments.mol
        grid = place(xc.template, mol.coords, xc.partition, moving=xc.grid_response, index=arguments.points)
        layout = build_layout(mol, grid.coords, grid.weights, epsilon=xc.epsilon, capacity=xc.capacity)
        if mesh is not None:
            layout = shard_layout(mol, layout, mesh, axis=mesh.axis_names)
        self._operands, self._functional = (mol, layout, arguments.parameters), xc.functional

    def energy(self, density):
        """Energy (), Hartree, of a density (nspin, nao, nao), and its integral over the grid ()."""
        return _energy(density, *self._operands, functional=self._functional)

    def potential(self, density):
        """Derivative (nspin, nao, nao) of the energy with respect to the density, then what `energy` gives."""
        return _potential(density, *self._operands, functional=self._functional)


# Compiled functions of their own, so that the many places that need them trace them once.


@partial(jax.jit, static_argnames=("functional",))
def _energy(density, mol, layout, parameters, *, functional):
    applied = functional.apply(parameters)
    if isinstance(layout, ShardedLayout):
        electrons, exc = sharded_xc_energy(mol, layout, applied, density)
    else:
        electrons, exc = xc_energy(mol, layout, applied, density)
    return exc, electrons


@partial(jax.jit, static_argnames=("functional",))
def _potential(density, mol, layout, parameters, *, functional):
    energy = partial(_energy, functional=functional)
    (exc, electrons), slope = jax.value_and_grad(energy, has_aux=True)(density, mol, layout, parameters)
    return symmetric(slope), exc, electrons


def measured(mol, template, partition, epsilon):
    """What is known of the grid before anything is compiled for it.

    Returns:
        How many shells its rows must have room for, with some to spare for other coordinates: one of few numbers, so
        that hardly any coordinates compile a program anew. None for all shells.
        The points with weights, (n,) int32 in their order, filled up to one of few sizes by the last one, as a point
        without weight; None for all.
        Both None where the molecule is small, or where the coordinates are traced.
    """
    mol = jax.lax.stop_gradient(mol)
    if mol.nshell <= _FEW or not outermost(mol):
        return None, None
    longest, count, points = _measure(mol, template=template, partition=partition, epsilon=epsilon)
    longest, count = int(longest), max(int(count), 1)
    step = 64 if longest < 512 else 256
    capacity = -(-int(1.15 * longest) // step) * step
    step = 2 ** max(0, count.bit_length() - _BITS)
    points = points[: min(-(-count // step) * step, template.size)]
    return None if capacity >= mol.nshell else capacity, points


@partial(quick_jit, static_argnames=("template", "partition", "epsilon"))
def _measure(mol, *, template, partition, epsilon):
    grid = place(template, mol.coords, partition)
    kept, all_points = grid.weights != 0, jnp.arange(template.size, dtype=jnp.int32)
    before = jnp.cumsum(kept, dtype=jnp.int32)
    count = before[-1]
    order = jnp.zeros_like(grid.index).at[jnp.where(kept, before - 1, template.size)].set(all_points, mode="drop")
    has_weight, order = all_points < count, order[jnp.minimum(all_points, jnp.maximum(count - 1, 0))]
    points = jnp.where(has_weight, grid.index[order], ~grid.index[order])
    # Rows are cut as they will be: any number of points that fill up leave them the same.
    layout = build_layout(
        mol, grid.coords[order], jnp.where(has_weight, grid.weights[order], 0.0), epsilon=epsilon, capacity=32
    )
    return jnp.maximum(layout.density.overflow, layout.potential.overflow), count, points
