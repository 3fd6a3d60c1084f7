"""How the primitives of exchange and correlation reach their GPU kernels; imports those only where a GPU computes."""

from jaxqc import _platform
from jaxqc._platform import on_gpu as on_gpu

# Points a row on the GPU, for densities and for potentials; layouts are padded to the larger.
ROWS = (64, 256)


def lower_on_cuda(primitive, module: str = "_cuda_calls") -> None:
    """Gives a primitive the lowering for NVIDIA GPUs: the function of `module` that bears its name."""
    name = primitive.name.removeprefix("jaxqc_xc_").removeprefix("jaxqc_")
    _platform.lower_on_cuda(primitive, f"jaxqc.xc.{module}", name)
