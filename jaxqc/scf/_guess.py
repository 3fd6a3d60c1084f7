"""Densities to start from."""

import difflib

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc.scf._atom import atomic_density

NAMES = ("atom", "core")


def guess_density(mol, reference, guess):
    """The density that the iterations start from.

    Args:
        mol: `Molecule`.
        reference: `Reference`.
        guess: `"atom"` (superposition of atomic densities), `"core"` (zeros, so that the first Fock matrix is the core
            Hamiltonian), a density (nao, nao) or (2, nao, nao), or anything with such a `density`.

    Returns:
        (nspin, nao, nao).
    """
    shape = (reference.nspin, reference.nao, reference.nao)
    if isinstance(guess, str):
        if guess == "core":
            return jax.device_put(np.zeros(shape))
        density = atoms_density(mol)
    else:
        density = getattr(guess, "density", guess)
    if not isinstance(density, Tracer):
        # On the host, because outside of jit each operation would compile a program.
        return jax.device_put(_of_spins(np.asarray(density, np.float64), shape, np))
    return _of_spins(density, shape, jnp)


def _of_spins(density, shape, numpy):
    """A density, or one of each spin, as an array of the `shape` (nspin, nao, nao)."""
    if density.ndim == 2:
        return numpy.broadcast_to(density / shape[0], shape)
    return density if shape[0] == 2 else numpy.sum(density, axis=0, keepdims=True)


def check_guess(guess, nao):
    """Refuses guesses without meaning."""
    if isinstance(guess, str):
        if guess not in NAMES:
            near = difflib.get_close_matches(guess.lower(), NAMES, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"Argument guess is {guess!r}, but it must be 'atom', 'core', a density or an earlier result{hint}"
            )
        return
    density = getattr(guess, "density", guess)
    if isinstance(density, Tracer):
        shape, kind = density.shape, density.dtype.kind
    else:
        try:
            density = np.asarray(density)
        except ValueError:
            density = np.asarray(None)
        shape, kind = density.shape, density.dtype.kind
    if kind not in "fiu":
        raise TypeError(
            "Argument guess must be 'atom', 'core', a real density matrix or an earlier result, but it is of type "
            f"{type(guess).__name__} with elements of type {density.dtype}."
        )
    if shape not in ((nao, nao), (2, nao, nao)):
        raise ValueError(
            f"Argument guess must be a density of shape ({nao}, {nao}) or (2, {nao}, {nao}) in this basis set, but "
            f"it has the shape {shape}."
        )
    if not isinstance(density, Tracer):
        if not np.isfinite(density).all():
            raise ValueError("Argument guess is a density with elements that are not finite.")
        if np.abs(density - np.swapaxes(density, -1, -2)).max() > 1e-8 * max(1.0, np.abs(density).max()):
            raise ValueError("Argument guess is a density that is not symmetric; use (D + D.T) / 2.")


def atoms_density(mol):
    """Sum of the densities of spherically averaged neutral atoms, (nao, nao) electrons; ghosts add nothing.

    An array of NumPy, unless the molecule is traced; NaN where exponents and coefficients make no functions.
    """

    def host(exponents, coefficients):
        with np.errstate(all="ignore"):
            try:
                density = _atoms_density(mol, np.asarray(exponents), np.asarray(coefficients))
            except np.linalg.LinAlgError:
                # Within jit nothing can be raised; outside what follows says more about numbers that are not finite.
                density = np.full((mol.nao, mol.nao), np.nan)
        return density

    arrays = (mol.exponents, mol.coefficients)
    if not any(isinstance(a, Tracer) for a in arrays):
        return host(*arrays)

    shape = jax.ShapeDtypeStruct((mol.nao, mol.nao), jnp.float64)
    return jax.pure_callback(host, shape, *jax.lax.stop_gradient(arrays), vmap_method="sequential")


def _atoms_density(mol, exponents, coefficients):
    from jaxqc.integrals._shells import cartesian_to_spherical_matrix

    result = np.zeros((mol.nao, mol.nao))
    ao_loc = mol.ao_loc
    by_atom = [[] for _ in range(mol.natm)]
    for k, shell in enumerate(mol.shells):
        by_atom[shell.atom].append(k)
    for number, members in zip(mol.numbers, by_atom, strict=True):
        if number == 0:
            continue
        described = []
        for k in members:
            shell = mol.shells[k]
            e = exponents[shell.exponent_start : shell.exponent_start + shell.nprim]
            c = coefficients[shell.coefficient_start : shell.coefficient_start + shell.nprim]
            described.append((shell.l, tuple(e.tolist()), tuple(c.tolist())))
        for l, (index, density) in atomic_density(number, tuple(described)).items():
            # Equal occupation of all m: the unit matrix, or its image among Cartesian functions.
            angular = np.eye(2 * l + 1)
            if mol.cart and l > 1:
                matrix = cartesian_to_spherical_matrix(l)
                angular = matrix @ matrix.T
            for a, i in enumerate(index):
                for b, j in enumerate(index):
                    rows, columns = ao_loc[members[i]], ao_loc[members[j]]
                    size = angular.shape[0]
                    result[rows : rows + size, columns : columns + size] = density[a, b] * angular
    return result
