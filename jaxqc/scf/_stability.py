"""Is a solution a minimum? The lowest eigenvalue of the orbital Hessian, and where it points if it is negative."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxqc.scf._compile import quick_jit
from jaxqc.scf._errors import ConvergenceError
from jaxqc.scf._method import Builder
from jaxqc.scf._reference import Reference, density_of
from jaxqc.scf._rotation import hessian_diagonal, hessian_product, pair_mask, rotate, to_orbitals

_TURNS = (0.6, 0.4, 0.2, 0.1)


@dataclass(frozen=True)
class Stability:
    """Outcome of `stability`.

    Attributes:
        stable: whether the lowest eigenvalue found is not negative (above -1e-5 Hartree).
        internal: lowest eigenvalue of the orbital Hessian for rotations that keep the kind of the determinant (RHF to
            RHF, UHF to UHF, ROHF to ROHF), Hartree; inf if there are none.
        external: RHF only: lowest eigenvalue for rotations that turn alpha and beta apart (RHF to UHF), else inf.
        density: a density along the unstable direction, to be given to `scf` as its guess (with `restricted=False` if
            the instability is external), or None where the solution is stable. Its shape is (nao, nao) for an internal
            instability of RHF, else (2, nao, nao).
        restricted: the value of `restricted` with which to follow it.
    """

    stable: bool
    internal: float
    external: float
    density: Any
    restricted: bool | None


def stability(mol, result, *, tolerance=1e-5, max_cycles=60) -> Stability:
    """Checks whether a converged solution is a minimum of the energy.

    The Hessian is that of E(C exp K) in the pairs K_pq, p less occupied than q (`jaxqc.scf._rotation`), without the
    factors by which other programs divide: its sign and zeros are theirs, its scale is not.

    Args:
        mol: `Molecule`.
        result: converged `Result` of `scf(mol)`.
        tolerance: bound on the residual of the eigenvectors, Hartree.
        max_cycles: bound on the Davidson iterations, each one J and K build.

    Returns:
        `Stability`.

    Raises:
        ConvergenceError: the result or the eigenvalue has not converged.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; H 0 0 2.5", basis="sto-3g")
        >>> rhf = jaxqc.scf(mol)
        >>> check = jaxqc.scf.stability(mol, rhf)
        >>> check.stable
        False
        >>> bool(jaxqc.scf(mol, restricted=False, guess=check.density).energy < rhf.energy)
        True
    """
    if not bool(result.converged):
        raise ConvergenceError("The result has not converged, so its stability cannot be judged.", result)
    reference = result.reference
    coefficients = result.mo_coeff if reference.nset == 2 else result.mo_coeff[None]
    fock = result.fock if reference.nspin == 2 else result.fock[None]
    problem = (result.arguments._replace(mol=mol), result.method)
    internal, direction = _lowest(problem, reference, coefficients, fock, False, tolerance, max_cycles)
    external, outward, unrestricted = np.inf, None, Reference("uhf", reference.nalpha, reference.nbeta, reference.nao)
    density, restricted = None, None
    if reference.kind == "rhf":
        doubled, focks = (jnp.concatenate([a, a]) for a in (coefficients, fock))
        external, outward = _lowest(problem, unrestricted, doubled, focks, True, tolerance, max_cycles)
    if internal < -tolerance:
        density = _follow(problem, reference, coefficients, direction, result)
        restricted = reference.kind != "uhf"
    elif external < -tolerance:
        doubled = jnp.concatenate([coefficients, coefficients])
        density = _follow(problem, unrestricted, doubled, outward, result)
        restricted = False
    return Stability(density is None, internal, external, density, restricted)


@partial(quick_jit, static_argnames=("reference", "method", "odd"))
def _product(arguments, coefficients, fock, pairs, *, reference, method, odd):
    mask = pair_mask(reference, coefficients)
    levels = to_orbitals(reference, coefficients, fock)
    response_of = Builder(arguments, method).response(density_of(reference, coefficients))
    image = hessian_product(reference, coefficients, levels, mask, response_of, pairs)
    # Rounding must not let rotations in that turn alpha and beta alike.
    return 0.5 * (image - image[::-1]) if odd else image


@partial(quick_jit, static_argnames=("method",))
def _energy(arguments, hcore, density, *, method):
    return Builder(arguments, method).energy(hcore, density)


def _lowest(problem, reference, coefficients, fock, odd, tolerance, max_cycles):
    """Lowest eigenvalue by Davidson's method, with its pairs; `odd` keeps alpha and beta rotations opposite."""
    arguments, method = problem
    mask = np.asarray(pair_mask(reference, coefficients))
    if not mask.any():
        return np.inf, None
    diagonal = np.asarray(hessian_diagonal(reference, to_orbitals(reference, coefficients, fock), floor=0.0))

    def apply(flat):
        pairs = np.zeros(mask.shape)
        pairs[mask] = flat
        static = {"reference": reference, "method": method, "odd": odd}
        return np.asarray(_product(arguments, coefficients, fock, jnp.asarray(pairs), **static))[mask]

    def project(flat):
        if not odd:
            return flat
        pairs = np.zeros(mask.shape)
        pairs[mask] = flat
        return (0.5 * (pairs - pairs[::-1]))[mask]

    gaps = diagonal[mask]
    # Start from the smallest gaps, with a little of everything so that no symmetry is left out.
    rng = np.random.default_rng(0)
    starts = []
    for index in np.argsort(gaps, kind="stable")[: min(4, len(gaps))]:
        unit = 0.02 * rng.standard_normal(len(gaps)) / (1.0 + gaps)
        unit[index] += 1.0
        starts.append(project(unit))
    basis, images = [], []
    new = starts
    value, vector, residual = np.inf, None, np.inf
    for _ in range(max_cycles):
        added = False
        for trial in new:
            for _ in range(2):
                for b in basis:
                    trial = trial - (b @ trial) * b
            norm = np.linalg.norm(trial)
            if norm > 1e-8:
                basis.append(trial / norm)
                images.append(apply(basis[-1]))
                added = True
        matrix = np.array(basis) @ np.array(images).T
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        value, vector = float(values[0]), vectors[:, 0] @ np.array(basis)
        defect = vectors[:, 0] @ np.array(images) - value * vector
        residual = np.linalg.norm(defect)
        if residual < tolerance or not added:
            break
        shift = gaps - value
        new = [project(defect / np.where(np.abs(shift) < 0.05, 0.05, shift))]
    if residual >= max(tolerance, 1e-6) and added:
        raise ConvergenceError(
            f"The lowest eigenvalue of the orbital Hessian did not converge within max_cycles={max_cycles}: its "
            f"residual is {residual:.1e}. Try a larger max_cycles or tolerance."
        )
    pairs = np.zeros(mask.shape)
    pairs[mask] = vector
    return value, jnp.asarray(pairs)


def _follow(problem, reference, coefficients, direction, result):
    """The density of lowest energy among a few turns along the direction."""
    (arguments, method), best, lowest = problem, result.density, np.inf
    for angle in (*_TURNS, *(-a for a in _TURNS)):
        density = density_of(reference, rotate(coefficients, angle * direction, result.overlap))
        energy = float(_energy(arguments, result.hcore, density, method=method))
        if energy < lowest:
            best, lowest = density, energy
    return best[0] if reference.nspin == 1 else best


def spin_flip(result, atoms):
    """Exchanges alpha and beta density on some atoms: a guess for antiferromagnetic states.

    Args:
        result: `Result` of an open-shell calculation, commonly of the high-spin state.
        atoms: indices of the atoms to flip.

    Returns:
        (2, nao, nao) density for the argument `guess`, electrons. Blocks between flipped and other atoms are averaged.

    Raises:
        ValueError: closed-shell result, or an index outside the molecule.
    """
    if result.density.ndim != 3:
        raise ValueError("The result has no spin density to flip; compute it with restricted=False or spin > 0.")
    atoms = [int(a) for a in atoms]
    if any(not 0 <= a < result.mol.natm for a in atoms):
        raise ValueError(f"Argument atoms is {atoms}, but indices must be 0 to {result.mol.natm - 1}.")
    flipped = np.zeros(result.mol.nao)
    for a in atoms:
        start, stop = result.mol.aoslice[a]
        flipped[start:stop] = 1.0
    sign = 1.0 - flipped[:, None] - flipped[None, :]
    total = result.density[0] + result.density[1]
    spin = (result.density[0] - result.density[1]) * sign
    return jnp.stack([0.5 * (total + spin), 0.5 * (total - spin)])
