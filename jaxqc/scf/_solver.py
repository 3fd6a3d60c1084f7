"""The self-consistent field as one traced function: DIIS first, second order where DIIS does not converge.

Nothing here is differentiated; `_implicit` attaches derivatives to the converged solution.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxqc import integrals
from jaxqc.scf import _fock
from jaxqc.scf._diis import DIISState, diis_extrapolate, diis_init, diis_push
from jaxqc.scf._method import Builder, MeanField, Method, grid_fits
from jaxqc.scf._newton import newton_step
from jaxqc.scf._reference import density_of
from jaxqc.scf._report import report
from jaxqc.scf._sound import canonical_orbitals, crossed_sets, turned_orbitals

# After so many DIIS cycles without a gradient 0.7 times the best one so far, DIIS counts as stalled.
_PATIENCE = 14
# Incremental Fock builds start anew after so many cycles, so that errors of screening do not pile up.
_REBUILD = 10
# A solution that lies higher than an earlier determinant of the same run by more than this, Hartree, is a wrong root.
_HIGHER = 1e-6
# So often the second-order solver starts anew from a solution that cannot be the ground state.
_ATTEMPTS = 4
# Trust radius of the first second-order step.
_RADIUS = 0.4


@dataclass(frozen=True)
class Settings:
    """Options that shape the traced program."""

    max_cycles: int
    diis_space: int
    second_order: str  # "auto", "always", "never", or "deferred": stop where "auto" would go on with Newton steps
    method: Method
    mix: bool
    report: bool


class Controls(NamedTuple):
    """Options that are plain numbers: changing them compiles nothing."""

    tolerance: jax.Array
    gradient_tolerance: jax.Array
    level_shift: jax.Array
    damping: jax.Array
    linear_dependence: jax.Array
    guess_mix: jax.Array
    callback: jax.Array  # handle of the live report


class System(NamedTuple):
    """What stays fixed during the iterations."""

    hcore: jax.Array
    overlap: jax.Array
    nuclear: jax.Array
    transform: jax.Array
    removed: jax.Array


class State(NamedTuple):
    """What the next cycle needs."""

    cycle: jax.Array
    coefficients: jax.Array
    levels: jax.Array  # of canonical orbitals, up to date after `_settle`
    density: jax.Array
    mean_field: MeanField
    energy: jax.Array
    change: jax.Array
    error: jax.Array  # DIIS error of the density
    gradient_norm: jax.Array
    full: jax.Array  # the linear part of mean_field was built in one piece from density, not by increments
    candidate: jax.Array  # energy and gradient have converged
    best: jax.Array
    stalled: jax.Array  # cycles since `best` fell
    radius: jax.Array  # trust radius of the second-order steps
    lowest: jax.Array  # lowest energy of all determinants so far, Hartree
    lowest_coefficients: jax.Array
    sound: jax.Array  # where converged: occupied by Aufbau, and not above `lowest`
    attempts: jax.Array  # how often the second-order solver was started
    energies: jax.Array
    gradients: jax.Array


class Solution(NamedTuple):
    """The final determinant and how it was reached."""

    energy: jax.Array
    energy_nuclear: jax.Array
    coefficients: jax.Array
    levels: jax.Array
    fock: jax.Array
    energy_xc: jax.Array | None  # None for Hartree-Fock, as the next one
    electrons: jax.Array | None  # integral of the density over the grid
    overlap: jax.Array
    hcore: jax.Array
    converged: jax.Array
    cycles: jax.Array
    second_order_cycles: jax.Array
    gradient_norm: jax.Array
    removed: jax.Array
    sound: jax.Array  # see `State`
    energies: jax.Array  # after each cycle; zeros after the last, because a NaN would stop `jax_debug_nans`
    gradients: jax.Array


def solve(arguments, guess, controls, reference, settings) -> tuple[Solution, State]:
    """Solves the Hartree-Fock or Kohn-Sham equations.

    Args:
        arguments: `Arguments`: molecule, field, parameters of the functional.
        guess: (nspin, nao, nao) density to start from; zeros give the guess of the core Hamiltonian.
        controls: `Controls`.
        reference: `Reference`.
        settings: `Settings`.

    Returns:
        `Solution`, whose `converged` says whether to believe it, and the state from which `resume` can go on.
    """
    system, build = _prepare(arguments, controls, settings)
    if settings.mix:
        guess = _mixed_guess(guess, build, system, controls, reference)
    state = _first_state(guess, build, system, reference, settings)
    # Rotations need orbitals, so one plain step comes first where all others are of second order.
    limit = 1 if settings.second_order == "always" else settings.max_cycles
    state = _diis_loop(state, build, system, controls, reference, settings, limit)
    # A program that others go on from leaves doubtful cases to them.
    state = _settle(state, build, system, reference, thorough=settings.second_order != "deferred")
    before = state.cycle
    if settings.second_order in ("auto", "always"):
        state = _second_order(state, build, system, controls, reference, settings)
    return _finish(state, before, system, reference), state


def resume(arguments, state, controls, reference, settings) -> Solution:
    """Goes on with second-order steps where DIIS stalled, or ended in what cannot be the ground state."""
    system, build = _prepare(arguments, controls, settings)
    before = state.cycle
    state = _settle(state, build, system, reference)
    state = _second_order(state, build, system, controls, reference, settings)
    return _finish(state, before, system, reference)


def _prepare(arguments, controls, settings):
    mol, field = arguments.mol, arguments.field
    overlap = integrals.overlap(mol)
    transform, removed = _fock.canonical_transform(overlap, controls.linear_dependence)
    # Whatever integrals and screening make of input that is not finite: the energy is NaN, and nothing is iterated.
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(arguments)]))
    system = System(
        hcore=_fock.core_hamiltonian(mol, field),
        overlap=overlap,
        nuclear=jnp.where(finite, _fock.nuclear_energy(mol, field), jnp.nan),
        transform=transform,
        removed=removed,
    )
    return system, Builder(arguments, settings.method)


def _first_state(guess, build, system, reference, settings):
    field_of_guess = build(guess)
    energies = jnp.zeros((settings.max_cycles + 1,))
    coefficients = jnp.zeros((reference.nset, reference.nao, reference.nao))
    state = State(
        cycle=jnp.asarray(0),
        coefficients=coefficients,
        levels=coefficients[:, 0],
        density=guess,
        mean_field=field_of_guess,
        energy=jnp.asarray(0.0),
        change=jnp.asarray(jnp.inf),
        error=jnp.zeros((reference.nset, reference.nao, reference.nao)),
        gradient_norm=jnp.asarray(jnp.inf),
        full=jnp.asarray(True),
        candidate=jnp.asarray(False),
        best=jnp.asarray(jnp.inf),
        stalled=jnp.asarray(0),
        radius=jnp.asarray(_RADIUS),
        lowest=jnp.asarray(jnp.inf),
        lowest_coefficients=coefficients,
        sound=jnp.asarray(False),
        attempts=jnp.asarray(0),
        energies=energies,
        gradients=energies,
    )
    energy, error, norm = _evaluate(guess, field_of_guess, system, reference)
    return state._replace(
        energy=energy,
        error=error,
        gradient_norm=norm,
        energies=energies.at[0].set(energy),
        gradients=energies.at[0].set(norm),
    )


def _fock_of(system, mean_field):
    return system.hcore[None] + mean_field.total


def _evaluate(density, mean_field, system, reference):
    fock = _fock_of(system, mean_field)
    error, norm = _fock.commutator(reference, fock, density, system.overlap, system.transform)
    return system.nuclear + mean_field.energy(system.hcore, density), error, norm


def _mixed_guess(guess, build, system, controls, reference):
    """Turns the highest occupied and the lowest virtual orbital of each spin into each other, by opposite angles."""
    fock = _fock_of(system, build(guess))
    orbitals = _fock.diagonalise(fock, system.transform, system.removed)
    for spin, nocc in enumerate((reference.nalpha, reference.nbeta)):
        if 0 < nocc < reference.nao:
            angle = controls.guess_mix if spin == 0 else -controls.guess_mix
            homo, lumo = orbitals[spin, :, nocc - 1], orbitals[spin, :, nocc]
            orbitals = orbitals.at[spin, :, nocc - 1].set(jnp.cos(angle) * homo + jnp.sin(angle) * lumo)
    return density_of(reference, orbitals)


def _active(state, settings):
    """Whether to go on: not converged, cycles left, all finite."""
    done = state.candidate & state.full
    return ~done & (state.cycle < settings.max_cycles) & jnp.isfinite(state.energy)


def _record(state, controls, settings, second_order):
    """Notes energy and gradient of the cycle just done and judges them."""
    candidate = (jnp.abs(state.change) < controls.tolerance) & (state.gradient_norm < controls.gradient_tolerance)
    better = state.gradient_norm < 0.7 * state.best
    lower = state.energy < state.lowest
    state = state._replace(
        candidate=candidate,
        best=jnp.where(better, state.gradient_norm, state.best),
        stalled=jnp.where(better, 0, state.stalled + 1),
        lowest=jnp.where(lower, state.energy, state.lowest),
        lowest_coefficients=jnp.where(lower, state.coefficients, state.lowest_coefficients),
        energies=state.energies.at[state.cycle].set(state.energy),
        gradients=state.gradients.at[state.cycle].set(state.gradient_norm),
    )
    if settings.report:
        report(controls.callback, state.cycle, state.energy, state.change, state.gradient_norm, second_order)
    return state


def _diis_loop(state, build, system, controls, reference, settings, limit):
    def proceed(carry):
        state, _, _ = carry
        go = _active(state, settings) & (state.cycle < limit)
        if settings.second_order in ("auto", "deferred"):
            go = go & (state.stalled < _PATIENCE)
        return go

    def body(carry):
        state, history, last = carry
        # A converged density whose Fock matrix was built by increments is kept, and its Fock matrix built anew.
        refine = state.candidate & ~state.full
        fock = _fock.effective_fock(reference, _fock_of(system, state.mean_field), state.density, system.overlap)
        damping = jnp.where(state.cycle > 0, controls.damping, 0.0)
        fock = (1.0 - damping) * fock + damping * last
        history: DIISState = diis_push(history, fock, state.error)
        best = diis_extrapolate(history)
        # The guess leaves the history: a spin-averaged one can have a vanishing error without being a determinant.
        history = history._replace(count=jnp.where(state.cycle < first, 0, history.count))
        projector = system.overlap @ _unit_density(reference, state.density) @ system.overlap
        shifted = best + controls.level_shift * (system.overlap[None] - projector)
        orbitals = _fock.diagonalise(shifted, system.transform, system.removed)
        orbitals = jnp.where(refine, state.coefficients, orbitals)
        density = jnp.where(refine, state.density, density_of(reference, orbitals))

        # Close to the end the Fock matrix is built in one piece, so that the cycle which converges is the last.
        near = state.gradient_norm < 10.0 * controls.gradient_tolerance
        rebuild = refine | near | (state.cycle % _REBUILD == _REBUILD - 1)
        base = jnp.where(rebuild, 0.0, 1.0)
        field = build.update(density, state.density, state.mean_field, base)
        energy, error, norm = _evaluate(density, field, system, reference)
        state = state._replace(
            cycle=state.cycle + 1,
            coefficients=orbitals,
            density=density,
            mean_field=field,
            energy=energy,
            change=energy - state.energy,
            error=error,
            gradient_norm=norm,
            full=rebuild,
        )
        return _record(state, controls, settings, second_order=False), history, fock

    # No density at all is the core guess, whose orbitals are as rough as a guess.
    first = jnp.where(jnp.all(state.density == 0.0), 2, 1)
    history = diis_init(settings.diis_space, reference.nset, reference.nao)
    state, _, _ = jax.lax.while_loop(proceed, body, (state, history, jnp.zeros_like(state.coefficients)))
    return state


def _unit_density(reference, density):
    """Projector density of each orbital set: occupations between 0 and 1."""
    if reference.nset == reference.nspin == 2:
        return density
    return 0.5 * jnp.sum(density, axis=0, keepdims=True)


def _settle(state, build, system, reference, thorough=True):
    """Makes the orbitals canonical, which changes no density, and judges whether the state can be the ground state.

    A minimum of UHF has a gap in each spin channel, so crossed levels show a saddle point. DIIS ends in one where
    two determinants that are mirror images follow each other, such as H- H+ and H+ H-. With a density functional a
    minimum may have crossed levels (an electron in one of two equal orbitals lifts its own level), so there the energy
    of turned orbitals decides, unless `thorough` is False: then crossed levels are judged as those of Hartree-Fock.
    """
    coefficients, levels = canonical_orbitals(reference, state.coefficients, _fock_of(system, state.mean_field))
    crossed = jnp.any(crossed_sets(reference, levels))
    if thorough and not build.levels_tell:

        def lower():
            return _turned(coefficients, levels, build, system, reference)[1] < state.energy - _HIGHER

        crossed = jax.lax.cond(crossed, lower, lambda: jnp.asarray(False))
    sound = ~crossed & (state.energy <= state.lowest + _HIGHER)
    return state._replace(coefficients=coefficients, levels=levels, sound=sound)


def _turned(coefficients, levels, build, system, reference):
    """Orbitals turned where levels have crossed, and their energy."""

    def energy_of(trial):
        return system.nuclear + build.energy(system.hcore, density_of(reference, trial))

    return turned_orbitals(reference, coefficients, levels, system.overlap, energy_of)


def _second_order(state, build, system, controls, reference, settings):
    """Second-order steps where DIIS stalled; anew, from other orbitals, where they end in what is no ground state."""

    def proceed(state):
        done = state.candidate & state.full & state.sound
        left = (state.cycle < settings.max_cycles) & (state.attempts < _ATTEMPTS)
        return ~done & left & jnp.isfinite(state.energy)

    def body(state):
        state = _restart(state, build, system, reference)
        state = _newton_loop(state, build, system, controls, reference, settings)
        return _settle(state, build, system, reference)

    return jax.lax.while_loop(proceed, body, state)


def _restart(state, build, system, reference):
    """Goes back to the lowest determinant so far, or away from a saddle point; builds the Fock matrix anew."""

    def turn(coefficients):
        return _turned(coefficients, state.levels, build, system, reference)[0]

    go_back = ~(state.candidate & state.full) | (state.energy > state.lowest + _HIGHER)
    coefficients = jax.lax.cond(go_back, lambda _: state.lowest_coefficients, turn, state.coefficients)
    density = density_of(reference, coefficients)
    field = build(density)
    energy, error, norm = _evaluate(density, field, system, reference)
    return state._replace(
        coefficients=coefficients,
        density=density,
        mean_field=field,
        energy=energy,
        change=jnp.asarray(jnp.inf),
        error=error,
        gradient_norm=norm,
        full=jnp.asarray(True),
        candidate=jnp.asarray(False),
        radius=jnp.asarray(_RADIUS),
        attempts=state.attempts + 1,
    )


def _newton_loop(state, build, system, controls, reference, settings):
    def body(state):
        step = newton_step(
            reference,
            state.coefficients,
            state.density,
            state.mean_field,
            state.energy,
            state.radius,
            system.hcore,
            system.overlap,
            build,
            lambda density, field: _evaluate(density, field, system, reference),
        )
        state = state._replace(
            cycle=state.cycle + 1,
            coefficients=step.coefficients,
            density=step.density,
            mean_field=step.mean_field,
            energy=step.energy,
            change=step.change,
            error=step.error,
            gradient_norm=step.gradient_norm,
            full=jnp.asarray(True),
            radius=step.radius,
        )
        return _record(state, controls, settings, second_order=True)

    return jax.lax.while_loop(lambda state: _active(state, settings), body, state)


def _finish(state, before, system, reference):
    """Dresses the final, settled state."""
    removed = jnp.sum(system.removed)
    enough = reference.nao - removed >= reference.nalpha
    fits = grid_fits(reference, state.mean_field.electrons)
    return Solution(
        energy=state.energy,
        energy_nuclear=system.nuclear,
        coefficients=state.coefficients,
        levels=state.levels,
        fock=_fock_of(system, state.mean_field),
        energy_xc=state.mean_field.energy_xc,
        electrons=state.mean_field.electrons,
        overlap=system.overlap,
        hcore=system.hcore,
        converged=state.candidate & state.full & state.sound & enough & fits,
        cycles=state.cycle,
        second_order_cycles=state.cycle - before,
        gradient_norm=state.gradient_norm,
        removed=removed,
        sound=state.sound,
        energies=state.energies,
        gradients=state.gradients,
    )
