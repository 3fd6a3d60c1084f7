"""How evenly the quartets of J and K are dealt to devices: operations that each of them would do, counted on a CPU.

    python experiments/eri_gpu_balance.py FILE:BASIS ... [--engine jk | k | j] [--devices 2 4 8] [--json OUT]

Pairs are listed and sorted by the GPU's own code, run thread by thread, with Schwarz bounds of libcint; each bra pair
counts the kets that pass the screening with the density of atoms (MINAO), threshold 1e-13: for J and K, for K alone, or
for J from Hermite Gaussians, where groups of 32 pairs of primitives take the place of bra pairs. A device takes every
n-th of each class. The figure is the largest share over the mean.
"""

import argparse
import ctypes
import functools
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import eri_gpu_measure as measure
import jax
import jax.numpy as jnp
import numpy as np
from pyscf import gto, scf
from pyscf.scf import _vhf

import jaxqc
from jaxqc.integrals import _cuda_classes as classes
from jaxqc.integrals import _cuda_hermite as hermite
from jaxqc.integrals import _cuda_pairs
from jaxqc.integrals._cuda_hermite_units import hermite_size
from jaxqc.integrals._decontraction import two_electron_shells
from jaxqc.integrals._shells import ShellList

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from cuda_emulation import Emulator  # noqa: E402  # pyright: ignore[reportMissingImports]

Class = tuple[classes.Pair, classes.Pair]
_ANGULAR_FACTOR = {0: 0.282094791773878143, 1: 0.488602511902919921}  # which libcint multiplies by itself


def libcint_bounds(shells: ShellList, cart: bool) -> np.ndarray:
    """log max (ij|ij)^(1/2) of pairs of shells; shape `(nshell, nshell)`."""
    mole = gto.Mole(cart=cart, verbose=0)
    centers, exponents, coefficients = (np.asarray(x) for x in (shells.centers, shells.exponents, shells.coefficients))
    start = gto.PTR_ENV_START
    places = start + 3 * np.arange(len(centers))
    numbers = start + centers.size + np.concatenate([[0], np.cumsum(shells.nprims)])[:-1]
    mole._atm = np.zeros((len(centers), gto.ATM_SLOTS), np.int32)
    mole._atm[:, gto.PTR_COORD] = places
    mole._bas = np.zeros((len(centers), gto.BAS_SLOTS), np.int32)
    columns = (np.arange(len(centers)), shells.ls, shells.nprims, 1, 0, numbers, numbers + len(exponents))
    for slot, column in enumerate(columns):
        mole._bas[:, slot] = column
    factor = np.repeat([_ANGULAR_FACTOR.get(l, 1.0) for l in shells.ls], shells.nprims)
    mole._env = np.concatenate([np.zeros(start), centers.ravel(), exponents, coefficients / factor])
    n, found = len(centers), np.empty((len(centers),) * 2)
    name = "int2e_cart" if cart else "int2e_sph"
    optimizer = _vhf.make_cintopt(mole._atm, mole._bas, mole._env, name)
    _vhf.libcvhf.CVHFnr_int2e_q_cond(
        getattr(_vhf.libcvhf, name),
        optimizer,
        found.ctypes.data_as(ctypes.c_void_p),
        mole.ao_loc_nr().ctypes.data_as(ctypes.c_void_p),
        mole._atm.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int(n),
        mole._bas.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int(n),
        mole._env.ctypes.data_as(ctypes.c_void_p),
    )
    return np.log(np.maximum(found, 1e-300))


@functools.partial(jax.jit, static_argnames=("same", "coulomb"))
def _kets_of_bras(bras, kets, density, same: bool, coulomb: bool):
    """For each bra the kets that pass, and their primitives. Bras, kets: (place, shells, bound, primitives)."""
    top = np.float32(np.log(4.0))  # a quartet meets each block of the density four times in J
    threshold = np.float32(np.log(measure.THRESHOLD))
    place, shells, bound, primitives = kets
    ket_block = density[shells[:, 0], shells[:, 1]]

    def count(bra):
        at, (i, j), bra_bound, _ = bra
        row = jnp.maximum(density[i], density[j])
        d = jnp.maximum(row[shells[:, 0]], row[shells[:, 1]])
        if coulomb:
            d = jnp.maximum(d, jnp.maximum(density[i, j], ket_block) + top)
        wanted = bra_bound + bound + d > threshold
        wanted &= (place <= at) if same else True
        return jnp.sum(wanted), jnp.sum(jnp.where(wanted, primitives, 0))

    return jax.lax.map(count, bras, batch_size=16)


def _shells_and_density(mol: jaxqc.Molecule) -> tuple[ShellList, jax.Array]:
    matrix = jnp.asarray(np.asarray(scf.hf.init_guess_by_minao(mol.to_pyscf())))
    shells, contraction = two_electron_shells(mol)
    return shells, matrix if contraction is None else contraction @ matrix @ contraction.T


def counted(mol: jaxqc.Molecule, coulomb: bool = True) -> dict[Class, tuple[np.ndarray, np.ndarray]]:
    """Quartets, and quartets of primitives, of each bra pair of each class, in the order in which they are dealt."""
    shells, density = _shells_and_density(mol)
    plan = _cuda_pairs.plan(shells.ls, shells.nprims, mol.cart)
    bounds = jnp.asarray(libcint_bounds(shells, mol.cart), jnp.float32)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(_cuda_pairs, "call", Emulator(Path(folder)).call),
    ):

        def schwarz(pairs):
            return bounds[pairs.shells[:, 0], pairs.shells[:, 1]]

        operands = (shells.centers, shells.exponents, shells.coefficients)
        pairs = _cuda_pairs.prepare(plan, *operands, measure.THRESHOLD, schwarz)
        block = _cuda_pairs.density_bounds(plan.ls, mol.cart, density[None])[0]
    groups = np.asarray(pairs.groups)
    runs = {
        (la, lb): (
            jnp.arange(groups[n, -1] - first),
            *(x[first : groups[n, -1]] for x in (pairs.shells, pairs.bound, pairs.info[:, 3])),
        )
        for n, (la, lb, first, _) in enumerate(plan.classes)
    }
    found = {}
    for bra, ket in classes.classes(list(runs)):
        quartets, primitives = _kets_of_bras(runs[bra], runs[ket], block, bra == ket, coulomb)
        found[bra, ket] = np.asarray(quartets), np.asarray(primitives) * np.asarray(runs[bra][3], int)
    return found


def work(found: dict[Class, tuple[np.ndarray, np.ndarray]]) -> dict[Class, np.ndarray]:
    """Operations of each bra pair of each class, from what was counted."""

    def operations(bra, ket, quartets, primitives):
        tier = "registers" if classes.kernel(bra, ket, measure.VARIANT).registers else "lanes"
        each, once = measure.operations(bra, ket, tier)
        return each * primitives + once * quartets

    return {c: operations(*c, *counts) for c, counts in found.items()}


def coulomb_work(mol: jaxqc.Molecule) -> dict[tuple[int, int], np.ndarray]:
    """Operations, but for a factor, of each group of bras, by the orders of bras and kets."""
    shells, density = _shells_and_density(mol)
    plan = hermite.plan(shells.ls, shells.nprims, mol.cart)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(hermite, "call", Emulator(Path(folder)).call):
        pairs = hermite.prepare(plan, shells.centers, shells.exponents, shells.coefficients)
        tails = hermite._kets(plan, pairs, density[None], False, None)[2]
    cut = hermite._NEGLECT * measure.THRESHOLD / len(plan.sizes)
    found = {}
    for bra, size in plan.sizes.items():
        bounds = np.asarray(pairs.bounds[bra])[np.asarray(pairs.order[bra])]
        largest = np.pad(bounds, (0, -size % 32)).reshape(-1, 32).max(axis=1).astype(float)
        for ket in plan.sizes:
            reach = np.searchsorted(-np.asarray(tails[ket]), -cut / np.maximum(largest, 1e-300))
            each = 2 * hermite_size(bra) * hermite_size(ket) + 4 * hermite_size(bra + ket) + 40
            found[bra, ket] = each * reach.astype(float)
    return found


def shares(found: Mapping[Any, np.ndarray], devices: int) -> np.ndarray:
    """The work of each device over the mean."""
    parts = np.array([sum(w[n::devices].sum() for w in found.values()) for n in range(devices)])
    return parts / parts.mean()


def main():
    """Reads the arguments; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="FILE:BASIS")
    parser.add_argument("--engine", choices=("jk", "k", "j"), default="jk")
    parser.add_argument("--devices", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for text in options.systems:
        file, _, basis = text.rpartition(":")
        mol = jaxqc.Molecule(file, basis=basis)
        found = coulomb_work(mol) if options.engine == "j" else work(counted(mol, options.engine == "jk"))
        rows.append({"system": f"{Path(file).stem} {basis}"})
        rows[-1] |= {str(n): round(float(shares(found, n).max()), 5) for n in options.devices}
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        measure.keep(options.json, rows)
    head = ["system", *(f"{n} devices" for n in options.devices)]
    cells = [[r["system"], *(f"{r[str(n)]:.4f}" for n in options.devices)] for r in rows]
    print(measure.table(head, cells))


if __name__ == "__main__":
    main()
