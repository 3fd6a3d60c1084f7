"""Networks over a mesh: inference, exact gradients and steps of an optimiser, with the same bits on 1 to 8 devices."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxqc.nnqs._bits import SENTINEL, padded_keys
from jaxqc.nnqs._energy import Products, SharedLinks, local_products
from jaxqc.nnqs._mesh import (
    fetch,
    first_copy,
    gathered,
    over_mesh,
    put,
    share_by_share,
    share_sum,
    shares_of,
)
from jaxqc.nnqs._train import Sector, TrainState, apply_updates, inference_batch, occupations_of, where_used


class MeshNetwork(NamedTuple):
    """A network over the devices of a mesh (static)."""

    mesh: Mesh
    apply: Callable
    sector: Sector
    batch: int

    @property
    def axis(self) -> str:
        """Name of the axis."""
        return self.mesh.axis_names[0]

    def deal(self, keys, derivatives: bool = False) -> tuple[jax.Array, int]:
        """Keys (n, words) in shares and batches, (shares, batches, rows, words) with sentinels after them.

        The shares take batches in turns, so that each has its part of those that are sentinels only. For `backward`
        batches are smaller, and those of a share come one after the other.
        """
        shares = shares_of(self.mesh)
        share = max(1, -(-len(keys) // shares))
        batches = -(-share // (self.batch if derivatives else inference_batch(self.apply, self.batch)))
        rows = -(-share // batches)
        total = shares * batches * rows
        padded = padded_keys(keys, total)
        if derivatives:
            dealt = padded.reshape(shares, batches, rows, -1)
        else:
            dealt = padded.reshape(batches, shares, rows, -1).swapaxes(0, 1)
        return put(self.mesh, dealt, P(self.axis)), total

    def one(self, parameters, keys) -> tuple[jax.Array, jax.Array]:
        """Log-amplitudes and phases of one batch."""
        log_amplitude, phase = self.apply(parameters, occupations_of(keys, self.sector))
        return log_amplitude.astype(jnp.float64), phase.astype(jnp.float64)

    def forward(self, parameters, dealt) -> tuple[jax.Array, jax.Array]:
        """Within the mesh: log-amplitudes and phases (n,) of all configurations, from the shares of this device."""

        flat = dealt.reshape(-1, *dealt.shape[2:])
        rows = len(flat) * self.mesh.devices.size
        out = share_by_share(lambda keys: where_used(partial(self.one, parameters), keys), flat, flat, rows)
        log_amplitude, phase = (self.in_turns(x.reshape(dealt.shape[:3])) for x in out)
        return log_amplitude, phase

    def in_turns(self, x) -> jax.Array:
        """Within the mesh: what belongs to (shares, batches, rows) of this device, of all in the order of the list."""
        return gathered(x, self.axis).swapaxes(0, 1).reshape(-1, *x.shape[3:])

    def evaluate(self, parameters, keys) -> tuple[jax.Array, jax.Array]:
        """As `jaxqc.nnqs.evaluate`, for parameters that every process has."""
        dealt, _ = self.deal(keys)
        log_amplitude, phase = first_copy(_evaluate(put(self.mesh, parameters, P()), dealt, network=self))
        return log_amplitude[: keys.shape[0]], phase[: keys.shape[0]]

    def products(self, parameters, dealt, links) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log-amplitudes, phases and products with the Hamiltonian, for parameters that every process has."""
        return fetch(_products(put(self.mesh, parameters, P()), dealt, links, network=self))

    def backward(self, parameters, dealt, slopes) -> Any:
        """Within the mesh: the gradient from the derivatives (n,) of a loss, added share by share."""
        shares, batches, rows = dealt.shape[:3]
        first = jax.lax.axis_index(self.axis) * (shares * batches * rows)
        mine = [jax.lax.dynamic_slice_in_dim(s, first, shares * batches * rows) for s in slopes]
        mine = [s.reshape(shares, batches, rows) for s in mine]

        def batch(total, item):
            keys, *cotangents = item
            _, pullback = jax.vjp(lambda p: self.one(p, keys), parameters)
            return jax.tree.map(jnp.add, total, pullback(tuple(cotangents))[0]), None

        def share(items):
            return jax.lax.scan(batch, jax.tree.map(jnp.zeros_like, parameters), items)[0]

        parts = share_by_share(share, (dealt, *mine), dealt, shares_of(self.mesh))
        parts = jax.tree.map(lambda part: gathered(part, self.axis), parts)
        return share_sum(parts, dealt)


@partial(jax.jit, static_argnames="network")
def _evaluate(parameters, dealt, *, network):
    return over_mesh(network.forward, network.mesh, (P(), P(network.axis)), P())(parameters, dealt)


@partial(jax.jit, static_argnames="network")
def _products(parameters, dealt, links, *, network):
    """Log-amplitudes, phases and products with the Hamiltonian, on all devices."""

    def local(parameters, dealt, links):
        log_amplitude, phase = network.forward(parameters, dealt)
        return log_amplitude, phase, local_products(log_amplitude, phase, links)[1]

    specs = P(), P(network.axis), spec_of_links(network.mesh)
    return over_mesh(local, network.mesh, specs, P())(parameters, dealt, links)


@partial(jax.jit, static_argnames="network")
def _gradient(parameters, dealt, slopes, *, network):
    return over_mesh(network.backward, network.mesh, (P(), P(network.axis), P()), P())(parameters, dealt, slopes)


@partial(jax.jit, static_argnames="network")
def _rows_at(dealt, places, *, network):
    """Keys at places of the list that is dealt out, on all devices; sentinels beyond its end."""

    def local(dealt, places):
        return network.in_turns(dealt).at[places].get(mode="fill", fill_value=SENTINEL)

    return over_mesh(local, network.mesh, (P(network.axis), P()), P())(dealt, places)


def make_mesh_steps(objective: Callable, network: MeshNetwork, optimizer) -> Callable:
    """As `make_steps` for the data of `solve`, over a mesh: keys are dealt out, links are `SharedLinks`.

    What is cheap runs as a program for one device: compilers write programs for one and for several differently.
    """

    @jax.jit
    def slopes_of(outputs, places, members, teacher, taught):
        log_amplitude, phase, h_psi = outputs
        data = Products(h_psi, members), teacher, taught
        differentiated = jax.value_and_grad(lambda *x: objective(*x, data), argnums=(0, 1), has_aux=True)
        (_, auxiliary), slopes = differentiated(log_amplitude, phase)
        return auxiliary, [s.at[places].get(mode="fill", fill_value=0.0) for s in slopes]

    @jax.jit
    def update(state, gradient):
        return TrainState(*apply_updates(optimizer, gradient, state), state.step + jnp.int32(1))

    def steps(state, dealt, data, number):
        links, teacher, taught = data
        places, operands = first_copy((links.places, (links.members, teacher, taught)))
        # Losses depend on the members of the set only, few of all that are coupled to it.
        own, total = network.deal(first_copy(_rows_at(dealt, links.places, network=network)), derivatives=True)
        places = jnp.pad(places, (0, total - len(places)), constant_values=np.iinfo(np.int32).max)
        state, records = first_copy(state), []
        for _ in range(number):
            parameters = put(network.mesh, state.parameters, P())
            outputs = first_copy(_products(parameters, dealt, links, network=network))
            auxiliary, slopes = slopes_of(outputs, places, *operands)
            gradient = _gradient(parameters, own, put(network.mesh, slopes, P()), network=network)
            state = update(state, first_copy(gradient))
            records.append(auxiliary)
        return state, jax.tree.map(lambda *x: jnp.stack(x), *records)

    return steps


def spec_of_links(mesh) -> SharedLinks:
    """Which arrays of `SharedLinks` are dealt out."""
    (axis,) = mesh.axis_names
    return SharedLinks(P(axis), P(axis), P(axis), P(), P(), axis)  # pyright: ignore[reportArgumentType]
