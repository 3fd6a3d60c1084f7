r"""Stochastic reconfiguration on small sets: minSR, and SPRING, which adds momentum to it.

With X the centred, weighted derivatives of log psi, (rows, parameters), and e the weighted deviations of local
energies, the step is X^T (X X^T + damping)^-1 (e - m X d) + m d, with d the step before. m = 0 is minSR.
Chen and Heyl, doi:10.1038/s41567-024-02566-1; Goldshlager, Abrahamsen and Lin, doi:10.1016/j.jcp.2024.113351.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxqc._platform import on_gpu
from jaxqc.nnqs._energy import estimate, local_products
from jaxqc.nnqs._network import precise_dot_general
from jaxqc.nnqs._train import Sector, TrainState, chunks, occupations_of, repeated


class Spring(NamedTuple):
    """Settings of SPRING, to be given to `jaxqc.nnqs.solve` as optimiser; `momentum=0` is minSR.

    Memory is that of 8 bytes for each parameter and each configuration of the set.

    Attributes:
        learning_rate: length of a step.
        damping: added to the diagonal of the matrix.
        momentum: share of the step before that is kept, below 1.
        largest: bound of the norm of a change of the parameters.
    """

    learning_rate: float = 0.1
    damping: float = 1e-3
    momentum: float = 0.9
    largest: float = 0.3

    def init(self, parameters):
        """The step before the first one: zero."""
        return jax.tree.map(jnp.zeros_like, parameters)


def make_spring_steps(spring: Spring, apply: Callable, sector: Sector, length: int = 10, real: bool = False):
    """As `make_steps`, for the data of `solve`: links, a vector to learn, and whether it is learned (1 or 0).

    Phases of a `real` network have no derivatives, which leaves half of the rows and a quarter of the matrix.
    """
    parts = 1 if real else 2

    def jacobian(parameters, keys):
        """Derivatives of log-amplitude and phase of every configuration, (parts, n, parameters)."""
        flat, restore = ravel_pytree(parameters)

        def single(vector, occupation):
            outputs = apply(restore(vector), occupation[None])
            return jnp.concatenate(outputs[:parts]).astype(jnp.float64)

        # Batches of equal lengths: a shorter last one would be compiled, too.
        number = -(-keys.shape[0] // (256 if on_gpu() else 32))
        batches = chunks(keys, -(-keys.shape[0] // number))
        of_each = jax.vmap(partial(jax.jacrev(single), flat))
        rows = jax.lax.map(lambda batch: of_each(occupations_of(batch, sector)), batches)
        return jnp.moveaxis(rows.reshape(-1, *rows.shape[2:])[: keys.shape[0]], 1, 0)

    def step(keys, data, state):
        links, teacher, taught = data
        log_amplitude, phase = apply(state.parameters, occupations_of(keys, sector))
        log_amplitude, phase = log_amplitude.astype(jnp.float64), phase.astype(jnp.float64)
        psi, h_psi = local_products(log_amplitude, phase, links)
        # To learn c is to find the ground state of -|c><c|.
        h_psi = taught * (-teacher[None] * (psi @ teacher)[:, None]) + (1 - taught) * h_psi
        norm = jnp.sum(psi * psi)
        value = jnp.sum(psi * h_psi) / norm
        share = jnp.sum(psi * psi, axis=0) / norm
        size = jnp.sqrt(jnp.maximum(share, 1e-300))
        error = jnp.stack(
            [
                jnp.sum(psi * (h_psi - value * psi), axis=0) / norm / size,
                (psi[0] * h_psi[1] - psi[1] * h_psi[0]) / norm / size,
            ][:parts]
        ).reshape(-1)
        rows = jacobian(state.parameters, keys)
        share, size = share.astype(rows.dtype), size.astype(rows.dtype)
        # Sums rather than products of matrices, of which GPUs take 11 bits.
        rows = (rows - jnp.sum(share[None, :, None] * rows, axis=1, keepdims=True)) * size[None, :, None]
        rows = rows.reshape(-1, rows.shape[-1])
        before, restore = ravel_pytree(state.optimizer)
        kept = spring.momentum * before
        gram = precise_dot_general(rows, rows, (((1,), (1,)), ((), ()))).astype(jnp.float64)
        shifted = gram + spring.damping * jnp.eye(gram.shape[0])
        solved = jnp.linalg.solve(shifted, error - jnp.sum(rows * kept[None], axis=1).astype(jnp.float64))
        change = jnp.sum(solved.astype(rows.dtype)[:, None] * rows, axis=0) + kept
        length_of = spring.learning_rate * jnp.linalg.norm(change)
        scale = spring.learning_rate * jnp.minimum(1.0, spring.largest / jnp.maximum(length_of, 1e-30))
        update = restore(scale * change)
        parameters = jax.tree.map(jnp.subtract, state.parameters, update)
        found = estimate(log_amplitude, phase, links)
        record = {**found._asdict(), "loss": value}
        return TrainState(parameters, restore(change), state.step + jnp.int32(1)), record

    return repeated(step, length)
