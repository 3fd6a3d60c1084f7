"""What the XC experiments share: molecules, densities, layouts with parts of the screening off, and times."""

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxqc
from jaxqc.systems import boron_nitride, polyglycine, water_cluster
from jaxqc.xc import Grid, build_layout, functional, potential

HERE = Path(__file__).resolve().parent


def molecule(what, basis):
    """The molecule of a name such as "water 20", "glycine 30", "boron nitride 3" or "vitamin C"."""
    kind, _, size = what.rpartition(" ")
    builders = {
        "water": water_cluster,
        "glycine": polyglycine,
        "boron nitride": lambda n: boron_nitride(n, n),
    }
    if kind in builders:
        return jaxqc.Molecule(builders[kind](int(size)), basis=basis)
    return jaxqc.Molecule(str(HERE.parent / "examples" / f"{what.lower().replace(' ', '_')}.xyz"), basis=basis)


def atomic_density(mol):
    """A superposition of densities of atoms, (nao, nao): cheap at any size."""
    from pyscf.scf import hf

    return hf.init_guess_by_minao(mol.to_pyscf())


def orbitals(mole):
    """Occupied orbitals (nao, nocc) of a Hueckel guess, orthonormal."""
    from pyscf.scf import hf

    energies, coefficients = hf._init_guess_huckel_orbitals(mole)[:2]
    c = coefficients[:, np.argsort(energies)[: mole.nelectron // 2]]
    w, u = np.linalg.eigh(c.T @ mole.intor("int1e_ovlp") @ c)
    return c @ (u / np.sqrt(w)) @ u.T


def timed(function, *arguments, repeat=2, warm=True):
    """The result of a call, and the least wall time and CPU time (all threads) of several; `warm`: one call before."""
    if warm:
        jax.block_until_ready(function(*arguments))
    result: Any = None
    walls, cpus = [], []
    for _ in range(repeat):
        cpu, wall = time.process_time(), time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return result, {"wall": min(walls), "cpu": min(cpus)}


# Layouts. The kernels read nothing but the lists, so that leaving out a part of the screening is another list.


def layout_of(mol, grid, epsilon=1e-12):
    """The full screening: values, weights, and sorted bounds that cut each product."""
    return build_layout(mol, grid.coords, grid.weights, epsilon=epsilon)


def dense_layout(mol, grid):
    """No screening: each row lists all shells, and nothing is cut."""
    return build_layout(mol, grid.coords, grid.weights, epsilon=0.0)


def without_cuts(layout):
    """The same lists, but products of all that they hold: bounds too large for any cut."""

    def uncut(lists):
        return dataclasses.replace(lists, bound=jnp.full_like(lists.bound, 1e15))

    return dataclasses.replace(layout, density=uncut(layout.density), potential=uncut(layout.potential))


def value_filter(mol, grid, epsilon=1e-12):
    """Lists by values alone, as if all weights were 1, and no cuts: the first stage of the paper."""
    lists = build_layout(mol, grid.coords, jnp.ones_like(grid.weights), epsilon=epsilon)
    actual = build_layout(mol, grid.coords, grid.weights, epsilon=epsilon)
    return without_cuts(dataclasses.replace(actual, density=lists.density, potential=lists.potential))


def functions_per_point(layout, mol):
    """Mean number of basis functions in the lists, over rows."""
    from jaxqc.xc._cells import shells_of

    shells, cart = shells_of(mol, None)
    ls = np.asarray(shells.ls)
    sizes = (ls + 1) * (ls + 2) // 2 if cart else 2 * ls + 1
    shell, count = np.asarray(layout.density.shell), np.asarray(layout.density.count)
    listed = np.arange(shell.shape[1]) < count[:, None]
    return float(np.where(listed, sizes[np.where(listed, shell & (2**20 - 1), 0)], 0).sum(axis=1).mean())


# Steps


def step(mol, layout, xc, density):
    """One exchange-correlation step of jaxqc, ready for `timed`."""
    return functools.partial(potential, mol, layout, functional(xc), jnp.asarray(density))


def unfused_step(mol, grid, xc, density):
    """DenseXC in plain JAX: a matrix of orbitals on chunks of points, matrix products, no screening."""
    from jaxqc.xc import _oracle
    from jaxqc.xc._cells import shells_of
    from jaxqc.xc._features_type import COMPONENTS
    from jaxqc.xc._potential import point_features

    shells, cart = shells_of(mol, None)
    xc = functional(xc)

    def energy(d):
        features = _oracle.features(shells, grid.coords, d[None], cart=cart, ncomp=COMPONENTS[xc.kind])
        nelec = jnp.dot(grid.weights, features[0, 0])
        return jnp.dot(grid.weights, xc.energy_density(point_features(features, xc.kind))), nelec

    density = jnp.asarray(density)
    compiled = jax.jit(jax.value_and_grad(energy, has_aux=True)).lower(density).compile()
    return functools.partial(compiled, density)


def pyscf_step(mole, grid, xc, c=None, density=None):
    """PySCF's `nr_rks` on the same points, atom after atom as it wants them, with its own screening."""
    from pyscf import lib
    from pyscf.dft import gen_grid, numint

    grids = gen_grid.Grids(mole)
    grids.level = 3
    by_atom = np.asarray(grid.by_atom())
    grids.coords, grids.weights = np.asarray(grid.coords)[by_atom], np.asarray(grid.weights)[by_atom]
    grids.non0tab = grids.make_mask(mole, grids.coords)
    grids.screen_index = grids.non0tab
    if c is not None:
        density = lib.tag_array(2.0 * c @ c.T, mo_coeff=c, mo_occ=np.full(c.shape[1], 2.0))
    return functools.partial(numint.NumInt().nr_rks, mole, grids, xc, density)


def grid_of(mol, level):
    """The grid, with the partition that PySCF has."""
    return jax.block_until_ready(Grid(mol, level=level))
