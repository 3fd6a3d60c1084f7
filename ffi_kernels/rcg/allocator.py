"""Slots of a buffer for the values of a scheduled graph: the two-pass lifetime allocator.

First pass, forward in time: a dry run of the order notes the birth and the last use of each value. Second pass,
backward in time: a value takes a slot at its last use and gives it back at its birth, best fit among the free gaps.
Read backward, a statement gives back the slot of its result before its operands take theirs, so that a result may be
written over an operand that dies there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .schedule import Parents, consumers_of


@dataclass(frozen=True)
class Lifetime:
    """A value is written at step ``birth`` and read for the last time at step ``death``; it fills ``size`` slots."""

    birth: int
    death: int
    size: int = 1


def lifetimes(parents: Parents, order: Sequence[int], kept: Iterable[int] = ()) -> list[Lifetime]:
    """Lifetime of each node in an order. Nodes in ``kept`` are read once more after the end."""
    step = {k: t for t, k in enumerate(order)}
    death = dict(step)
    for k, consumers in enumerate(consumers_of(parents)):
        death[k] = max([step[k], *(step[c] for c in consumers)])
    for k in kept:
        death[k] = len(order)
    return [Lifetime(step[k], death[k]) for k in range(len(order))]


def grouped(values: Sequence[Lifetime], groups: Sequence[object]) -> list[Lifetime]:
    """Lifetimes of blocks: the members of a group live together from the first birth to the last death."""
    blocks: dict[object, Lifetime] = {}
    for value, key in zip(values, groups, strict=True):
        old = blocks.get(key)
        blocks[key] = (
            value
            if old is None
            else Lifetime(min(old.birth, value.birth), max(old.death, value.death), old.size + value.size)
        )
    return list(blocks.values())


@dataclass(frozen=True)
class Allocation:
    """``slots[k]`` is the first slot of value k; ``total`` the number of slots of the buffer."""

    slots: tuple[int, ...]
    total: int


def allocate(values: Sequence[Lifetime], packing: bool = True) -> Allocation:
    """Give each value its slots; without ``packing`` each value has slots of its own."""
    if not packing:
        slots, total = [], 0
        for value in values:
            slots.append(total)
            total += value.size
        return Allocation(tuple(slots), total)
    by_birth: dict[int, list[int]] = {}
    by_death: dict[int, list[int]] = {}
    for k, value in enumerate(values):
        by_birth.setdefault(value.birth, []).append(k)
        by_death.setdefault(value.death, []).append(k)
    placed = [-1] * len(values)
    space = _UnitSpace() if all(v.size == 1 for v in values) else _Space()
    for step in sorted({*by_birth, *by_death}, reverse=True):
        ending = by_death.get(step, [])
        # A value nobody reads, or read in its own step, still needs its slot beside everything that lives on.
        for k in ending:
            if values[k].birth == step:
                placed[k] = space.take(values[k].size)
        for k in by_birth.get(step, ()):
            space.give(placed[k], values[k].size)
        for k in sorted((k for k in ending if placed[k] < 0), key=lambda k: (-values[k].size, k)):
            placed[k] = space.take(values[k].size)
    return Allocation(tuple(placed), space.total)


class _UnitSpace:
    """Slots of one size: the lowest free one fits best."""

    def __init__(self) -> None:
        self.total = 0
        self._free: list[int] = []

    def take(self, size: int) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self.total += size
        return self.total - size

    def give(self, slot: int, size: int) -> None:
        heapq.heappush(self._free, slot)


class _Space:
    """Free gaps of a buffer that grows at its end; the smallest gap that is large enough fits best."""

    def __init__(self) -> None:
        self.total = 0
        self._gaps: dict[int, int] = {}

    def take(self, size: int) -> int:
        fitting = [(length, start) for start, length in self._gaps.items() if length >= size]
        if fitting:
            length, start = min(fitting)
            del self._gaps[start]
            if length > size:
                self._gaps[start + size] = length - size
            return start
        # Extend the buffer, using a gap at its end if there is one.
        start = next((s for s, n in self._gaps.items() if s + n == self.total), self.total)
        self._gaps.pop(start, None)
        self.total = start + size
        return start

    def give(self, start: int, size: int) -> None:
        for other, length in list(self._gaps.items()):
            if other + length == start:
                start, size = other, size + length
                del self._gaps[other]
            elif start + size == other:
                size += length
                del self._gaps[other]
        self._gaps[start] = size


def overlaps(values: Sequence[Lifetime], allocation: Allocation) -> list[tuple[int, int]]:
    """Pairs of values that share a slot while both live (empty for a correct allocation)."""
    owners: dict[int, list[int]] = {}
    for k, value in enumerate(values):
        for slot in range(allocation.slots[k], allocation.slots[k] + value.size):
            owners.setdefault(slot, []).append(k)
    wrong = []
    for group in owners.values():
        group.sort(key=lambda k: values[k].birth)
        for first, second in zip(group, group[1:], strict=False):
            # The second may be born in the very step that reads the first for the last time.
            if values[second].birth < values[first].death or values[first].birth == values[second].birth:
                wrong.append((first, second))
    return wrong
