"""Networks over a mesh: inference, exact gradients and steps of an optimiser, with the same bits on 1 to 8 devices."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._mesh import fetch, gathered, over_mesh, put, share_by_share, shares_of
from jaxqc.nnqs._train import Sector, TrainState, apply_updates, occupations_of, repeated


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

    def deal(self, keys) -> tuple[jax.Array, int]:
        """Keys (n, words) in shares and batches, (shares, batches, rows, words) with sentinels after them."""
        shares, keys = shares_of(self.mesh), np.asarray(keys)
        share = max(1, -(-len(keys) // shares))
        batches = -(-share // self.batch)
        rows = -(-share // batches)
        padded = np.full((shares * batches * rows, keys.shape[1]), SENTINEL)
        padded[: len(keys)] = keys
        return put(self.mesh, padded.reshape(shares, batches, rows, -1), P(self.axis)), len(padded)

    def one(self, parameters, keys) -> tuple[jax.Array, jax.Array]:
        """Log-amplitudes and phases of one batch."""
        log_amplitude, phase = self.apply(parameters, occupations_of(keys, self.sector))
        return log_amplitude.astype(jnp.float64), phase.astype(jnp.float64)

    def forward(self, parameters, dealt) -> tuple[jax.Array, jax.Array]:
        """Within the mesh: log-amplitudes and phases (n,) of all configurations, from the shares of this device."""

        flat = dealt.reshape(-1, *dealt.shape[2:])
        out = share_by_share(lambda keys: self.one(parameters, keys), flat, flat)
        log_amplitude, phase = (gathered(x.reshape(-1), self.axis) for x in out)
        return log_amplitude, phase

    def evaluate(self, parameters, keys) -> tuple[jax.Array, jax.Array]:
        """As `jaxqc.nnqs.evaluate`, for parameters that every process has."""
        dealt, _ = self.deal(keys)
        log_amplitude, phase = fetch(_evaluate(put(self.mesh, parameters, P()), dealt, network=self))
        return log_amplitude[: keys.shape[0]], phase[: keys.shape[0]]

    def value_and_grad(self, objective: Callable, parameters, dealt) -> tuple[Any, Any]:
        """Within the mesh: as `jaxqc.nnqs.value_and_grad`, the gradient added share by share."""
        outputs = self.forward(parameters, dealt)
        value, slopes = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)(*outputs)
        slopes = jax.lax.optimization_barrier(slopes)
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

        parts = share_by_share(share, (dealt, *mine), dealt)

        def total(part):
            part = gathered(part, self.axis)
            out = part[0]
            for k in range(1, part.shape[0]):
                out = out + part[k]
            return out

        return value, jax.lax.optimization_barrier(jax.tree.map(total, parts))


@partial(jax.jit, static_argnames="network")
def _evaluate(parameters, dealt, *, network):
    return over_mesh(network.forward, network.mesh, (P(), P(network.axis)), P())(parameters, dealt)


def make_mesh_steps(objective: Callable, network: MeshNetwork, optimizer, links_spec, length: int = 10) -> Callable:
    """As `make_steps` for the data of `solve`, over a mesh: keys are dealt out, links are `SharedLinks`."""

    def step(keys, data, state):
        (_, auxiliary), gradient = network.value_and_grad(lambda a, p: objective(a, p, data), state.parameters, keys)
        parameters, inner = apply_updates(optimizer, gradient, state)
        return TrainState(parameters, inner, state.step + jnp.int32(1)), auxiliary

    specs = P(), P(network.axis), (links_spec, P(), P()), P()
    return over_mesh(repeated(step, length), network.mesh, specs, P())
