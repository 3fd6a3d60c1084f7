"""The public functions `scf`, `energy` and `gradient`."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc import integrals
from jaxqc._parallel import replicated
from jaxqc.scf import _report
from jaxqc.scf._check import Options, check_options
from jaxqc.scf._check_xc import check_response
from jaxqc.scf._compile import outermost, quick_jit, traced
from jaxqc.scf._errors import ConvergenceError
from jaxqc.scf._fock import core_hamiltonian, electronic_energy, nuclear_energy
from jaxqc.scf._guess import guess_density
from jaxqc.scf._implicit import Converged, attach_energy, attach_orbitals, lagrangian_gradient
from jaxqc.scf._method import Builder, grid_fits
from jaxqc.scf._reference import density_of
from jaxqc.scf._result import Result
from jaxqc.scf._solver import Controls, Solution, resume, solve
from jaxqc.scf._view import misfit

_solve = quick_jit(solve, static_argnames=("reference", "settings"))
_resume = quick_jit(resume, static_argnames=("reference", "settings"))


def scf(mol, *, xc=None, verbose=False, callback=None, **options: Any) -> Result:
    r"""Solves the Hartree-Fock or Kohn-Sham equations F C = S C e.

    Spin 0 gives RHF (RKS with a functional), any other spin UHF (UKS); `restricted=True` gives ROHF (ROKS) for open
    shells, `restricted=False` UHF for closed ones. The whole iteration is one compiled program, which other
    coordinates of the same molecule use again.

    Args:
        mol: `Molecule`.
        xc: exchange-correlation functional: a name as in libxc and PySCF, such as "pbe", "b3lyp" (with VWN-RPA, as
            Gaussian and PySCF) or "0.25*HF + 0.75*pbe, pbe"; a `jaxqc.xc.Functional`; or a function of
            `jaxqc.xc.Features` that returns the energy per volume at each point, which may close over arrays with
            respect to which energies can be differentiated. None for Hartree-Fock.
        grid: level 0 to 9, a pair (n_radial, n_angular), a dict of these by element, or a `jaxqc.xc.Grid` whose
            scheme (not its points) is used.
        epsilon: what is left out of densities and potentials on the grid, Hartree.
        grid_response: whether derivatives see points and weights of the grid move with the nuclei. True gives those of
            the energy; False gives what other programs do by default.
        verbose: print a table of the iterations while they run (to stderr).
        callback: function of (cycle, energy, change, gradient_norm, second_order), called after each cycle. What it
            raises is raised when the iterations have ended.
        restricted: True, False or None, see above.
        guess: `"atom"` (superposition of atomic densities), `"core"` (core Hamiltonian), a density (nao, nao) or
            (2, nao, nao), or an earlier `Result`.
        guess_mix: angle (radian) by which the HOMO and LUMO of the guess are turned into each other, alpha and beta
            opposite: breaks the symmetry of spin in UHF of a singlet. Try 0.5.
        field: (3,) uniform electric field, atomic units: the potential of an electron is + F.r.
        max_cycles: bound on the number of cycles, 1 to 10000.
        tolerance: bound on the last change of the energy, Hartree.
        gradient_tolerance: bound on the norm of the orbital gradient, Hartree.
        threshold: screening threshold of the two-electron integrals, Hartree.
        precision: `"double"`, or `"mixed"`: GPUs compute small two-electron integrals in single precision while they
            iterate, see `jaxqc.integrals.jk`. Derivatives are in double precision.
        level_shift: energy, Hartree, by which virtual levels are lifted during DIIS.
        damping: share (0 to 1) of the old Fock matrix in the new one.
        diis_space: number of Fock matrices in the DIIS history.
        second_order: `"auto"` takes over with trust-region Newton steps when DIIS stalls; True uses them from the
            start; False never. It also takes over, from other orbitals, where a converged state has a virtual level
            below an occupied one or lies above an earlier cycle: such a state is no ground state.
        linear_dependence: eigenvalues of the overlap below it are removed.
        mesh: a `jax.sharding.Mesh` whose devices share integrals and grid; all of them do the rest. In a program of
            several processes (`jax.distributed`) each calls this with the same arguments.
        throw: raise where the calculation does not converge; False returns the result with `converged` False.

    Returns:
        `Result`. Where `mol` is traced (inside jit or vmap) nothing can be raised: then energy, orbitals and densities
        are NaN where `converged` is False, unless `throw=False`.

    Raises:
        ConvergenceError: not converged, not a number, or converged to a state that cannot be the ground state.
        TypeError, ValueError: an argument without meaning; the message says which and why.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.917", basis="sto-3g")
        >>> round(float(jaxqc.scf(mol).energy), 6)
        -98.57078
    """
    if callback is not None and not callable(callback):
        raise TypeError(
            "Argument callback must be a function of (cycle, energy, change, gradient_norm, second_order) or None, but "
            f"it is {callback!r}."
        )
    if callback is None and verbose:
        callback = _report.print_table()
    checked = check_options(mol, xc, options, report=callback is not None)
    solution = _run(checked, callback)
    result = _result(checked, solution)
    _judge(result, checked, solution)
    return result


def energy(mol, *, xc=None, **options: Any) -> jax.Array:
    """Total energy: a pure function of the molecule, under jit, grad, jvp, vmap and any nesting of them.

    Derivatives are those of the converged energy (see `jaxqc.scf._implicit`), with respect to coordinates, exponents,
    coefficients, the field and arrays inside of a functional; iterations are never differentiated. Where functions are
    removed for linear dependence, derivatives hold the span of the others fixed.

    Args:
        mol: `Molecule`.
        xc, options: as for `scf`.

    Returns:
        () energy, Hartree. Inside jit and vmap a calculation that does not converge gives NaN; outside it raises.

    Raises:
        ConvergenceError, TypeError, ValueError: as `scf`.

    Example:
        >>> import jax, jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.917", basis="sto-3g")
        >>> force = -jax.grad(lambda x: jaxqc.energy(mol.with_coords(x)))(mol.coords)
        >>> force.shape
        (2, 3)
    """
    checked = check_options(mol, xc, options, report=False, name="jaxqc.energy")
    solution = _run(checked, None)
    if _failed(solution, checked):
        _judge(_result(checked, solution), checked, solution)
    return attach_energy(checked.reference, checked.method, checked.arguments, _converged(solution, poison=True))


def gradient(mol, *, xc=None, **options: Any) -> jax.Array:
    """Derivative of the energy with respect to the coordinates of the nuclei (minus the forces).

    Args:
        mol: `Molecule`, or a converged `Result`, of which the orbitals are used as they are.
        xc, options: as for `scf`; with a `Result` only `grid_response`.

    Returns:
        (natm, 3) Hartree/Bohr; differentiable again.

    Raises:
        ConvergenceError, TypeError, ValueError: as `scf`.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.917", basis="sto-3g")
        >>> jaxqc.gradient(mol).shape
        (2, 3)
    """
    if isinstance(mol, Result):
        return _gradient_of_result(mol, xc, options)
    checked = check_options(mol, xc, options, report=False, name="jaxqc.gradient")
    solution = _run(checked, None)
    if _failed(solution, checked):
        _judge(_result(checked, solution), checked, solution)
    return _gradient(checked.arguments, checked.reference, checked.method, _converged(solution, poison=True))


def _gradient_of_result(result, xc, options):
    if xc is not None or options.keys() - {"grid_response"}:
        raise TypeError(
            "gradient(result) takes no further arguments but grid_response: all others were fixed when the result was "
            "computed."
        )
    method = check_response(result.method, options)
    if not traced(result.converged) and not bool(result.converged):
        raise ConvergenceError("The result has not converged, so its gradient would be meaningless.", result)
    reference = result.reference
    coefficients = result.mo_coeff if reference.kind == "uhf" else result.mo_coeff[None]
    fock = result.fock[None] if reference.kind == "rhf" else result.fock
    converged = jax.lax.stop_gradient(Converged(result.energy, coefficients, fock))
    return _gradient(result.arguments, reference, method, converged)


def _gradient(arguments, reference, method, converged):
    if not traced((arguments, converged)):
        # Nothing to differentiate further: the machinery of jax.grad would only cost time. Leaf 0 is mol.coords.
        static = {"reference": reference, "method": method, "chosen": (0,)}
        return lagrangian_gradient(arguments, converged.coefficients, converged.fock, **static)[0]

    def total(coords):
        moved = arguments._replace(mol=arguments.mol.with_coords(coords))
        return attach_energy(reference, method, moved, converged)

    return jax.grad(total)(arguments.mol.coords)


def _run(checked: Options, callback) -> Solution:
    """The converged solution; a constant with respect to differentiation."""
    arguments = jax.lax.stop_gradient(checked.arguments)
    # Of the molecule itself: within jit stop_gradient traces what is known.
    guess = jax.lax.stop_gradient(guess_density(checked.arguments.mol, checked.reference, checked.guess))
    guess = replicated(guess, checked.method.mesh)
    handle = _report.register(callback) if callback is not None else 0
    # Arrays of NumPy: to make one of JAX from each outside of jit would compile a program.
    numbers: Any = {name: np.float64(value) for name, value in checked.numbers.items()} | {"callback": np.int64(handle)}
    controls = Controls(**numbers)
    settings = checked.settings
    if settings.second_order == "auto" and outermost((arguments, guess)):
        # Outside of tracing the second-order program is compiled only if it is needed.
        settings = replace(settings, second_order="deferred")
    solution, state = _solve(arguments, guess, controls, reference=checked.reference, settings=settings)
    if settings.second_order == "deferred" and _unfinished(solution, checked.reference, settings):
        solution = _resume(arguments, state, controls, reference=checked.reference, settings=settings)
    if callback is not None and not traced(solution):
        jax.block_until_ready(solution.energy)
        _report.unregister(handle)
    return solution


def _unfinished(solution, reference, settings):
    if bool(solution.converged) or not bool(grid_fits(reference, solution.electrons)):
        return False
    return int(solution.cycles) < settings.max_cycles and bool(jnp.isfinite(solution.energy))


def _converged(solution, poison):
    """The point at which derivatives are taken; NaN if it is to be poisoned where it has not converged."""
    point = Converged(solution.energy, solution.coefficients, solution.fock)
    if not poison:
        return point
    if not traced(solution.converged) and bool(solution.converged):
        return point  # Nothing to do; and no NaN, not even an unused one, with which `jax_debug_nans` would stop.
    factor = jnp.where(solution.converged, 1.0, jnp.nan)
    return Converged(*(factor * value for value in point))


def _failed(solution, checked):
    """Whether a calculation with known numbers has failed."""
    return not traced(solution.converged) and not bool(solution.converged)


def _judge(result, checked, solution):
    """Raises for a calculation that failed, if its numbers are known."""
    if not checked.throw or traced((result.converged, result.energies)) or bool(result.converged):
        return
    energy = float(result.energies[int(result.cycles)])
    what = f"The {result.kind} calculation of {result.mol!r}"
    if energy != energy or energy in (float("inf"), -float("inf")):
        raise ConvergenceError(
            f"{what} met numbers that are not finite in cycle {int(result.cycles)}; check the geometry, exponents and "
            f"guess, or raise linear_dependence.{_about_functional(checked)}",
            result,
        )
    nao, nalpha = result.reference.nao, result.reference.nalpha
    kept = nao - int(result.removed)
    if kept < nalpha:
        raise ConvergenceError(
            f"{what} has only {kept} of {nao} basis functions left for {nalpha} alpha electrons, because "
            f"linear_dependence={checked.numbers['linear_dependence']:g} removed the others as linearly dependent; "
            "choose a smaller linear_dependence (1e-8 is the default).",
            result,
        )
    if coarse := misfit(result):
        raise ConvergenceError(coarse, result)
    if not bool(solution.sound) and float(result.gradient_norm) < checked.numbers["gradient_tolerance"]:
        raise ConvergenceError(
            f"{what} ended at {energy:.8f} Hartree in a stationary point that is not the ground state: a virtual "
            "orbital lies below an occupied one, or an earlier cycle had a lower energy. Try second_order=True, "
            "level_shift=0.3, another guess ('core', or the result at a near geometry), or restricted=False with "
            "guess_mix=0.5 where bonds are broken. throw=False returns the result, flagged as not converged.",
            result,
        )
    raise ConvergenceError(
        f"{what} did not converge within max_cycles={checked.settings.max_cycles} cycles: the orbital gradient is "
        f"{float(result.gradient_norm):.1e} Hartree (must be below {checked.numbers['gradient_tolerance']:.1e}) at an "
        f"energy of {energy:.8f} Hartree. Try a larger max_cycles, second_order=True, level_shift=0.3, damping=0.3, "
        "another guess ('core', or the result at a near geometry), or check charge, spin and geometry. "
        "throw=False returns the unconverged result.",
        result,
    )


def _about_functional(checked):
    if checked.method.xc is None or checked.method.xc.functional.named:
        return ""
    return (
        " A functional of your own must be finite, and so must be its derivatives, also where densities and their "
        "gradients are 0: powers and logarithms need a small number added, or jnp.where on their argument too."
    )


def _result(checked, solution) -> Result:
    differentiable = traced(checked.arguments)
    # Where nothing can be raised, NaN in every array takes the place of the exception.
    converged = _converged(solution, poison=checked.throw and traced(solution.converged))
    static = {"reference": checked.reference, "method": checked.method, "differentiable": differentiable}
    result = _assemble(checked.arguments, solution, converged, **static)
    if traced(solution):
        return result
    # One value for each cycle that was done, cut on the host because a slice would be compiled for each length.
    done = int(solution.cycles) + 1
    energies, gradients = jax.device_put([np.asarray(h)[:done] for h in (solution.energies, solution.gradients)])
    return replace(result, energies=energies, gradients=gradients)


@partial(quick_jit, static_argnames=("reference", "method", "differentiable"))
def _assemble(arguments, solution, converged, *, reference, method, differentiable) -> Result:
    """Dresses a solution as a `Result`; where it may be differentiated, every array follows the molecule."""
    mol, field = arguments.mol, arguments.field
    coefficients, fock = attach_orbitals(reference, method, arguments, converged)
    energy = attach_energy(reference, method, arguments, converged)
    overlap, hcore, nuclear = solution.overlap, solution.hcore, solution.energy_nuclear
    if differentiable:
        overlap, hcore = integrals.overlap(mol), core_hamiltonian(mol, field)
        nuclear = nuclear_energy(mol, field)
    density = density_of(reference, coefficients)
    energy_xc, electrons = solution.energy_xc, solution.electrons
    if method.xc is None:
        one, two = electronic_energy(hcore, density, fock - hcore[None])
    elif differentiable:
        build = Builder(arguments, method)
        one, two = electronic_energy(hcore, density, build.two_electron(density))
        energy_xc, electrons = build.xc_energy(density)
    else:
        one = electronic_energy(hcore, density, fock)[0]
        two = energy - nuclear - one - energy_xc
    effective = jnp.mean(fock, axis=0, keepdims=True) if reference.kind == "rohf" else fock
    levels = jnp.einsum("sip,sij,sjp->sp", coefficients, effective, coefficients)
    # The values are those of the eigenvalue problem; the derivative is that of the diagonal element.
    levels = solution.levels + levels - jax.lax.stop_gradient(levels)
    orbital_sets = (lambda x: x) if reference.nset == 2 else (lambda x: x[0])
    channels = (lambda x: x) if reference.nspin == 2 else (lambda x: x[0])
    return Result(
        energy=energy,
        converged=solution.converged,
        cycles=solution.cycles,
        mo_energy=orbital_sets(levels),
        mo_coeff=orbital_sets(coefficients),
        density=channels(density),
        fock=channels(fock),
        overlap=overlap,
        hcore=hcore,
        energy_nuclear=nuclear,
        energy_one_electron=one,
        energy_two_electron=two,
        energy_xc=energy_xc,
        grid_electrons=electrons,
        gradient_norm=solution.gradient_norm,
        second_order_cycles=solution.second_order_cycles,
        removed=solution.removed,
        energies=solution.energies,
        gradients=solution.gradients,
        field=field,
        mol=mol,
        parameters=arguments.parameters,
        points=arguments.points,
        reference=reference,
        method=method,
    )
