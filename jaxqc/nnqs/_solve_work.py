"""The heavy parts of a run of `solve`, on one device or over those of a mesh."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxqc.nnqs import _mesh_expand, _selected, _solve_expand
from jaxqc.nnqs._energy import Links, Products, estimate
from jaxqc.nnqs._mesh import fetch, put
from jaxqc.nnqs._mesh_train import MeshNetwork, make_mesh_steps
from jaxqc.nnqs._sparse import sparse_hamiltonian
from jaxqc.nnqs._train import batch_size, evaluate, make_steps
from jaxqc.nnqs._train_sr import Spring, make_spring_steps

_estimate = jax.jit(estimate)


class Task(NamedTuple):
    """What training on a set needs: keys for the network, elements, and the vector that it may learn."""

    keys: jax.Array
    links: Any
    teacher: jax.Array


class OneDevice:
    """On the default device."""

    best_external = staticmethod(_selected.best_external)

    def __init__(self, ham, settings, apply, sector, objective, optimizer, length, real=False):
        self.ham, self.settings, self.apply, self.sector = ham, settings, apply, sector
        self.objective, self.optimizer, self.length = objective, optimizer, length
        self.batch = batch_size(sector)
        if isinstance(optimizer, Spring):
            self.take_steps = make_spring_steps(optimizer, apply, sector, length, real)
        else:
            self.take_steps = make_steps(objective, apply, optimizer, sector, self.batch, length)

    def task(self, configurations, vector) -> Task:
        """Of a set and its eigenvector."""
        settings = self.settings
        if settings.energy == "connected":
            keys, links = _solve_expand.connected_links(self.ham, configurations, settings.epsilon, settings.memory)
        else:
            keys = configurations.keys
            rows, columns, values = sparse_hamiltonian(self.ham, *configurations)
            links = Links(rows, columns, values, jnp.arange(keys.shape[0], dtype=jnp.int32) < configurations.count)
        return Task(keys, links, _teacher(links.members, vector))

    def train(self, state, task, taught, number):
        """Up to `length` steps."""
        data = task.links, task.teacher, np.float64(taught)
        return self.take_steps(state, task.keys, data, np.int32(number))

    def evaluate(self, parameters, keys):
        """Log-amplitudes and phases."""
        return evaluate(self.apply, parameters, keys, self.sector, self.batch)

    def estimate(self, parameters, task):
        """Energy, variance and weight."""
        log_amplitude, phase = self.evaluate(parameters, task.keys)
        return _estimate(log_amplitude, phase, task.links)

    def candidates(self, configurations):
        """A set and everything that is coupled to it."""
        return _solve_expand.candidates(self.ham, configurations, self.settings.epsilon, self.settings.memory)

    def local(self, tree):
        """Arrays on the default device."""
        return tree


@jax.jit
def _teacher(members, vector):
    # Sets are sorted: the members come in the order of the eigenvector.
    position = jnp.cumsum(members, dtype=jnp.int32) - 1
    return jnp.where(members, vector[jnp.clip(position, 0, vector.shape[0] - 1)], 0.0)


class ManyDevices:
    """Over a mesh. What is not heavy, every process computes for itself."""

    def __init__(self, one: OneDevice, mesh):
        if isinstance(one.optimizer, Spring):
            raise ValueError(
                "Argument optimizer of jaxqc.nnqs.solve is Spring, which works on one device; leave out mesh."
            )
        self.one, self.mesh = one, mesh
        self.network = MeshNetwork(mesh, one.apply, one.sector, one.batch)
        self.take_steps = make_mesh_steps(one.objective, self.network, one.optimizer)

    def best_external(self, *arguments):
        """E_PT2 and the most important configurations outside of a set."""
        return _mesh_expand.best_external(*arguments, mesh=self.mesh)

    def candidates(self, configurations):
        """A set and everything that is coupled to it."""
        settings = self.one.settings
        return _mesh_expand.candidates(self.one.ham, configurations, settings.epsilon, settings.memory, self.mesh)

    def task(self, configurations, vector) -> Task:
        """Of a set and its eigenvector."""
        ham, settings = self.one.ham, self.one.settings
        if settings.energy == "connected":
            union = self.candidates(configurations)
            dealt, n = self.network.deal(union.keys)
            limits = settings.epsilon, settings.memory
            links = _mesh_expand.connected_links(ham, configurations, n, union, *limits, mesh=self.mesh)
        else:
            dealt, n = self.network.deal(configurations.keys)
            elements = sparse_hamiltonian(ham, *configurations)
            links = _mesh_expand.projected_links(elements, configurations, n, self.mesh)
        return Task(dealt, links, put(self.mesh, _teacher(fetch(links.members), vector), P()))

    def train(self, state, task, taught, number):
        """Up to `length` steps."""
        state, taught = put(self.mesh, (state, np.float64(taught)), P())
        return self.take_steps(state, task.keys, (task.links, task.teacher, taught), number)

    def evaluate(self, parameters, keys):
        """Log-amplitudes and phases."""
        return self.network.evaluate(self.local(parameters), keys)

    def estimate(self, parameters, task):
        """Energy, variance and weight."""
        log_amplitude, phase, h_psi = self.network.products(self.local(parameters), task.keys, task.links)
        return _estimate(log_amplitude, phase, Products(h_psi, fetch(task.links.members)))

    def local(self, tree):
        """Arrays on the default device."""
        return fetch(tree)
