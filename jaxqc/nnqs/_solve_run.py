"""One run of `solve`: rounds of growing the set and training on it, with log and checkpoints.

Everything that a step depends on is a function of the settings and of what a checkpoint holds, so that a run that was
cut off and resumed computes the same numbers as one that was not.
"""

import time
from dataclasses import asdict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.nnqs._bits import Configurations, aufbau
from jaxqc.nnqs._checkpoint import described, fingerprint
from jaxqc.nnqs._davidson import Eigenstates, lowest
from jaxqc.nnqs._energy import distillation, energy, estimate, infidelity
from jaxqc.nnqs._extrapolate import carried, other_threshold, points_of, spin_square_bound, states_of
from jaxqc.nnqs._first_set import all_there_are, first_set, states_followed
from jaxqc.nnqs._selected import best_of_states, padded_set
from jaxqc.nnqs._solve import NAME, Settings, Solution
from jaxqc.nnqs._solve_expand import by_amplitude, joined
from jaxqc.nnqs._solve_log import Writers
from jaxqc.nnqs._solve_work import ManyDevices, OneDevice
from jaxqc.nnqs._train import Sector, TrainState, check_outputs, import_optax, occupations_of, trial

_LENGTH = 10  # steps between two looks at the clock, the log and the checkpoint
_FIRST_SIZE = 256
_VANISHING = -1e29  # logarithm of an amplitude that stands for zero


class Run:
    """What stays the same in a run, and its state between steps."""

    def __init__(self, ham, settings: Settings, module, optimizer, callback, mesh=None, store=None, every=0):
        self.ham, self.settings, self.callback, self.store, self.every = ham, settings, callback, store, every
        self.sector = Sector(ham.norb, ham.nalpha, ham.nbeta)
        self.configurations = padded_set(first_set(ham, settings.nroots, settings.target_size, NAME, "target_size"))
        self.trained_on: tuple[jax.Array, jax.Array] | None = None  # keys, and vectors of the states
        if module is None:
            from jaxqc.nnqs._ansatz import Transformer

            module = Transformer(*self.sector, real=True)
        self.module = module
        optimizer = import_optax().adamw(3e-4) if optimizer is None else optimizer
        real = bool(getattr(module, "real", False))
        objective = _objective_of(infidelity if real else distillation)
        self.work = OneDevice(ham, settings, module.apply, self.sector, objective, optimizer, _LENGTH, real)
        if mesh is not None:
            self.work = ManyDevices(self.work, mesh)
        first = aufbau(*self.sector)

        @jax.jit  # one program instead of a hundred
        def initial(random_key):
            parameters = module.init(random_key, occupations_of(first, self.sector))
            with jax.numpy_dtype_promotion("standard"):
                inner = optimizer.init(parameters)
            return TrainState(parameters, inner, jnp.int32(0))

        self.state = initial(jax.random.key(settings.seed))
        check_outputs(module.apply, self.state.parameters, self.sector, NAME)
        self.makers = ""  # network and optimiser, so far as they can be told apart
        if store is not None:
            self.makers = f"{described(module)} {described(optimizer)} {trial(optimizer, self.state)}"
        self.round, self.complete = -1, False
        self.points: list[list[tuple[float, float, int]]] = []  # `points_of` every set
        self.history: list[dict] = []
        self.writers: Writers | None = None
        self.elapsed, self.started = 0.0, time.perf_counter()

    @property
    def done(self) -> int:
        return int(self.state.step)

    def go(self, log, tensorboard) -> Solution:
        """Runs to the end."""
        resumed = self.round >= 0
        with Writers(log, tensorboard, self.history) as self.writers:
            while True:
                if not resumed:
                    self._grow()
                self._prepare(report=not resumed)
                self._train()
                if self.done >= self.settings.steps and self._has_final_size():
                    return self._finish()
                resumed = False

    def _has_final_size(self):
        return self.complete or int(self.configurations.count) >= self.settings.target_size

    def _train(self):
        """The steps of this round."""
        settings = self.settings
        end = min(settings.steps, (self.round + 1) * settings.refresh)
        if self._has_final_size() and (settings.select == "importance" or self.complete):
            end = settings.steps  # the set stays as it is
        taught = settings.pretrain if self.round == 0 else settings.distill
        taught = min(end, self.round * settings.refresh + taught)
        saved = self.done
        while (done := self.done) < end:
            stop = taught if done < taught else end
            number = min(_LENGTH, stop - done)
            self.state, seen = self.work.train(self.state, self.task, 1.0 if done < taught else 0.0, number)
            last = {name: float(np.asarray(values)[number - 1]) for name, values in seen.items()}
            if done == 0:
                self._check_weight(last["weight"])
            if not np.isfinite(last["energy"]):
                raise FloatingPointError(
                    f"The energy of the network is {last['energy']} after {done + number} steps of {NAME}; use a "
                    "smaller learning rate or clip gradients, for example "
                    "optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))."
                )
            self._report("train", loss_is="distillation" if done < taught else settings.energy, **last)
            if self.store is not None and (self.done - saved >= self.every or self.done == end):
                self._save(self.store)
                saved = self.done

    def _check_weight(self, weight):
        """Refuses a network that is zero on the set: nothing can be learned then."""
        if weight > 0:
            return
        log_amplitude, _ = self.work.evaluate(self.state.parameters, self.configurations.keys)
        if np.max(np.asarray(log_amplitude)[: int(self.configurations.count)]) <= _VANISHING:
            raise ValueError(
                f"Argument module of {NAME} gives every configuration of the set the amplitude zero; it must be a "
                f"network for {self.sector.norb} orbitals, {self.sector.nalpha} alpha and {self.sector.nbeta} beta "
                "electrons."
            )

    def _grow(self):
        """The next set."""
        settings, ham = self.settings, self.ham
        self.round += 1
        count = int(self.configurations.count)
        size = count * settings.growth
        if self.round == 0:
            size = max(_FIRST_SIZE, settings.target_size // settings.growth**2)
        size = min(size, settings.target_size)
        again = True
        while again:
            if settings.select == "importance" or self.round == 0:
                _, joining = self._outside(self._diagonalise(), max(size - int(self.configurations.count), 0))
                self.configurations = joined(self.configurations, joining)
            else:
                union = self.work.candidates(self.configurations)
                log_amplitude, _ = self.work.evaluate(self.state.parameters, union.keys)
                self.configurations = by_amplitude(ham, union, log_amplitude, size)
            before, count = count, int(self.configurations.count)
            self.complete = count == before < size
            again = before < count < size

    def _diagonalise(self) -> Eigenstates:
        """The lowest states on the set."""
        settings, count = self.settings, int(self.configurations.count)
        diagonalise = partial(lowest, self.ham, self.configurations)
        return states_followed(diagonalise, self.ham, settings.nroots, count, settings.target_size)

    def _outside(self, states, wanted, epsilon=None):
        """E_PT2 of every state, and the most important configurations outside of the set, an equal part for each."""
        epsilon = self.settings.epsilon if epsilon is None else epsilon
        limits = epsilon, self.settings.memory, -(-wanted // max(len(states.energies), self.settings.nroots))
        return best_of_states(self.work.best_external, self.ham, self.configurations, states, *limits)

    def _prepare(self, report):
        """What training on the set needs; its bound and correction where they are not known yet."""
        self.states = self._diagonalise()
        self.task = self.work.task(self.configurations, self.states.vectors[0])
        if report:
            corrections, _ = self._outside(self.states, 0)
            keys = self.configurations.keys
            old = None if self.trained_on is None else carried(*self.trained_on, keys)
            self.points.append(points_of(self.states, corrections, old))
            spins = np.asarray(self.states.spin_squares).tolist()
            first, *excited = ([*point[:2], spin] for point, spin in zip(self.points[-1], spins, strict=True))
            numbers = dict(zip(("e_ci", "e_pt2", "spin_square"), first, strict=True))
            self._report("set", **numbers, **({"excited": excited[: self.settings.nroots - 1]} if excited else {}))
        self.trained_on = self.configurations.keys, self.states.vectors

    def _finish(self) -> Solution:
        settings = self.settings
        found = self.work.estimate(self.state.parameters, self.task)
        count = int(self.configurations.count)
        corrections = [point[1] for point in self.points[-1]]
        exact = corrections if all(corrections) else self._outside(self.states, 0, 0.0)[0]
        certain = settings.nroots == 1 or count == all_there_are(self.ham)
        bound = spin_square_bound(self.ham) if settings.nroots == 1 else None
        threshold = other_threshold(settings.epsilon) if any(corrections) else None
        other = None if threshold is None else self._outside(self.states, 0, threshold)[0]
        uncoupled = 0.0 if certain else float("nan")
        found_states = states_of(self.states, self.points, exact, uncoupled, bound, other)
        states = tuple(state._replace(vector=state.vector[:count]) for state in found_states[: settings.nroots])
        lowest_state = states[0]
        numbers = {
            "energy": float(found.energy),
            "variance": float(found.variance),
            "weight": float(found.weight),
            "e_ci": lowest_state.e_ci,
            "e_pt2": lowest_state.e_pt2,
            "e_extrapolated": lowest_state.e_extrapolated,
            "extrapolation_error": lowest_state.error,
            "spin_square": lowest_state.spin_square,
        }
        excited = [[state.e_ci, state.e_pt2, state.spin_square] for state in states[1:]]
        known = {name: value if np.isfinite(value) else None for name, value in numbers.items()}  # JSON has no nan
        self._report("end", loss_is=settings.energy, **known, **({"excited": excited} if excited else {}))
        return Solution(
            **numbers,
            configurations=self.configurations,
            coefficients=lowest_state.vector,
            states=states,
            module=self.module,
            parameters=self.work.local(self.state.parameters),
            history=self.history,
            steps=self.done,
        )

    def _report(self, kind, **numbers):
        seconds = round(self.elapsed + time.perf_counter() - self.started, 3)
        size = int(self.configurations.count)
        record = {"kind": kind, "step": self.done, "round": self.round, "size": size, **numbers, "seconds": seconds}
        self.history.append(record)
        if self.writers is not None:
            self.writers.write(record)
        if self.callback is not None:
            self.callback(record)

    def _fingerprint(self):
        settings = asdict(self.settings)
        del settings["steps"], settings["memory"]  # a run may be made longer; a budget does not change a bit
        ham = self.ham
        shapes = str(jax.tree.map(jnp.shape, self.state))
        return fingerprint(ham.constant, ham.one, ham.two, list(self.sector), settings, shapes, self.makers)

    def _save(self, store):
        record = {
            "fingerprint": self._fingerprint(),
            "round": self.round,
            "count": int(self.configurations.count),
            "complete": self.complete,
            "points": self.points,
            "history": self.history,
            "elapsed": self.elapsed + time.perf_counter() - self.started,
        }
        store.save(self.done, (self.state, self.configurations.keys), record)

    def load(self, store) -> None:
        """Goes to the newest checkpoint of `store`, if there is one.

        Raises:
            ValueError: it is of another run.
        """
        found = store.load()
        if found is None:
            return
        leaves, record = found
        if record["fingerprint"] != self._fingerprint():
            raise ValueError(
                f"The checkpoint in {store.directory} is of another run: its Hamiltonian, network, optimiser or "
                f"settings are not those that {NAME} was given. Resume with the same, or use another directory."
            )
        keys = jnp.asarray(leaves.pop())
        state = jax.tree.unflatten(jax.tree.structure(self.state), [jnp.asarray(leaf) for leaf in leaves])
        if int(state.step) > self.settings.steps:
            raise ValueError(
                f"The checkpoint in {store.directory} has {int(state.step)} steps, more than argument steps of "
                f"{NAME}, which is {self.settings.steps}."
            )
        self.state, self.configurations = state, Configurations(keys, jnp.int32(record["count"]))
        self.round, self.complete, self.elapsed = record["round"], record["complete"], record["elapsed"]
        self.points = [[(float(a), float(b), int(k)) for a, b, k in of_set] for of_set in record["points"]]
        self.history = record["history"]


def _objective_of(teach):
    """The loss of both kinds of steps as one function, so that it is compiled once."""

    def objective(log_amplitude, phase, data):
        links, teacher, taught = data
        learned = teach(log_amplitude, phase, teacher, links.members)
        found = estimate(log_amplitude, phase, links)
        loss = taught * learned + (1 - taught) * energy(log_amplitude, phase, links)
        return loss, {**found._asdict(), "loss": loss}

    return objective
