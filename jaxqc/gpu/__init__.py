"""CUDA kernels compiled at run time: NVRTC, a cache of cubins on disk, and launches on XLA's stream.

Nothing here is imported on a machine that computes on CPUs only.
"""

from jaxqc.gpu._compile import Built as Built, Unit as Unit, build as build
from jaxqc.gpu._launch import (
    Step as Step,
    call as call,
    float64 as float64,
    int32 as int32,
    int64 as int64,
    operand as operand,
    result as result,
)
from jaxqc.gpu._nvrtc import CompilationError as CompilationError, Nvrtc as Nvrtc, nvrtc as nvrtc
