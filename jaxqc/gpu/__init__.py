"""CUDA kernels compiled at run time: NVRTC, a cache of cubins on disk, and launches on XLA's stream.

Nothing here is imported on a machine that computes on CPUs only.
"""

from jaxqc.gpu._compile import Built as Built
from jaxqc.gpu._compile import Unit as Unit
from jaxqc.gpu._compile import build as build
from jaxqc.gpu._launch import (
    Step as Step,
)
from jaxqc.gpu._launch import (
    call as call,
)
from jaxqc.gpu._launch import (
    check_ready as check_ready,
)
from jaxqc.gpu._launch import (
    float64 as float64,
)
from jaxqc.gpu._launch import (
    int32 as int32,
)
from jaxqc.gpu._launch import (
    int64 as int64,
)
from jaxqc.gpu._launch import (
    operand as operand,
)
from jaxqc.gpu._launch import (
    result as result,
)
from jaxqc.gpu._nvrtc import CompilationError as CompilationError
from jaxqc.gpu._nvrtc import Nvrtc as Nvrtc
from jaxqc.gpu._nvrtc import nvrtc as nvrtc
