"""The register model and the choice of the memory tier of a class.

A one-thread kernel holds the live vertical intermediates and the contracted block at the same time (Algorithm 2 of the
FusionRCG paper). What it accumulates over primitives is the Cartesian block H = (e0|f0), so that

    R = 2 (PeakLive + |H|)

32-bit registers are needed. The paper's Eq. 6 counts the spherical integrals prod(2l+1) instead of |H|. That is less
for every class with d functions: 225 against 279 for (22|11), 6561 against 21025 for (44|44).
"""

from __future__ import annotations

import re
from math import prod

from .cartesian import ncomp, nsph
from .graph import Class
from .options import DEFAULT, Options

REGISTER_LIMIT = 255
"""32-bit registers that one CUDA thread can have."""
SPILL_LIMIT = 1024
"""Bytes of reported spill below which a register kernel still beats a buffered one."""


def accumulated(cls: Class) -> int:
    """|H|, the number of contracted values (e0|f0)."""
    la, lb, lc, ld = cls
    return ncomp(la, lb) * ncomp(lc, ld)


def integrals(cls: Class) -> int:
    """prod(2l+1), the number of spherical integrals of a class (Eq. 5)."""
    return prod(map(nsph, cls))


def registers(cls: Class, peak: int) -> int:
    """32-bit registers of a one-thread kernel, 2 (PeakLive + |H|)."""
    return 2 * (peak + accumulated(cls))


def registers_paper(cls: Class, peak: int) -> int:
    """Eq. 6 of the paper, 2 (PeakLive + prod(2l+1))."""
    return 2 * (peak + integrals(cls))


def choose_tier(cls: Class, peak: int, options: Options = DEFAULT, spill_bytes: int | None = None) -> str:
    """``registers`` or ``buffered``.

    Arguments:
        cls: the class.
        peak: PeakLive of its scheduled vertical graph.
        options: ``options.tier`` overrides everything unless it is ``auto``.
        spill_bytes: bytes of spill stores that the compiler reported for the register kernel; where known, they
            decide instead of the model.
    """
    if options.tier != "auto":
        return options.tier
    if spill_bytes is not None:
        return "registers" if spill_bytes <= SPILL_LIMIT else "buffered"
    return "registers" if registers(cls, peak) <= REGISTER_LIMIT else "buffered"


def tier_paper(cls: Class) -> str:
    """The published boundary: registers up to a total angular momentum of 6."""
    return "registers" if sum(cls) <= 6 else "buffered"


def spills_reported(log: str) -> dict[str, int]:
    """Bytes of spill stores of each kernel in the report of ``ptxas -v`` (nvcc or NVRTC)."""
    pattern = r"Function properties for (\w+)\s+(?:ptxas info\s*:\s*)?\d+ bytes stack frame, (\d+) bytes spill stores"
    return {name: int(stores) for name, stores in re.findall(pattern, log)}
