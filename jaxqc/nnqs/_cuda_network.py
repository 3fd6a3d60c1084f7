"""The transformer's probabilities in one kernel for NVIDIA GPUs; see ffi_kernels/cuda/nnqs_network.cu."""

import functools
import math
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.gpu import Step, Unit, call, int32, operand, result
from jaxqc.gpu._launch import architecture
from jaxqc.gpu._limits import shared_limit
from jaxqc.nnqs._network import Shape, plain

_WIDTH, _HEADS, _TILE, _MOST_TILES = 32, 4, 16, 4
_SCALE = 16.0  # of the matrices in the kernel
_TESTED = 200  # configurations of the test of a fresh kernel
_THREADS = {False: 384, True: 256}  # of a block: as many as registers allow, by whether numbers are split


def _split(shape):
    """Whether numbers are the sums of two halves."""
    return shape.inference == "float32" and shape.dtype == "float32"


def network_unit(shape: Shape) -> Unit:
    """The kernel for these sizes."""
    split = _split(shape)
    tiles = -(-shape.norb // _TILE)
    defines = ("TILES", tiles), ("LAYERS", shape.layers), ("SPLIT", int(split)), ("THREADS", _THREADS[split])
    return Unit("nnqs_network.cu", ("nnqs_log_probability",), defines, ("nnqs_mma.cuh",))


def _bytes(shape):
    """Of shared memory: matrices in halves, tables in single precision."""
    halves = (1 + _split(shape)) * (12 * shape.layers * _WIDTH**2 + 8 * _WIDTH)
    rows = _TILE * -(-shape.norb // _TILE)
    return 2 * halves + 4 * (5 * shape.layers * _WIDTH + 5 * _WIDTH + rows * (_WIDTH + 4))


def fits(shape: Shape) -> bool:
    """Whether there is a kernel for these sizes and types on this GPU."""
    if shape.width != _WIDTH or shape.heads != _HEADS or shape.norb > _TILE * _MOST_TILES:
        return False
    arch = architecture()
    return shape.dtype in ("float32", "bfloat16", "float16") and arch >= 80 and _bytes(shape) <= shared_limit(arch)


@functools.cache
def usable(shape: Shape) -> bool:
    """Whether there is a kernel for these sizes and types on this GPU, which compiles and passes its test.

    Where it should but does not, a warning says why: plain JAX computes the same.
    """
    try:
        if not fits(shape):
            return False
        occupations = jax.ShapeDtypeStruct((1, 2, shape.norb), jnp.bool_)
        jax.eval_shape(partial(log_probability, shape=shape), random_weights(shape.norb, shape.layers), occupations)
    except (ImportError, RuntimeError) as error:
        warnings.warn(f"Amplitudes of networks are computed by plain JAX, which is slower: {error}", stacklevel=2)
        return False
    return True


def log_probability(weights, occupations, shape: Shape) -> jax.Array:
    """log P of configurations (n, 2, norb) bool, (n,) float64; the same bits whatever else is in the batch."""
    return _launch(weights, occupations, shape, check=partial(_check, shape))


def _launch(weights, occupations, shape, check=None):
    n, norb = occupations.shape[0], shape.norb
    matrices, tables = _packed(weights, norb)
    numbers = map(int32, (n, norb, shape.nalpha, shape.nbeta))
    arguments = operand(0), operand(1), operand(2), *numbers, result(0)
    threads = _THREADS[_split(shape)]
    step = Step(network_unit(shape), "nnqs_log_probability", threads, arguments, shared=_bytes(shape))
    shapes = [jax.ShapeDtypeStruct((n,), jnp.float64)]
    return call("jaxqc_nnqs_log_probability", [step], shapes, occupations, matrices, tables, check=check)[0]


def _ordered(matrix, k: int, rows_first: bool):
    """Numbers of matrices (layers, rows, columns), tile by tile of k rows and 8 columns, along the rows first or last,
    and within a tile as lanes load it, (layers, numbers)."""
    layers, rows, columns = matrix.shape
    index = np.arange(rows * columns).reshape(rows // k, k // 8, 4, 2, columns // 8, 8)
    row, word, t, pair, column, g = range(6)  # lane 4 g + t
    outer = (row, column) if rows_first else (column, row)
    return _SCALE * matrix.reshape(layers, -1)[:, index.transpose(*outer, g, t, word, pair).ravel()]


def _packed(weights, norb):
    """Matrices and tables in the order of the kernel. It splits them: XLA may drop what becomes a half and back."""
    weights = jax.tree.map(lambda x: x.astype(jnp.float32), weights)
    blocks, rows = weights["blocks"], _TILE * -(-norb // _TILE)
    # Scores in units of log 2.
    scale = np.ones(3 * _WIDTH, np.float32)
    scale[:_WIDTH] = (_WIDTH // _HEADS) ** -0.5 / math.log(2)
    layers = [
        _ordered(blocks["norm1"][:, :, None] * blocks["qkv"] * scale, 16, False),
        _ordered(blocks["out"], 8, True),
        _ordered(blocks["norm2"][:, :, None] * blocks["up"], 16, False),
        _ordered(blocks["down"], 16, True),
    ]
    head = _ordered(jnp.pad(weights["head"], ((0, 0), (0, 4)))[None], 16, False)
    missing = ((0, rows - norb), (0, 0))
    tables = [
        _SCALE * blocks["up_bias"],
        _SCALE**2 * blocks["down_bias"],
        _SCALE**2 * weights["embedding"],
        _SCALE**2 * jnp.pad(weights["position"], missing),
        _SCALE * jnp.pad(weights["head_bias"], missing),
    ]
    matrices = jnp.concatenate([jnp.concatenate(layers, axis=1).reshape(-1), head.reshape(-1)])
    return matrices, jnp.concatenate([table.reshape(-1) for table in tables])


def random_weights(norb: int, layers: int, seed: int = 0, dtype=np.float32) -> dict:
    """Weights of the size that training gives, for tests."""
    random = np.random.default_rng(seed)

    def normal(scale, *shape):
        return (scale * random.normal(size=shape)).astype(dtype)

    blocks = {
        "norm1": 1 + normal(0.3, layers, _WIDTH),
        "qkv": normal(_WIDTH**-0.5, layers, _WIDTH, 3 * _WIDTH),
        "out": normal(_WIDTH**-0.5, layers, _WIDTH, _WIDTH),
        "norm2": 1 + normal(0.3, layers, _WIDTH),
        "up": normal(_WIDTH**-0.5, layers, _WIDTH, 4 * _WIDTH),
        "up_bias": normal(0.3, layers, 4 * _WIDTH),
        "down": normal((4 * _WIDTH) ** -0.5, layers, 4 * _WIDTH, _WIDTH),
        "down_bias": normal(0.3, layers, _WIDTH),
    }
    ends = {"head": normal(0.3, _WIDTH, 4), "head_bias": normal(1.0, norb, 4)}
    return {"embedding": normal(1.0, 5, _WIDTH), "position": normal(1.0, norb, _WIDTH), "blocks": blocks} | ends


def _check(shape):
    """Compares the kernel with plain JAX in double precision on random weights.

    Raises:
        RuntimeError: they differ.
    """
    weights = random_weights(shape.norb, shape.layers)
    random = np.random.default_rng(1)
    filled = random.permuted(np.tile(np.arange(shape.norb), (_TESTED, 2, 1)), axis=-1)
    occupations = filled < np.array([[shape.nalpha], [shape.nbeta]])
    found = np.asarray(jax.jit(_launch, static_argnums=2)(weights, occupations, shape))
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # compiles faster
        double = jax.tree.map(lambda x: x.astype(np.float64), weights)
        exact = np.asarray(jax.jit(plain, static_argnums=2)(double, occupations, shape))
    error, bound = np.max(np.abs(found - exact)), (1e-5 if _split(shape) else 1e-2) * shape.norb
    if not error < bound:
        raise RuntimeError(
            f"The kernel of the transformer with {shape.norb} orbitals and {shape.layers} layers failed its test on "
            f"this GPU: log-probabilities are off by {error:.1e} and may be by {bound:.0e}. Report this, please; "
            'jaxqc.nnqs.Transformer(..., inference="plain") does not ask for the kernel.'
        )
