"""Shells of all kinds for tests of the two-electron kernels, and PySCF's values for them."""

import contextlib
from typing import Any

import numpy as np
from pyscf import gto, scf

from jaxqc.integrals import _library
from jaxqc.integrals._jk import jk
from jaxqc.integrals._shells import ShellList

INSTRUCTION_SETS = ("baseline", "avx2", "avx512")

# s and p functions carry the factor of their spherical harmonic in the coefficients (libcint's convention).
_FACTOR = {0: 0.282094791773878143, 1: 0.488602511902919921}

CENTERS = np.array([[0.0, 0.0, 0.0], [0.4, 1.3, -0.9], [-1.1, 0.5, 1.2], [1.2, -0.8, 0.7]])


@contextlib.contextmanager
def instruction_set(name):
    """Kernels of one instruction set; yields False where the processor lacks it."""
    library = _library.load()
    try:
        yield bool(library.jaxqc_select_isa(name.encode()))
    finally:
        library.jaxqc_select_isa(b"auto")


def contraction(rng, l, nprim, low, high, nctr=1):
    """A shell in PySCF's notation: nprim random exponents between low and high, nctr contractions."""
    exponents = np.exp(rng.uniform(np.log(low), np.log(high), nprim))
    coefficients = rng.uniform(0.2, 1.0, (nprim, nctr)) * rng.choice([-1, 1, 1], (nprim, nctr))
    return [l, *[[float(e), *map(float, c)] for e, c in zip(exponents, coefficients, strict=True)]]


def mole(centers, shells, cart=False):
    """A PySCF Mole with a list of shells on each centre; the nuclei do not matter."""
    labels = [f"He{k}" for k in range(len(shells))]
    atoms = [(label, tuple(map(float, x))) for label, x in zip(labels, centers, strict=False)]
    basis = dict(zip(labels, shells, strict=True))
    return gto.M(atom=atoms, basis=basis, unit="bohr", cart=cart, spin=None, verbose=0)


def shell_list(mole):
    """The shells of a PySCF Mole with libcint's own normalisation, in NumPy."""
    ls, nprims, centers, exponents, coefficients = [], [], [], [], []
    for shell in range(mole.nbas):
        l = mole.bas_angular(shell)
        for column in mole._libcint_ctr_coeff(shell).T:
            used = np.flatnonzero(column)
            ls.append(int(l))
            nprims.append(len(used))
            centers.append(mole.bas_coord(shell))
            exponents.append(mole.bas_exp(shell)[used])
            coefficients.append(column[used] * _FACTOR.get(l, 1.0))
    arrays: Any = (np.array(centers), np.concatenate(exponents), np.concatenate(coefficients))
    return ShellList(tuple(ls), tuple(nprims), *arrays)


def function_ls(mole):
    """The angular momentum of each function."""
    sizes = np.diff(mole.ao_loc_nr())
    return np.repeat([mole.bas_angular(b) for b in range(mole.nbas)], sizes)


def build(mole, density, omega=0.0, threshold=1e-16, coulomb=True, exchange=True):
    """J and K of the compiled kernels as NumPy arrays."""
    j, k = jk(
        shell_list(mole),
        density,
        cart=mole.cart,
        coulomb=coulomb,
        exchange=exchange,
        omega=float(omega),
        threshold=threshold,
    )
    return np.asarray(j), np.asarray(k)


def reference(mole, density, omega=0.0):
    """J and K from libcint's integrals, all of them."""
    with mole.with_range_coulomb(omega):
        eri = mole.intor("int2e", aosym="s8")
    j, k = scf.hf.dot_eri_dm(eri, density, hermi=0)
    return np.asarray(j), np.asarray(k)


def densities(rng, nao, kinds="sag"):
    """Random dense densities: s symmetric, a antisymmetric, g general."""
    out = rng.normal(size=(len(kinds), nao, nao))
    sign = {"s": 1, "a": -1, "g": 0}
    return np.stack([d + sign[kind] * d.T for d, kind in zip(out, kinds, strict=True)])


def error(value, expected):
    """Largest difference: absolute, but relative to the largest element where that exceeds 1."""
    return float(np.max(np.abs(value - expected), initial=0.0) / max(1.0, np.max(np.abs(expected), initial=0.0)))
