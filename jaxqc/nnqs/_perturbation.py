"""Epstein-Nesbet perturbation theory of second order on top of a vector on a set of configurations."""

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc._checks import checked_count
from jaxqc._platform import on_gpu
from jaxqc.elements import shorten
from jaxqc.integrals._library import handler
from jaxqc.nnqs._bits import SENTINEL, search
from jaxqc.nnqs._coupling import (
    check_epsilon,
    check_set,
    coarse_capacity,
    couple_fixed,
    uses_library,
    with_room,
)
from jaxqc.nnqs._deduplicate import deduplicate
from jaxqc.nnqs._slater_condon import diagonal
from jaxqc.nnqs._tables import tables_of

MEMORY = 2 << 30  # bytes that the terms of one part may take
_LEAST_MEMORY = 1 << 14  # with less, small molecules, too, would have parts without end
_MOST_TERMS = 1 << 30  # at once; an array has less than 2^31 rows
_LARGEST_ENERGY = 1e12  # Hartree
_SAMPLES = 1024  # sources from which the number of terms is estimated


class External(NamedTuple):
    """Configurations outside of the set that a vector is coupled to, a JAX pytree.

    Attributes:
        keys: (capacity, words) uint64, in no order that means anything.
        sums: (capacity,) sum_i H_ki c_i, Hartree; 0 in unused rows. Each configuration has one row that is used.
        energies: (capacity,) <k|H|k>, Hartree.
        count: () int64.
    """

    keys: jax.Array
    sums: jax.Array
    energies: jax.Array
    count: jax.Array


def pt2(ham, configurations, vector, energy, epsilon: float = 1e-8, *, memory: int = MEMORY) -> float:
    r"""E_PT2 = sum_k (sum_i H_ki c_i)^2 / (E - H_kk) over all configurations k outside of the set.

    Args:
        ham: `Hamiltonian`.
        configurations: `Configurations`, or (n, words) uint64 keys.
        vector: (n,) or (count,) normalised coefficients c, for example of `jaxqc.nnqs.lowest`.
        energy: E, Hartree, usually <c|H|c>.
        epsilon: terms |H_ki c_i| up to it are left out, Hartree.
        memory: bytes for the terms at once, 16 KiB or more; where they need more they are made in parts.

    Returns:
        Hartree. It is no bound.

    Raises:
        TypeError, ValueError: an argument is not what it must be.
    """
    name = "jaxqc.nnqs.pt2"
    check_epsilon(epsilon, name)
    memory = checked_memory(memory, name)
    energy = _checked_energy(energy, name)
    keys, count = check_set(ham, configurations, name)
    vector = jnp.asarray(vector, jnp.float64)
    if vector.ndim != 1 or vector.shape[0] not in (keys.shape[0], int(count)):
        raise ValueError(
            f"Argument vector of {name} has the shape {vector.shape}; it must have one coefficient for each of the "
            f"{int(count)} configurations."
        )
    if not bool(jnp.all(jnp.isfinite(vector))):
        raise ValueError(f"Argument vector of {name} has coefficients that are infinite or not a number.")
    vector = jnp.pad(vector, (0, keys.shape[0] - vector.shape[0]))
    parts = external(ham, keys, count, vector, epsilon, memory)
    total = ExactSum()
    for part in parts:
        total.add(exact_sum(contributions(part, energy)))
    return float(total)


def checked_memory(memory, name) -> int:
    """A budget of bytes.

    Raises:
        ValueError: it is no whole number, or too small.
    """
    return checked_count(memory, "memory", name, _LEAST_MEMORY)


def _checked_energy(energy, name):
    try:
        value = float(energy)
    except (TypeError, ValueError):
        value = math.nan
    if not abs(value) < _LARGEST_ENERGY:
        raise ValueError(
            f"Argument energy of {name} must be one finite number, in Hartree, but it is {shorten(energy)}; give that "
            "of the vector."
        )
    return value


_UNIT = 2.0**58  # of sums in whole numbers, 1 / Hartree


@jax.jit
def exact_sum(terms) -> tuple[jax.Array, jax.Array]:
    """A sum in units of 2^-58 Hartree, () int64, and in floating point, () float64.

    Whole numbers can be added in any order, so that the sum is the same to the bit however terms are dealt out.
    """
    safe = jnp.clip(terms, -8.0, 8.0)
    return jnp.sum(jnp.round(safe * _UNIT).astype(jnp.int64)), jnp.sum(terms)


class ExactSum:
    """Adds results of `exact_sum`; what is too large for whole numbers is added in floating point."""

    def __init__(self):
        self.whole, self.inexact, self.large = 0, 0.0, False

    def add(self, part) -> None:
        """Adds one."""
        whole, inexact = int(part[0]), float(part[1])
        self.whole += whole
        self.inexact += inexact
        self.large = self.large or not abs(whole / _UNIT - inexact) < 1e-6

    def __float__(self):
        return self.inexact if self.large else self.whole / _UNIT


@jax.jit
def contributions(part: External, energy) -> jax.Array:
    """(capacity,) terms of E_PT2, Hartree; 0 in unused rows."""
    used = part.sums != 0
    return jnp.where(used, part.sums**2 / jnp.where(used, energy - part.energies, 1.0), 0.0)


def external(ham, keys, count, vector, epsilon, memory=MEMORY) -> Iterator[External]:
    """The configurations outside of the set that `vector` (n,) is coupled to, in parts of about `memory` bytes each."""
    if int(count) == 0:
        return
    vector, thresholds = term_thresholds(vector, count, epsilon)
    terms = estimate_terms(ham, keys, int(count), thresholds)
    parts, tables = parts_of_terms(terms, keys.shape[1], memory), tables_of(ham)
    room = rows_of_terms(terms / parts)
    for part in range(parts):

        def call(size, part=part):
            return make_external(ham, tables, keys, count, vector, thresholds, part, parts, size)

        found, _ = with_room(call, room, lambda out: int(out[1]), coarse_capacity)
        room = max(room, found.sums.shape[0])  # other parts need about as much
        yield found


def parts_of_terms(terms: float, words: int, memory: float) -> int:
    """Into how many parts terms are cut so that each takes up to about `memory` bytes."""
    return max(1, math.ceil(terms / min(memory / (16 * (2 + words)), _MOST_TERMS)))


def rows_of_terms(terms: float) -> int:
    """Rows of `External` for so many terms: many are of the same configurations, but GPUs need a row for each."""
    return coarse_capacity(math.ceil((1.1 if on_gpu() else 0.7) * terms))


def make_external(ham, tables, keys, count, vector, thresholds, part, parts, capacity) -> tuple[External, jax.Array]:
    """One part of `external`, and how many rows it needs; can be traced, on GPUs with `part`, too."""
    make = _external_cuda if on_gpu() else _external_compiled if uses_library() else _external_plain
    return make(ham, tables, keys, count, vector, thresholds, part, parts, capacity)


@jax.jit
def term_thresholds(vector, count, epsilon):
    """The coefficients that are used, and what elements must exceed for epsilon."""
    used = (jnp.arange(vector.shape[0], dtype=jnp.int32) < count) & (vector != 0)
    vector = jnp.where(used, vector, 0.0)
    return vector, jnp.where(used, epsilon / jnp.abs(jnp.where(used, vector, 1.0)), jnp.inf)


def estimate_terms(ham, keys, count, thresholds):
    """About how many terms there are, from some of the sources."""
    chosen = np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int32))
    some, limits = _rows(keys, thresholds, np.pad(chosen, (0, _SAMPLES - chosen.size)))
    coupled = couple_fixed(ham, tables_of(ham), some, np.int32(chosen.size), limits, capacity=1)
    return int(coupled.count) * count / chosen.size


@jax.jit
def _rows(keys, thresholds, at):
    return keys[at], thresholds[at]


def _external_compiled(ham, tables, keys, count, vector, thresholds, part, parts, capacity):
    operands = tables, ham.constant, keys, count, vector, thresholds
    found = _call(*operands, part=part, parts=parts, capacity=capacity)
    return found, found.count


def _external_cuda(ham, tables, keys, count, vector, thresholds, part, parts, capacity):
    from jaxqc.nnqs import _cuda_coupling

    options = {"electrons": (ham.nalpha, ham.nbeta), "capacity": capacity, "part": part, "parts": parts}
    *found, terms = _cuda_coupling.external(tables, ham.constant, keys, count, vector, thresholds, **options)
    return External(*found), terms


@partial(jax.jit, static_argnames=("part", "parts", "capacity"))
def _call(tables, constant, keys, count, vector, thresholds, *, part, parts, capacity):
    results = (
        jax.ShapeDtypeStruct((capacity, keys.shape[1]), jnp.uint64),
        jax.ShapeDtypeStruct((capacity,), jnp.float64),
        jax.ShapeDtypeStruct((capacity,), jnp.float64),
        jax.ShapeDtypeStruct((1,), jnp.int64),
    )
    call = jax.ffi.ffi_call(handler("jaxqc_ci_external"), results)
    attributes = {"part": np.int64(part), "parts": np.int64(parts)}
    out_keys, sums, energies, total = call(keys, count.reshape(1), vector, thresholds, *tables, **attributes)
    return External(out_keys, sums, energies + constant, total[0])


def _external_plain(ham, tables, keys, count, vector, thresholds, part, parts, capacity):
    """The same from coupling, de-duplication and sums in plain JAX."""
    coupled = with_room(
        lambda size: couple_fixed(ham, tables, keys, count, thresholds, capacity=size),
        capacity * parts,
        lambda out: int(out.count),
    )
    inside = jnp.all(keys[jnp.minimum(search(keys, coupled.keys), keys.shape[0] - 1)] == coupled.keys, axis=1)
    mine = coupled.keys[:, -1] % jnp.uint64(parts) == jnp.uint64(part)
    wanted = jnp.where((mine & ~inside)[:, None], coupled.keys, SENTINEL)
    unique = deduplicate(wanted, inverse=True)
    sums = jax.ops.segment_sum(coupled.elements * vector[coupled.sources], unique.inverse, wanted.shape[0])
    sums = jnp.where(jnp.arange(wanted.shape[0], dtype=jnp.int32) < unique.count, sums, 0.0)
    found = External(unique.keys, sums, diagonal(ham, unique.keys), unique.count.astype(jnp.int64))
    return found, found.count
