"""Growing a set over the devices of a mesh: couplings of each device's sources, and perturbation theory in parts."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxqc._platform import on_gpu
from jaxqc.nnqs._bits import SENTINEL, Configurations, padded_keys, search
from jaxqc.nnqs._coupling import Coupled, coarse_capacity, couple_fixed, round_capacity
from jaxqc.nnqs._deduplicate import deduplicate
from jaxqc.nnqs._energy import SharedLinks
from jaxqc.nnqs._mesh import fetch, first_copy, over_mesh, put, shares_of
from jaxqc.nnqs._perturbation import (
    contributions,
    estimate_terms,
    make_external,
    parts_of_terms,
    rows_of_terms,
    term_thresholds,
)
from jaxqc.nnqs._selected import best_of_parts, largest, positions
from jaxqc.nnqs._slater_condon import diagonal
from jaxqc.nnqs._solve_expand import sources_in_batch
from jaxqc.nnqs._tables import tables_of


def _dealt_sources(configurations, mesh):
    """The rows of a set in equal shares, one for each device, with sentinels at the end: (size * share, words)."""
    count, size, shares = int(configurations.count), mesh.devices.size, shares_of(mesh)
    total = -(-max(count, 1) // shares) * shares
    keys = np.full((total, configurations.keys.shape[1]), SENTINEL)
    keys[:count] = np.asarray(configurations.keys[:count])
    return put(mesh, keys, P(mesh.axis_names[0])), total // size


def _couple(ham, tables, keys, epsilon, capacity) -> Coupled:
    """Of sources with sentinels at the end."""
    count = jnp.sum(jnp.any(keys != SENTINEL, axis=1), dtype=jnp.int32)
    return couple_fixed(ham, tables, keys, count, jnp.broadcast_to(epsilon, keys.shape[0]), capacity=capacity)


@partial(jax.jit, static_argnames=("mesh", "rows", "capacity"))
def _couple_batch(ham, tables, sources, epsilon, start, *, mesh, rows, capacity):
    """Couplings of some of the sources of each device, and the largest number of them on a device."""
    (axis,) = mesh.axis_names

    def local(ham, tables, sources, epsilon, start):
        found = _couple(ham, tables, jax.lax.dynamic_slice_in_dim(sources, start, rows), epsilon, capacity)
        most = jax.lax.pmax(found.count, axis)
        return Coupled(found.keys, found.elements, found.sources + start, found.count[None]), most

    mapped = over_mesh(local, mesh, (P(), P(), P(axis), P(), P()), (P(axis), P()))
    return mapped(ham, tables, sources, epsilon, start)


def _batches(ham, sources, share, epsilon, memory, mesh):
    """Couplings of all sources, a batch of each device after the other."""
    ham, tables, epsilon = put(mesh, (ham, tables_of(ham), np.float64(epsilon)), P())
    rows, capacity = min(sources_in_batch(ham, memory), share), 16
    for start in range(0, share, rows):
        operands, options = (ham, tables, sources, epsilon, np.int32(start)), {"rows": min(rows, share - start)}
        while True:
            coupled, most = _couple_batch(*operands, mesh=mesh, capacity=capacity, **options)
            if int(most) <= capacity:
                break
            capacity = coarse_capacity(int(1.1 * int(most)))
        yield coupled


def candidates(ham, configurations, epsilon: float, memory: int, mesh) -> Configurations:
    """As `_solve_expand.candidates`, with sources and candidates over a mesh; every process gets all of them.

    Each device keeps the unique ones among those of its own sources, and once, at the end, they are exchanged.
    """
    union, share = _dealt_sources(configurations, mesh)
    for coupled in _batches(ham, union, share, epsilon, memory, mesh):
        union, most = _merged(union, coupled.keys, mesh=mesh)
        union = _resized(union, mesh=mesh, rows=coarse_capacity(int(most)))
    union, count = deduplicate(union, mesh)
    size = round_capacity(int(count))
    keys = first_copy(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(union))
    return Configurations(keys[:size] if size <= keys.shape[0] else padded_keys(keys, size), jnp.int32(count))


@partial(jax.jit, static_argnames="mesh")
def _merged(a, b, *, mesh):
    """Sorted unique rows of each device, and the largest number of them on one."""
    (axis,) = mesh.axis_names

    def local(a, b):
        keys, count = deduplicate(jnp.concatenate([a, b]))
        return keys, jax.lax.pmax(count, axis)

    return over_mesh(local, mesh, P(axis), (P(axis), P()))(a, b)


@partial(jax.jit, static_argnames=("mesh", "rows"))
def _resized(keys, *, mesh, rows):
    """So many rows of each device: the first ones, or all and sentinels."""
    (axis,) = mesh.axis_names

    def local(keys):
        return keys[:rows] if rows <= keys.shape[0] else padded_keys(keys, rows)

    return over_mesh(local, mesh, P(axis), P(axis))(keys)


def _shared(entries, own, n, members, mesh):
    """Links of entries (rows, columns, values) that are dealt out already; `own` are the places of the set."""
    shares = shares_of(mesh)
    places = np.full(-(-max(len(own), 1) // shares) * shares, n, np.int32)
    places[: len(own)] = own
    places, members = put(mesh, (places, members), P())
    rows, columns, values = entries
    return SharedLinks(rows, columns, values, places, members, mesh.axis_names[0])


def projected_links(elements, configurations, n: int, mesh) -> SharedLinks:
    """`SharedLinks` among a set from all its elements in the order of rows; the list has n rows, the set first."""
    count, size, shares = int(configurations.count), mesh.devices.size, shares_of(mesh)
    share = -(-max(count, 1) // shares) * shares // size
    rows, columns, values = (np.asarray(x) for x in elements)
    bounds = np.searchsorted(rows, np.arange(size + 1) * share)
    room = round_capacity(int(np.max(np.diff(bounds))))
    dealt = [np.full((size, room), share, np.int32), np.zeros((size, room), np.int32), np.zeros((size, room))]
    for d in range(size):
        here = slice(bounds[d], bounds[d + 1])
        for array, given in zip(dealt, (rows[here] - d * share, columns[here], values[here]), strict=True):
            array[d, : given.size] = given
    parts = put(mesh, [array.reshape(-1) for array in dealt], P(mesh.axis_names[0]))
    return _shared(parts, np.arange(count), n, np.arange(n) < count, mesh)


def connected_links(ham, configurations, n: int, union, epsilon, memory, mesh) -> SharedLinks:
    """`SharedLinks` of the energy `connected` between a set and `union`, sorted; the list has n rows, `union` first."""
    sources, share = _dealt_sources(configurations, mesh)
    whole = put(mesh, union.keys, P())
    pieces = [_own(put(mesh, ham, P()), sources, whole, mesh=mesh)]
    for coupled in _batches(ham, sources, share, epsilon, memory, mesh):
        pieces.append(_located(coupled, whole, mesh=mesh, share=share))
    parts = _joined_links(pieces, mesh=mesh)
    count = int(configurations.count)
    places = search(union.keys, configurations.keys[:count])
    members = jnp.zeros(n, bool).at[places].set(True)
    return _shared(parts, np.asarray(places), n, members, mesh)


@partial(jax.jit, static_argnames="mesh")
def _own(ham, sources, whole, *, mesh):
    """Entries of the diagonal: rows of each device, columns and energies."""
    (axis,) = mesh.axis_names

    def local(ham, sources, whole):
        used = jnp.any(sources != SENTINEL, axis=1)
        column = jnp.minimum(search(whole, sources), whole.shape[0] - 1)
        return jnp.arange(sources.shape[0], dtype=jnp.int32), column, jnp.where(used, diagonal(ham, sources), 0.0)

    return over_mesh(local, mesh, (P(), P(axis), P()), P(axis))(ham, sources, whole)


@partial(jax.jit, static_argnames=("mesh", "share"))
def _located(coupled, whole, *, mesh, share):
    """Entries of couplings; those that are not used belong to no row."""
    (axis,) = mesh.axis_names

    def local(coupled, whole):
        column = jnp.minimum(search(whole, coupled.keys), whole.shape[0] - 1)
        used = jnp.arange(coupled.keys.shape[0]) < coupled.count[0]
        return jnp.where(used, coupled.sources, share), column, coupled.elements

    return over_mesh(local, mesh, (P(axis), P()), P(axis))(coupled, whole)


@partial(jax.jit, static_argnames="mesh")
def _joined_links(pieces, *, mesh):
    """Entries of each device in the order of its rows."""
    (axis,) = mesh.axis_names

    def local(pieces):
        rows, columns, values = (jnp.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        _, order = jax.lax.sort((rows, jnp.arange(rows.shape[0], dtype=jnp.int32)), num_keys=1, is_stable=True)
        return rows[order], columns[order], values[order]

    return over_mesh(local, mesh, P(axis), P(axis))(pieces)


def best_external(ham, configurations, vector, energy, epsilon, memory, wanted, mesh):
    """As `_selected.best_external`, each device with other parts of the configurations outside of the set."""
    size, (keys, count) = mesh.devices.size, configurations
    vector, thresholds = term_thresholds(vector, count, epsilon)
    terms = estimate_terms(ham, keys, int(count), thresholds)
    turns = -(-parts_of_terms(terms, keys.shape[1], memory) // size)
    operands = put(mesh, (ham, tables_of(ham), keys, count, vector, thresholds, np.float64(energy)), P())
    limit = put(mesh, np.int32(wanted), P())

    def parts():
        capacity = rows_of_terms(terms / (turns * size))
        for turn in range(turns):
            while True:
                found = _external(operands, limit, mesh=mesh, turn=turn, turns=turns, capacity=capacity)
                if int(found.needed) <= capacity:
                    break
                capacity = coarse_capacity(int(found.needed))
            room = min(round_capacity(int(found.most)), capacity)
            chosen, scores = (np.asarray(x.addressable_data(0)) for x in _gather(found, mesh=mesh, room=room))
            yield fetch(found.total), scores[scores > 0], chosen[scores > 0]

    return best_of_parts(parts(), wanted, keys.shape[1])


class _Found(NamedTuple):
    """Of one part on each device: keys and terms of E_PT2, which are kept; their exact sum, the largest number that is
    kept on a device, and how many rows are needed."""

    keys: jax.Array
    terms: jax.Array
    kept: jax.Array
    total: tuple[jax.Array, jax.Array]
    most: jax.Array
    needed: jax.Array


@partial(jax.jit, static_argnames=("mesh", "turn", "turns", "capacity"))
def _external(operands, wanted, *, mesh, turn, turns, capacity) -> _Found:
    size, (axis,) = mesh.devices.size, mesh.axis_names

    def local(operands, wanted):
        ham, tables, keys, count, vector, limits, energy = operands
        me = jax.lax.axis_index(axis)

        def one(k):
            return make_external(ham, tables, keys, count, vector, limits, turn * size + k, turns * size, capacity)

        if on_gpu():
            found, needed = one(me)
        else:  # the handler takes the part as a constant
            found, needed = jax.lax.switch(me, [partial(one, k) for k in range(size)])
        terms = contributions(found, energy)
        total, kept, number = largest(terms, wanted)
        total = jax.tree.map(lambda x: jax.lax.psum(x, axis), total)
        return _Found(found.keys, terms, kept, total, jax.lax.pmax(number, axis), jax.lax.pmax(needed, axis))

    specs = _Found(P(axis), P(axis), P(axis), P(), P(), P())  # pyright: ignore[reportArgumentType]
    return over_mesh(local, mesh, P(), specs)(operands, wanted)


@partial(jax.jit, static_argnames=("mesh", "room"))
def _gather(found, *, mesh, room):
    """Keys and magnitudes of what all devices keep, with zeros between."""
    (axis,) = mesh.axis_names

    def local(keys, terms, kept):
        rows = positions(kept, size=room)
        used = jnp.arange(room, dtype=jnp.int32) < jnp.sum(kept, dtype=jnp.int32)
        chosen = jnp.where(used, jnp.abs(terms[rows]), 0.0)
        return jax.lax.all_gather(keys[rows], axis, tiled=True), jax.lax.all_gather(chosen, axis, tiled=True)

    return over_mesh(local, mesh, P(axis), P())(found.keys, found.terms, found.kept)
