"""Orders of evaluation of a graph, and the number of values alive at once that each needs.

A graph is given by the parents of its nodes (node numbers); nodes without parents are inputs (Boys values, or stored
intermediates of the horizontal recurrence) and are alive from the start.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Parents = Sequence[Sequence[int]]

SCHEDULES = ("list", "paper", "level", "depth")
"""list frees most values at each step and is the default; paper is Eq. 7 of the FusionRCG paper; level goes by total
angular momentum; depth finishes one target after the other."""


def consumers_of(parents: Parents) -> list[list[int]]:
    """The nodes that read each node."""
    result: list[list[int]] = [[] for _ in parents]
    for k, group in enumerate(parents):
        for p in dict.fromkeys(group):
            result[p].append(k)
    return result


def schedule(parents: Parents, kind: str = "list") -> list[int]:
    """A topological order of all nodes, inputs first.

    Arguments:
        parents: the graph; each node comes after its parents (numbers rise along edges).
        kind: one of :data:`SCHEDULES`.
    Raises:
        ValueError: the kind is unknown.
    """
    if kind == "level":
        return list(range(len(parents)))
    if kind == "depth":
        return _depth(parents)
    if kind == "list":
        # Which of several equal choices is taken matters: two ways of numbering the new ones are cheap to try.
        return min((list_schedule(parents, step) for step in (1, -1)), key=lambda order: peak_live(parents, order))
    if kind == "paper":
        return _paper(parents)
    raise ValueError(f"schedule: kind was {kind!r}; it must be one of {', '.join(SCHEDULES)}.")


def live_counts(parents: Parents, order: Sequence[int], inputs_live: bool = True) -> list[int]:
    """The number of live values at each step of an order (Eq. 4).

    A value is live from its computation until its last consumer has been computed; a value nobody reads lives for the
    one step that delivers it. With ``inputs_live`` every input is live from the start, else from its place in order.
    """
    pending = [len(c) for c in consumers_of(parents)]
    live = sum(1 for group in parents if not group) if inputs_live else 0
    counts = []
    for k in order:
        if parents[k] or not inputs_live:
            live += 1
        counts.append(live)
        for p in dict.fromkeys(parents[k]):
            pending[p] -= 1
            live -= pending[p] == 0
        live -= pending[k] == 0
    return counts


def peak_live(parents: Parents, order: Sequence[int], inputs_live: bool = True) -> int:
    """The largest number of values alive at once, PeakLive of Eq. 4."""
    return max(live_counts(parents, order, inputs_live), default=0)


def _inputs(parents: Parents) -> list[int]:
    return [k for k, group in enumerate(parents) if not group]


def _depth(parents: Parents) -> list[int]:
    consumers = consumers_of(parents)
    order = _inputs(parents)
    done = set(order)
    for root in (k for k in range(len(parents)) if not consumers[k]):
        stack = [root]
        while stack:
            k = stack[-1]
            if k in done:
                stack.pop()
                continue
            missing = [p for p in parents[k] if p not in done]
            if missing:
                stack.append(max(missing))
            else:
                stack.pop()
                done.add(k)
                order.append(k)
    return order


def list_schedule(parents: Parents, step: int = 1) -> list[int]:
    """List scheduling: most values freed (net of the one made), then most consumers made ready, then the newest.

    Among nodes that become ready together, the last in number is the newest for ``step`` 1, the first for -1.
    """
    consumers = consumers_of(parents)
    groups = [list(dict.fromkeys(group)) for group in parents]
    pending = [len(c) for c in consumers]
    missing = [len(g) for g in groups]
    order = _inputs(parents)
    done = [not g for g in groups]
    newest = [0] * len(groups)
    clock = 0
    heap: list[tuple[int, int, int, int]] = []
    current: dict[int, tuple[int, int, int, int]] = {}

    def offer(k: int) -> None:
        freed = sum(pending[p] == 1 for p in groups[k]) - bool(consumers[k])
        released = sum(missing[c] == 1 for c in consumers[k])
        entry = (-freed, -released, -newest[k], k)
        if current.get(k) != entry:
            current[k] = entry
            heapq.heappush(heap, entry)

    def make_ready(k: int) -> None:
        nonlocal clock
        clock += 1
        newest[k] = clock
        offer(k)

    for k in order:
        for c in consumers[k]:
            missing[c] -= 1
    for k in range(len(groups))[::step]:
        if groups[k] and missing[k] == 0:
            make_ready(k)
    while heap:
        entry = heapq.heappop(heap)
        k = entry[3]
        if done[k] or current[k] != entry:
            continue  # an outdated offer
        done[k] = True
        order.append(k)
        for p in groups[k]:
            pending[p] -= 1
            if pending[p] == 1:  # its last consumer now frees it
                for c in consumers[p]:
                    if not done[c] and missing[c] == 0:
                        offer(c)
        for c in consumers[k][::step]:
            missing[c] -= 1
            if missing[c] == 0:
                make_ready(c)
            elif missing[c] == 1:  # its last missing parent, if ready, now releases it
                for p in groups[c]:
                    if not done[p] and missing[p] == 0:
                        offer(p)
    return order


def reach_scores(parents: Parents, block: int = 8192) -> list[int]:
    """Eq. 7 of the paper: the sum of out(w) - in(w) over every w reachable from v (v included).

    Reachable sets are bit sets held for one block of columns at a time, so that memory stays small for the largest
    graphs; weights are summed bit plane by bit plane.
    """
    consumers = consumers_of(parents)
    n = len(consumers)
    weight = [len(consumers[k]) - len(dict.fromkeys(parents[k])) for k in range(n)]
    offset = -min(weight, default=0)
    planes = max((w + offset for w in weight), default=0).bit_length()
    score = [0] * n
    for start in range(0, n, block):
        stop = min(n, start + block)
        columns = range(start, stop)
        masks = [sum(1 << (k - start) for k in columns if (weight[k] + offset) >> b & 1) for b in range(planes)]
        reach: list[int] = [0] * stop
        for k in range(stop - 1, -1, -1):
            bits = 1 << (k - start) if k >= start else 0
            for c in consumers[k]:
                if c >= stop:
                    break
                bits |= reach[c]
            reach[k] = bits
            total = sum((bits & mask).bit_count() << b for b, mask in enumerate(masks))
            score[k] += total - offset * bits.bit_count()
    return score


def _paper(parents: Parents) -> list[int]:
    """Greedy choice of the ready node with the largest Eq. 7 score, the newest first among equals."""
    consumers = consumers_of(parents)
    score = reach_scores(parents)
    missing = [len(set(group)) for group in parents]
    heap = [(-score[k], k, k) for k in _inputs(parents)]
    heapq.heapify(heap)
    order = []
    clock = 0
    while heap:
        k = heapq.heappop(heap)[2]
        order.append(k)
        for c in consumers[k]:
            missing[c] -= 1
            if missing[c] == 0:
                clock -= 1
                heapq.heappush(heap, (-score[c], clock, c))
    return order
