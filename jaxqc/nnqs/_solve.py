"""Neural selected CI as one function: configurations are chosen, a network is trained on them, the energy bounded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxqc._checks import check_flag, checked_count, checked_path
from jaxqc.elements import shorten
from jaxqc.nnqs._bits import Configurations
from jaxqc.nnqs._checkpoint import Checkpoints
from jaxqc.nnqs._coupling import check_epsilon
from jaxqc.nnqs._hamiltonian import Hamiltonian
from jaxqc.nnqs._mesh import check_mesh
from jaxqc.nnqs._perturbation import checked_memory
from jaxqc.nnqs._selected import State
from jaxqc.nnqs._train_sr import Spring

NAME = "jaxqc.nnqs.solve"


@dataclass(frozen=True)
class Solution:
    """What `solve` returns; energies in Hartree.

    Attributes:
        energy: of the network on the final set; a bound if `energy="projected"`.
        variance: of its local energies, Hartree^2.
        weight: share of the network's norm on the set.
        e_ci: lowest eigenvalue of the Hamiltonian on the set, an upper bound of the exact energy.
        e_pt2: Epstein-Nesbet correction to `e_ci` from all configurations outside the set.
        e_extrapolated: e_ci where e_pt2 goes to zero, and `extrapolation_error`, a rough estimate of its error.
        spin_square: <S^2> of the eigenvector.
        configurations: the set, sorted by key.
        coefficients: (count,) the eigenvector on it.
        states: a `State` for each of the `nroots` on the final set, by rising energy; the bound, the correction, their
            extrapolation, <S^2> and the coefficients above are those of the first one.
        module, parameters: the network and what it learned.
        history: one dict for every record of the log.
        steps: optimisation steps taken.
    """

    energy: float
    variance: float
    weight: float
    e_ci: float
    e_pt2: float
    e_extrapolated: float
    extrapolation_error: float
    spin_square: float
    configurations: Configurations
    coefficients: jax.Array
    states: tuple[State, ...]
    module: Any
    parameters: Any
    history: list[dict]
    steps: int


@dataclass(frozen=True)
class Settings:
    """The arguments of `solve` that decide what comes out."""

    steps: int
    target_size: int
    seed: int
    energy: str
    select: str
    pretrain: int
    distill: int
    refresh: int
    growth: int
    epsilon: float
    memory: int
    nroots: int = 1


def solve(
    ham: Hamiltonian,
    *,
    steps: int = 1000,
    target_size: int = 1000,
    seed: int = 0,
    module=None,
    optimizer=None,
    energy: str = "projected",
    select: str = "importance",
    pretrain: int = 200,
    distill: int = 0,
    refresh: int = 100,
    growth: int = 4,
    epsilon: float = 1e-10,
    memory: int = 2 << 30,
    nroots: int = 1,
    log=None,
    tensorboard=None,
    checkpoint=None,
    checkpoint_every: int = 100,
    resume: bool = False,
    callback: Callable[[dict], Any] | None = None,
    mesh: Mesh | None = None,
) -> Solution:
    r"""Ground-state energy by selected configuration interaction with a neural wave function.

    The set of configurations grows from the lowest one to `target_size`; in between, the network is trained on it. The
    Hamiltonian on the set is diagonalised each time it grows (`e_ci`), corrected for what is outside (`e_pt2`), and
    extrapolated. The method is that of arXiv:2604.15768 with a rigorous bound added.

    The same arguments give the same bits, whatever ran before in the process, on the same kind and number of
    processors and with the same flags of XLA (`XLA_FLAGS`): others change the order of sums in the network, and
    training amplifies that to some 1e-9 Hartree and more.

    Args:
        ham: `Hamiltonian`.
        steps: steps of the optimiser in all, pretraining included.
        target_size: configurations in the final set.
        seed: of the network's first parameters.
        module: a network; by default `Transformer` with a real sign. Anything with `init(random_key, occupations)` and
            `apply(parameters, occupations) -> (log_amplitude, phase)`, occupations (n, 2, norb) bool. On sets of more
            than a thousand configurations signs are learned best by `real=False, spin_flip=True` (for even total
            spin), with most of the steps for `distill`.
        optimizer: an `optax.GradientTransformation`, `optax.adamw(3e-4)` by default; or `Spring` for small sets.
        energy: "projected", the Rayleigh quotient on the set, or "connected", with local energies over all that is
            coupled to it, as in the paper (no bound).
        select: the set grows by perturbative "importance" or by the network's "amplitude", as in the paper.
        pretrain: steps in which the network learns the eigenvector of the first set.
        distill: the same at the start of each later set.
        refresh: steps between two growths of the set.
        growth: factor by which it grows.
        epsilon: matrix elements below are left out, Hartree.
        memory: budget in bytes for couplings and perturbation theory, which are made in batches; results are the same
            to the bit whatever it is. The network takes up to 1 GiB besides.
        nroots: how many of the lowest states are computed on each set, which grows by importance for each of them; the
            network is trained on the first one. One is the lowest of the symmetry (irreducible representation) of the
            configuration with the lowest orbitals occupied; more are the lowest of all symmetries.
        log: path of a file for the history, a JSON object a line.
        tensorboard: directory for event files of all numbers of the history, which TensorBoard shows.
        checkpoint: directory for checkpoints, one every `checkpoint_every` steps (rounded up to a multiple of ten); it
            must have none yet, unless `resume`.
        resume: go on from the newest checkpoint there, if there is one; the outcome is that of an undisturbed run, to
            the bit. `steps` may be larger than before and `memory` another one; everything else, the network and the
            optimiser too, must be the same.
        callback: is called with every record of the history.
        mesh: of one axis, over whose devices to work, of this process or of all that called
            `jax.distributed.initialize` (each of them calls `solve`, with the same arguments). Results are the same to
            the bit for 1, 2, 4 and 8 devices; other numbers cut the work otherwise. None for one device.

    Returns:
        `Solution`.

    Raises:
        TypeError, ValueError: an argument is not what it must be, or a checkpoint is of another run.
        ImportError: Flax, Optax or (for checkpoints) Orbax or (for event files) tensorboardX is missing.
        FloatingPointError: the energy is not finite any more.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
        >>> ham = jaxqc.nnqs.Hamiltonian.from_molecule(mol)
        >>> out = jaxqc.nnqs.solve(ham, steps=20, target_size=4)
        >>> print(f"{out.e_ci:.6f}")
        -1.137284
    """
    settings = Settings(
        steps, target_size, seed, energy, select, pretrain, distill, refresh, growth, epsilon, memory, nroots
    )
    settings = _checked(ham, settings, module)
    _check_parts(module, optimizer, callback)
    log, tensorboard, checkpoint = _checked_output(log, tensorboard, checkpoint, resume)
    checkpoint_every = checked_count(checkpoint_every, "checkpoint_every", NAME, 1)
    mesh = None if mesh is None else check_mesh(mesh, NAME)
    from jaxqc.nnqs._solve_run import Run

    with jax.set_mesh(None):  # arrays of a run lie where it puts them, whatever mesh the caller works in
        if checkpoint is None:
            return Run(ham, settings, module, optimizer, callback, mesh).go(log, tensorboard)
        with Checkpoints(checkpoint) as store:
            run = Run(ham, settings, module, optimizer, callback, mesh, store, checkpoint_every)
            if resume:
                run.load(store)
            else:
                store.check_unused(NAME)
            return run.go(log, tensorboard)


def _checked(ham, settings, module) -> Settings:
    if not isinstance(ham, Hamiltonian):
        raise TypeError(f"Argument ham of {NAME} must be a jaxqc.nnqs.Hamiltonian, but it is {shorten(ham)}.")
    least = {"steps": 0, "target_size": 1, "pretrain": 0, "distill": 0, "refresh": 1, "growth": 2, "nroots": 1}
    numbers = {label: checked_count(getattr(settings, label), label, NAME, bound) for label, bound in least.items()}
    numbers["seed"] = checked_seed(settings.seed, "seed", NAME)
    numbers["memory"] = checked_memory(settings.memory, NAME)
    check_epsilon(settings.epsilon, NAME)
    for label, choices in (("energy", ("projected", "connected")), ("select", ("importance", "amplitude"))):
        if getattr(settings, label) not in choices:
            raise ValueError(
                f"Argument {label} of {NAME} is {shorten(getattr(settings, label))}; it must be one of {choices}."
            )
    for label in ("norb", "nalpha", "nbeta"):
        if getattr(module, label, getattr(ham, label)) != getattr(ham, label):
            raise ValueError(
                f"Argument module of {NAME} is a network for {label}={getattr(module, label)}, but the Hamiltonian has "
                f"{label}={getattr(ham, label)}; make one with the numbers of the Hamiltonian."
            )
    return replace(settings, **numbers)


def _check_parts(module, optimizer, callback):
    """Refuses what has not the methods that are called later."""
    kind = "an optax.GradientTransformation, such as optax.adamw(3e-4), or a jaxqc.nnqs.Spring"
    if isinstance(optimizer, Spring):
        optimizer = None
    for label, value, methods, wanted in (
        ("module", module, ("init", "apply"), "a network, such as jaxqc.nnqs.Transformer(norb, nalpha, nbeta)"),
        ("optimizer", optimizer, ("init", "update"), kind),
        ("callback", callback, ("__call__",), "a function of a dict"),
    ):
        methods_there = all(callable(getattr(value, method, None)) for method in methods)
        if value is not None and (not methods_there or (isinstance(value, type) and label != "callback")):
            raise TypeError(f"Argument {label} of {NAME} must be {wanted}, or None, but it is {shorten(value)}.")


def checked_seed(value, label, name) -> int:
    """A seed as an int.

    Raises:
        ValueError: it is no whole number of 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -(2**63) <= value < 2**63:
        raise ValueError(
            f"Argument {label} of {name} must be a whole number from -2^63 to 2^63 - 1, but it is {shorten(value)}."
        )
    return int(value)


def _checked_output(log, tensorboard, checkpoint, resume):
    check_flag(resume, "resume", NAME)
    if resume and checkpoint is None:
        raise ValueError(f"{NAME} was asked to resume, but argument checkpoint, the directory to read, is None.")
    folders = {"tensorboard": tensorboard, "checkpoint": checkpoint}
    tensorboard, checkpoint = (checked_path(path, label, NAME, folder=True) for label, path in folders.items())
    return checked_path(log, "log", NAME), tensorboard, checkpoint
