"""Hamiltonians for the tests of selected CI, and their matrices from PySCF."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from pyscf import ao2mo, fci, gto, scf

from jaxqc.nnqs import Configurations, Hamiltonian, pack, unpack


def random_integrals(norb, seed=0, scale=1.0):
    """Integrals with the symmetries of real orbitals and nothing else."""
    rng = np.random.default_rng(seed)
    one = rng.normal(size=(norb, norb))
    pairs = rng.normal(size=(norb, norb, norb, norb)) * scale
    pairs = pairs + pairs.transpose(1, 0, 2, 3)
    pairs = pairs + pairs.transpose(0, 1, 3, 2)
    return one + one.T, pairs + pairs.transpose(2, 3, 0, 1)


def symmetric_integrals(labels, seed=0):
    """Random integrals that are zero unless the exclusive or of the orbitals' labels is."""
    one, two = random_integrals(len(labels), seed)
    pairs = np.asarray(labels)[:, None] ^ np.asarray(labels)
    return np.where(pairs == 0, one, 0.0), np.where((pairs[:, :, None, None] ^ pairs) == 0, two, 0.0)


def random_hamiltonian(norb, nalpha, nbeta, seed=0, scale=1.0):
    return Hamiltonian.from_integrals(*random_integrals(norb, seed, scale), nalpha, nbeta, 0.5)


def molecule(atom, basis="sto-3g", spin=0):
    """PySCF's molecule and Hartree-Fock orbitals, and the Hamiltonian in them."""
    mol = gto.M(atom=atom, basis=basis, spin=spin, verbose=0)
    mf = scf.ROHF(mol) if spin else scf.RHF(mol)
    mf.conv_tol = 1e-12
    mf.kernel()
    c: Any = mf.mo_coeff
    two = ao2mo.restore(1, ao2mo.kernel(mol, c), c.shape[1])
    ham = Hamiltonian.from_integrals(c.T @ mf.get_hcore() @ c, two, *mol.nelec, mol.energy_nuc())
    return mol, mf, ham


def fci_matrix(ham):
    """All matrix elements from PySCF's contraction, without the constant; alpha strings first."""
    norb, nelec = ham.norb, (ham.nalpha, ham.nbeta)
    shape = tuple(fci.cistring.num_strings(norb, n) for n in nelec)
    solver: Any = fci.direct_spin1
    absorbed = solver.absorb_h1e(np.asarray(ham.one), np.asarray(ham.two), norb, nelec, 0.5)
    size = shape[0] * shape[1]
    columns = []
    for k in range(size):
        unit = np.zeros(size)
        unit[k] = 1.0
        columns.append(fci.direct_spin1.contract_2e(absorbed, unit.reshape(shape), norb, nelec).ravel())
    return np.array(columns).T


def fci_energy(ham, nroots=1):
    """The lowest eigenvalues from PySCF, with the constant."""
    solver: Any = fci.direct_spin1.FCI()
    solver.conv_tol, solver.nroots, solver.max_cycle = 1e-13, nroots, 300
    solver.pspace_size = 600
    energy, _ = solver.kernel(
        np.asarray(ham.one), np.asarray(ham.two), ham.norb, (ham.nalpha, ham.nbeta), ecore=float(ham.constant)
    )
    return energy


def embedded(ham, norb, places, doubly):
    """`ham` on some of `norb` orbitals, with others doubly occupied that have no integrals.

    Returns the larger Hamiltonian, and a function that maps keys of `ham` to larger keys and their phases: moving the
    creators of the bystanders to the front costs a sign for each that an electron passes.
    """
    places, doubly = np.asarray(places), np.asarray(doubly)
    one, two = np.zeros((norb, norb)), np.zeros((norb,) * 4)
    one[np.ix_(places, places)] = ham.one
    two[np.ix_(places, places, places, places)] = ham.two
    larger = Hamiltonian.from_integrals(
        one, two, ham.nalpha + len(doubly), ham.nbeta + len(doubly), float(ham.constant)
    )

    def lift(keys):
        small = np.asarray(unpack(keys, ham.norb))
        occupied = np.zeros((len(small), 2, norb), bool)
        occupied[:, :, places] = small
        occupied[:, :, doubly] = True
        below = np.sum(doubly[None] > places[:, None], axis=1)
        phase = (-1.0) ** np.sum(small * below, axis=(1, 2))
        return np.asarray(pack(occupied)), phase

    return larger, lift


@functools.cache
def over_several_words(norb):
    """A random Hamiltonian of 5 orbitals, the same among `norb`, and the map of keys; see `embedded`."""
    small = random_hamiltonian(5, 2, 3, seed=norb)
    places = [0, 9, norb // 2, norb - 4, norb - 1]
    return small, *embedded(small, norb, places, [3, 4, 11, norb // 2 + 1, norb - 2])


def as_set(keys):
    keys = np.asarray(keys)
    keys = keys[np.lexsort(keys.T[::-1])]
    return Configurations(jnp.asarray(keys), jnp.int32(len(keys)))
