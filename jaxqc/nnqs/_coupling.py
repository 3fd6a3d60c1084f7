"""Coupled configurations: all singles and doubles of many sources, with matrix elements, above a threshold."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._platform import default_platform, on_gpu
from jaxqc.elements import shorten
from jaxqc.integrals._library import handler
from jaxqc.nnqs._bits import SENTINEL, Configurations, less, pack, unpack, word_count
from jaxqc.nnqs._slater_condon import element
from jaxqc.nnqs._tables import Tables, tables_of


class Coupled(NamedTuple):
    """Configurations coupled to sources, a JAX pytree; the first `count` rows of each array are used.

    Attributes:
        keys: (capacity, words) uint64; the same configuration may come from several sources.
        elements: (capacity,) <i|H|j>, Hartree; 0 in unused rows.
        sources: (capacity,) int32 index of the source i.
        count: () int64; where it is larger than the capacity the arrays are incomplete.
    """

    keys: jax.Array
    elements: jax.Array
    sources: jax.Array
    count: jax.Array


def couple(ham, configurations, epsilon: float = 1e-10, *, capacity: int | None = None) -> Coupled:
    r"""All j with |<i|H|j>| > epsilon of each configuration i, without i itself.

    Args:
        ham: `Hamiltonian`.
        configurations: `Configurations`, or (n, words) uint64 keys.
        epsilon: threshold, Hartree. 0 keeps all elements that are not zero.
        capacity: rows of the result to begin with; None estimates it. Where it does not suffice, the call is made again
            with as many as are needed.

    Returns:
        `Coupled`, in the order of sources.

    Raises:
        TypeError, ValueError: an argument is not what it must be.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; H 0 0 0.74", basis="sto-3g")
        >>> ham = jaxqc.nnqs.Hamiltonian.from_molecule(mol)
        >>> int(jaxqc.nnqs.couple(ham, jaxqc.nnqs.aufbau(2, 1, 1)).count)
        1
    """
    name = "jaxqc.nnqs.couple"
    keys, count = check_configurations(ham, configurations, name)
    check_epsilon(epsilon, name)
    thresholds = jnp.full(keys.shape[0], float(epsilon))
    tables = tables_of(ham)

    def call(size, keys=keys, count=count, thresholds=thresholds):
        return couple_fixed(ham, tables, keys, count, thresholds, capacity=size)

    if capacity is None:
        sample = min(64, keys.shape[0])
        few = call(1, keys[:sample], jnp.minimum(count, jnp.int32(sample)), thresholds[:sample])
        capacity = math.ceil(1.1 * int(few.count) * int(count) / max(1, min(sample, int(count))))
    return with_room(call, capacity, lambda out: int(out.count))


def with_room(call, capacity: int, needed, sizes=None):
    """`call(capacity)`, made again with more room while `needed(result)` says that it takes more.

    `sizes` rounds capacities up, `round_capacity` by default.
    """
    sizes = sizes or round_capacity
    size = sizes(capacity)
    while True:
        out = call(size)
        total = needed(out)
        if total <= size:
            return out
        size = sizes(total)


def round_capacity(count: int) -> int:
    """The next of the sizes 4, 5, 6, 7 times a power of two, so that few different programs are compiled.

    Raises:
        MemoryError: more than 2^31 - 1 rows.
    """
    if count >= 2**31:
        raise MemoryError(
            f"{count} coupled configurations are needed at once, more than the 2^31 - 1 that an array can have; give "
            "fewer sources at a time, or a larger epsilon."
        )
    count = max(int(count), 16)
    step = 1 << (count.bit_length() - 3)
    return min(-(-count // step) * step, 2**31 - 1)


_LEAST_ON_GPUS = 1 << 16


def coarse_capacity(count: int) -> int:
    """`round_capacity` in larger steps on GPUs, where unused rows cost less than compiling for one more size."""
    if not on_gpu():
        return round_capacity(count)
    rows = max(_LEAST_ON_GPUS, round_capacity(count))
    bits = (rows - 1).bit_length()
    return min(1 << (bits + bits % 2 if rows <= 1 << 24 else bits), 2**31 - 1)


def uses_library() -> bool:
    """Whether JAX computes where the compiled library runs."""
    return default_platform() == "cpu"


def couple_fixed(ham, tables: Tables, keys, count, thresholds, *, capacity: int) -> Coupled:
    """`couple` with a fixed number of rows, which can be traced: the caller looks whether `count` exceeds it.

    Args:
        ham: `Hamiltonian`.
        tables: those of `ham`.
        keys: (n, words) sources, of which the first `count` are used.
        count: () int32.
        thresholds: (n,) Hartree, one for each source; a negative one keeps zeros of the tables.
        capacity: rows of the results (static).
    """
    if on_gpu() and keys.shape[0]:
        from jaxqc.nnqs import _cuda_coupling

        electrons = ham.nalpha, ham.nbeta
        out = _cuda_coupling.couple(tables, keys, count, thresholds, electrons=electrons, capacity=capacity)
        return Coupled(*out)
    if not uses_library():
        return couple_plain(ham, keys, count, thresholds, capacity=capacity)
    return _couple_compiled(tables, keys, count, thresholds, capacity=capacity)


@partial(jax.jit, static_argnames="capacity")
def _couple_compiled(tables, keys, count, thresholds, *, capacity):
    results = (
        jax.ShapeDtypeStruct((capacity, keys.shape[1]), jnp.uint64),
        jax.ShapeDtypeStruct((capacity,), jnp.float64),
        jax.ShapeDtypeStruct((capacity,), jnp.int32),
        jax.ShapeDtypeStruct((1,), jnp.int64),
    )
    call = jax.ffi.ffi_call(handler("jaxqc_ci_couple"), results)
    out_keys, elements, sources, total = call(keys, count.reshape(1), thresholds, *tables)
    return Coupled(out_keys, elements, sources, total[0])


@partial(jax.jit, static_argnames="capacity")
def couple_plain(ham, keys, count, thresholds, *, capacity: int) -> Coupled:
    """`couple_fixed` in plain JAX: every occupied and empty pair is tried, with elements from `element`."""
    norb, n = ham.norb, keys.shape[0]
    occupied = unpack(keys, norb)
    masks = pack(np.eye(2 * norb, dtype=bool).reshape(2, norb, 2, norb))  # (2, norb, words)
    flips = _flips(occupied, masks, ham.nalpha, ham.nbeta)
    targets = keys[:, None] ^ flips  # (n, candidates, words)
    candidates = targets.shape[1]
    sources = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None], (n, candidates)).reshape(-1)
    targets = targets.reshape(n * candidates, keys.shape[1])
    elements = element(ham, keys[sources], targets)
    kept = (jnp.abs(elements) > thresholds[sources]) & (sources < count)
    place = jnp.where(kept, jnp.cumsum(kept) - 1, capacity)
    return Coupled(
        jnp.full((capacity, keys.shape[1]), SENTINEL).at[place].set(targets, mode="drop"),
        jnp.zeros(capacity).at[place].set(elements, mode="drop"),
        jnp.zeros(capacity, jnp.int32).at[place].set(sources, mode="drop"),
        jnp.sum(kept, dtype=jnp.int64),
    )


def _flips(occupied, masks, nalpha, nbeta):
    """Words to flip for each single and double excitation, (n, candidates, words)."""
    singles, doubles = [], []
    for spin, count in ((0, nalpha), (1, nbeta)):
        order = jnp.argsort(~occupied[:, spin], axis=-1, stable=True)
        bits = masks[spin][order]  # (n, norb, words): occupied ones first
        leave, enter = bits[:, :count], bits[:, count:]
        singles.append(_product(leave, enter))
        doubles.append(_product(_pairs(leave), _pairs(enter)))
    return jnp.concatenate([*singles, *doubles, _product(*singles)], axis=1)


def _pairs(bits):
    first, second = np.triu_indices(bits.shape[1], 1)
    return bits[:, first] ^ bits[:, second]


def _product(a, b):
    both = a[:, :, None] ^ b[:, None]
    return (
        both.reshape(both.shape[0], -1, both.shape[-1]) if both.size else jnp.zeros((len(a), 0, a.shape[-1]), a.dtype)
    )


def check_epsilon(epsilon, name):
    """Refuses thresholds that are none.

    Raises:
        ValueError: it is negative, infinite or not a number.
    """
    if isinstance(epsilon, bool) or not isinstance(epsilon, float | int | np.floating) or not 0 <= epsilon < np.inf:
        raise ValueError(
            f"Argument epsilon of {name} must be a finite number that is not negative, but it is {shorten(epsilon)}."
        )


@jax.jit
def _count_used(keys):
    return jnp.sum(jnp.any(keys != SENTINEL, axis=1), dtype=jnp.int32)


@partial(jax.jit, static_argnames=("norb", "electrons"))
def _count_unfit(keys, count, *, norb, electrons):
    """How many of the first `count` keys have other numbers of electrons, or bits beyond the orbitals."""
    occupied = unpack(keys, norb)
    fits = jnp.all(jnp.sum(occupied, axis=-1, dtype=jnp.int32) == jnp.asarray([electrons], jnp.int32), axis=-1)
    fits = fits & jnp.all(pack(occupied) == keys, axis=-1)
    return jnp.sum(~fits & (jnp.arange(keys.shape[0], dtype=jnp.int32) < count))


def check_configurations(ham, configurations, name) -> Configurations:
    """Keys and count of what a user hands in as configurations.

    Raises:
        TypeError: `ham` is no `Hamiltonian`, or keys are not uint64.
        ValueError: keys have another shape, or other numbers of electrons.
    """
    from jaxqc.nnqs._hamiltonian import Hamiltonian

    if not isinstance(ham, Hamiltonian):
        raise TypeError(f"Argument ham of {name} must be a jaxqc.nnqs.Hamiltonian, but it is {shorten(ham)}.")
    keys, count = configurations[:2] if isinstance(configurations, tuple) else (configurations, None)
    dtype, shape = getattr(keys, "dtype", type(keys).__name__), getattr(keys, "shape", ())
    words = word_count(ham.norb)
    if dtype != jnp.uint64:
        raise TypeError(f"The keys given to {name} must be uint64, but they are {dtype}; jaxqc.nnqs.pack makes them.")
    if len(shape) != 2 or shape[1] != words:
        raise ValueError(
            f"The keys given to {name} have the shape {shape}; with {ham.norb} orbitals they must be (n, {words})."
        )
    keys = jnp.asarray(keys)
    if count is None:
        count = _count_used(keys)
    count = jnp.asarray(count, jnp.int32)
    if not 0 <= int(count) <= keys.shape[0]:
        raise ValueError(f"The count given to {name} is {int(count)}, but there are {keys.shape[0]} keys.")
    unfit = int(_count_unfit(keys, count, norb=ham.norb, electrons=(ham.nalpha, ham.nbeta)))
    if unfit:
        raise ValueError(
            f"{unfit} of the {int(count)} configurations given to {name} do not have the Hamiltonian's {ham.nalpha} "
            f"alpha and {ham.nbeta} beta electrons in {ham.norb} orbitals."
        )
    return Configurations(keys, count)


def check_set(ham, configurations, name) -> Configurations:
    """`check_configurations` for a sorted set without repetitions.

    Raises:
        ValueError: keys do not rise.
    """
    keys, count = check_configurations(ham, configurations, name)
    if keys.shape[0] and not bool(_rises(keys, count)):
        raise ValueError(
            f"The configurations given to {name} must be sorted, each of them once; "
            "jaxqc.nnqs.deduplicate makes them so."
        )
    return Configurations(keys, count)


@jax.jit
def _rises(keys, count):
    inside = jnp.arange(1, keys.shape[0], dtype=jnp.int32) < count
    return jnp.all(less(keys[:-1], keys[1:]) | ~inside)
