"""The switches of the generator: every optimisation can be turned off for an ablation."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import RULES
from .schedule import SCHEDULES


@dataclass(frozen=True)
class Options:
    """How bodies are generated.

    Attributes:
        rule: the axis rule that shapes the vertical recurrence graph (``graph.RULES``).
        schedule: the order of evaluation (``schedule.SCHEDULES``).
        fusion: transform each index to spherical functions as soon as the horizontal recurrence is done with it,
            instead of after the whole block.
        packing: let values of the buffered tier share slots when their lifetimes do not overlap.
        tier: ``auto`` (by the register model and reported spills), ``registers`` or ``buffered``.
    """

    rule: str = "greedy"
    schedule: str = "list"
    fusion: bool = True
    packing: bool = True
    tier: str = "auto"

    def __post_init__(self) -> None:
        for name, allowed in (("rule", RULES), ("schedule", SCHEDULES), ("tier", TIERS)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"Options: {name} was {value!r}; it must be one of {', '.join(allowed)}.")


TIERS = ("auto", "registers", "buffered")
DEFAULT = Options()
PAPER = Options(rule="paper", schedule="paper")
"""The published rules: Algorithm 1 and Eq. 7."""
NOTHING = Options(rule="none", schedule="level", fusion=False, packing=False)
"""Every optimisation off."""
