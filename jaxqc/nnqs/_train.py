"""Batches through a network, exact gradients of any loss of its amplitudes, and steps of an optimiser."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import on_gpu
from jaxqc.nnqs._bits import SENTINEL, aufbau, unpack
from jaxqc.scf._compile import outermost

# XLA would try hundreds of its own kernels for each product of matrices: twice the time of compilation on GPUs.
_QUICK = {"xla_gpu_enable_triton_gemm": False}


class Sector(NamedTuple):
    """Orbitals and electrons of a network's configurations (static)."""

    norb: int
    nalpha: int
    nbeta: int


class TrainState(NamedTuple):
    """What a step needs: parameters, the optimiser's state, and how many steps were taken, () int32."""

    parameters: Any
    optimizer: Any
    step: jax.Array


def batch_size(sector: Sector, width: int = 32, hidden: int = 512, layers: int = 4) -> int:
    """How many configurations pass the network at once, a power of two from 64 to 4096 with activations up to 1 GiB.

    It does not follow from a budget, so that the order of sums, and with it every bit of a result, does not either.

    Args:
        sector: orbitals and electrons.
        width, hidden, layers: of the network.
    """
    floats = sector.norb * layers * (24 * width + 8 * sector.norb) + 16 * hidden
    affordable = max((1 << 30) // (4 * floats), 64)
    return min(1 << (affordable.bit_length() - 1), 4096)


def inference_batch(apply: Callable, batch: int) -> int:
    """How many configurations pass a network at once where no derivative is taken: at least `batch`."""
    return max(batch, getattr(getattr(apply, "__self__", None), "inference_batch", 1))


def occupations_of(keys, sector: Sector) -> jax.Array:
    """Occupations for a network, (n, 2, norb) bool; unused rows become the lowest configuration."""
    unused = jnp.all(keys == jnp.uint64(SENTINEL), axis=-1, keepdims=True)
    return unpack(jnp.where(unused, aufbau(*sector), keys), sector.norb)


def check_outputs(apply: Callable, parameters, sector: Sector, function_name: str) -> None:
    """Refuses a network that does not give a logarithm and a phase for each configuration.

    Raises:
        ValueError: it gives something else.
    """
    found = jax.eval_shape(apply, parameters, jax.ShapeDtypeStruct((3, 2, sector.norb), jnp.bool_))
    leaves = jax.tree.leaves(found)
    floats = all(jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape == (3,) for leaf in leaves)
    if not (isinstance(found, tuple) and len(found) == len(leaves) == 2 and floats):
        said = ", ".join(f"{leaf.dtype}{leaf.shape}" for leaf in leaves)
        raise ValueError(
            f"Argument module of {function_name} must have a method apply(parameters, occupations) that gives "
            f"(log_amplitude, phase), two real arrays (n,), but for n = 3 configurations it gives {said}."
        )


def chunks(keys, batch: int) -> jax.Array:
    """Keys in batches, (batches, batch, words), with sentinels after them."""
    missing = -keys.shape[0] % batch
    padded = jnp.concatenate([keys, jnp.full((missing, keys.shape[1]), SENTINEL, jnp.uint64)])
    return padded.reshape(-1, batch, keys.shape[1])


def where_used(network: Callable, keys) -> tuple[jax.Array, jax.Array]:
    """What a network gives for a batch, unless all of it are sentinels: lists are padded to few lengths, by a quarter.

    Those have the amplitude of configurations outside of the sector.
    """

    def nothing(keys):
        return jnp.full(keys.shape[0], -1e30), jnp.zeros(keys.shape[0])

    return jax.lax.cond(jnp.any(keys != SENTINEL), network, nothing, keys)


@partial(jax.jit, static_argnames=("apply", "sector", "batch"))
def evaluate(apply: Callable, parameters, keys, sector: Sector, batch: int = 4096) -> tuple[jax.Array, jax.Array]:
    """Log-amplitudes and phases of many configurations, in batches.

    Args:
        apply: `module.apply` of a network.
        parameters: its parameters.
        keys: (n, words) uint64; sentinels are allowed and mean nothing in the result.
        sector: orbitals and electrons.
        batch: how many at once, or more where the network says so by an attribute `inference_batch`.

    Returns:
        log_amplitude, phase: (n,) float64 each.
    """
    batch = inference_batch(apply, batch)
    n, batch = keys.shape[0], min(batch, max(keys.shape[0], 1))

    def one(chunk):
        log_amplitude, phase = apply(parameters, occupations_of(chunk, sector))
        return log_amplitude.astype(jnp.float64), phase.astype(jnp.float64)

    items = chunks(keys, batch)
    log_amplitude, phase = jax.lax.map(partial(where_used, one) if items.shape[0] > 1 else one, items)
    return log_amplitude.reshape(-1)[:n], phase.reshape(-1)[:n]


def value_and_grad(objective: Callable, apply: Callable, parameters, keys, sector: Sector, batch: int = 4096):
    """A loss and its exact gradient with respect to the parameters, in memory of one batch.

    The network runs forward over all batches; the loss gives its derivatives with respect to every log-amplitude and
    phase; those configurations where they are not zero then run forward and backward in batches, and the gradients are
    added in order. (Of the energy `connected` these are the members of the set, few of all that are coupled to it.)

    Args:
        objective: (log_amplitude, phase) -> loss () or (loss, auxiliary), with (n,) float64 arguments.
        apply, parameters, keys, sector, batch: as for `evaluate`.

    Returns:
        What `objective` gives, and the gradient, like `parameters`.
    """

    def loss(log_amplitude, phase):
        out = objective(log_amplitude, phase)
        return out if isinstance(out, tuple) else (out, None)

    slopes = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    n, batch = keys.shape[0], min(batch, keys.shape[0])

    def network(parameters, chunk):
        log_amplitude, phase = apply(parameters, occupations_of(chunk, sector))
        return log_amplitude.astype(jnp.float64), phase.astype(jnp.float64)

    if n == batch:
        outputs, pullback = jax.vjp(lambda p: network(p, keys), parameters)
        value, cotangents = slopes(*outputs)
        return value, pullback(cotangents)[0]
    value, cotangents = slopes(*evaluate(apply, parameters, keys, sector, batch))
    used = (cotangents[0] != 0) | (cotangents[1] != 0)
    place = jnp.where(used, jnp.cumsum(used, dtype=jnp.int32) - 1, n)
    batches = chunks(jnp.full_like(keys, SENTINEL).at[place].set(keys, mode="drop"), batch)
    moved = (jnp.zeros(batches.shape[0] * batch).at[place].set(c, mode="drop").reshape(-1, batch) for c in cotangents)
    items = batches, *moved

    def add(k, total):
        chunk, by_size, by_phase = jax.tree.map(lambda x: x[k], items)
        _, pullback = jax.vjp(lambda p: network(p, chunk), parameters)
        return jax.tree.map(jnp.add, total, pullback((by_size, by_phase))[0])

    number = (jnp.sum(used, dtype=jnp.int32) + jnp.int32(batch - 1)) // jnp.int32(batch)
    return value, jax.lax.fori_loop(0, number, add, jax.tree.map(jnp.zeros_like, parameters))


def make_steps(objective: Callable, apply: Callable, optimizer, sector: Sector, batch: int = 4096, length: int = 10):
    """A compiled function that takes up to `length` steps of an Optax optimiser.

    Args:
        objective: (log_amplitude, phase, data) -> loss () and a pytree of auxiliary results.
        apply: `module.apply` of a network.
        optimizer: an `optax.GradientTransformation`.
        sector, batch: as for `evaluate`.
        length: most steps in one call.

    Returns:
        (state, keys, data, number) -> state, auxiliary results of every step, (length, ...), zero from `number` on.

    Raises:
        ImportError: Optax is not installed.
    """
    import_optax()

    def step(keys, data, state):
        (_, auxiliary), gradient = value_and_grad(
            lambda a, p: objective(a, p, data), apply, state.parameters, keys, sector, batch
        )
        parameters, inner = apply_updates(optimizer, gradient, state)
        return TrainState(parameters, inner, state.step + jnp.int32(1)), auxiliary

    return repeated(step, length)


def apply_updates(optimizer, gradient, state: TrainState) -> tuple[Any, Any]:
    """New parameters and the new state of an Optax optimiser."""
    with jax.numpy_dtype_promotion("standard"):  # Optax does not keep the strict rules
        updates, inner = optimizer.update(gradient, state.optimizer, state.parameters)
        return import_optax().apply_updates(state.parameters, updates), inner


def trial(optimizer, state: TrainState) -> list[str]:
    """What an optimiser makes of made-up gradients, to few digits: so learning rates are told apart."""
    if not hasattr(optimizer, "update"):
        return []

    @jax.jit
    def sums(state):
        found = []
        for size in (1.0, -1e-4, 3e-3):  # above and below bounds of its norm
            gradient = jax.tree.map(lambda x, size=size: jnp.full_like(x, size), state.parameters)
            with jax.numpy_dtype_promotion("standard"):  # Optax does not keep the strict rules
                change, inner = optimizer.update(gradient, state.optimizer, state.parameters)
            found.append(jnp.stack([jnp.sum(jnp.abs(x).astype(jnp.float64)) for x in jax.tree.leaves(change)]))
            state = state._replace(optimizer=inner)
        return jnp.stack(found)

    return [f"{x:.3e}" for x in np.asarray(sums(state)).ravel()]


def repeated(step: Callable, length: int):
    """(keys, data, state) -> state, record, as a compiled function that is described in `make_steps`."""

    def steps(state, keys, data, number):
        shapes = jax.eval_shape(partial(step, keys, data), state)[1]
        records = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)

        def body(k, carry):
            state, records = carry
            state, record = step(keys, data, state)
            return state, jax.tree.map(lambda r, x: r.at[k].set(x), records, record)

        return jax.lax.fori_loop(0, jnp.minimum(number, length), body, (state, records))

    plain, quick = jax.jit(steps), jax.jit(steps, compiler_options=_QUICK)
    return lambda *arguments: (quick if on_gpu() and outermost(arguments) else plain)(*arguments)


def import_optax():
    """Optax.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import optax
    except ModuleNotFoundError as error:
        raise ImportError(
            "Training a neural wave function needs Optax; install it with `pip install optax`, or jaxqc with the "
            "extra: `pip install 'jaxqc[train]'`."
        ) from error
    return optax
