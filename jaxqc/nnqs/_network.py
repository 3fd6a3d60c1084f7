"""Probabilities of configurations under a causal transformer, in plain JAX or, where it fits, by a kernel."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxqc._platform import on_gpu

NEVER = -1e30  # logit of a token that would leave the sector
START = 4  # the token before the first orbital
PRECISIONS = ("float32", "float16", "plain")


class Shape(NamedTuple):
    """What a program for a transformer depends on (static)."""

    norb: int
    nalpha: int
    nbeta: int
    width: int
    layers: int
    heads: int
    dtype: str
    inference: str

    def has_kernel(self) -> bool:
        """Whether there is a kernel where JAX computes, and it works."""
        if self.inference == "plain" or not on_gpu():
            return False
        from jaxqc.nnqs import _cuda_network

        return _cuda_network.usable(self)


def log_probability(weights, occupations, shape: Shape) -> jax.Array:
    """log P of configurations, (n,) float64; below -1e29 outside of the sector.

    Args:
        weights: arrays of the transformer by name, see `jaxqc.nnqs._ansatz`.
        occupations: (n, 2, norb) bool.
        shape: sizes, types, and how products are made where no derivative is taken.
    """
    return (_fused if shape.has_kernel() else plain)(weights, occupations, shape)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _fused(weights, occupations, shape):
    from jaxqc.nnqs import _cuda_network

    return _cuda_network.log_probability(weights, occupations, shape)


@_fused.defjvp
def _fused_jvp(shape, primals, tangents):
    return jax.jvp(lambda weights: plain(weights, primals[1], shape), primals[:1], tangents[:1])


def plain(weights, occupations, shape: Shape) -> jax.Array:
    """The same in plain JAX; the logits of tokens that leave the sector are masked."""
    logits = _logits(weights, tokens(occupations), shape.heads)
    number = jnp.asarray((shape.nalpha, shape.nbeta), jnp.int32)[None, :, None]
    counts = jnp.cumsum(occupations.astype(jnp.int32), axis=-1)
    used = counts - occupations.astype(jnp.int32)  # electrons on the orbitals before
    may_fill = used < number
    may_skip = number - used <= shape.norb - 1 - jnp.arange(shape.norb, dtype=jnp.int32)[None, None]
    allowed = jnp.stack([may_skip, may_fill], axis=-1)  # (n, 2, norb, 2)
    allowed = (allowed[:, 1, :, :, None] & allowed[:, 0, :, None, :]).reshape(*logits.shape)  # beta is the higher bit
    logits = jnp.where(allowed, logits, jnp.asarray(NEVER, logits.dtype))
    log_p = jax.nn.log_softmax(logits, axis=-1)
    here = jnp.arange(4, dtype=jnp.int32)[None, None] == tokens(occupations)[..., None]
    picked = jnp.sum(jnp.where(here, log_p, jnp.zeros_like(log_p)), axis=-1)
    return jnp.sum(picked.astype(jnp.float64), axis=-1)


def precise_dot_general(left, right, dimensions, precision=None, **options) -> jax.Array:
    """As `jax.lax.dot_general`, on GPUs with products of 24 bits from three of 11 bits, which matrix units make.

    XLA's own products in single precision are slower there, and take ten seconds to compile.
    """
    dot = partial(jax.lax.dot_general, dimension_numbers=dimensions, precision=precision, **options)
    if not on_gpu() or left.dtype != jnp.float32:
        return dot(left, right)
    a, b = (jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10) for x in (left, right))
    return dot(a, b) + (dot(a, right - b) + dot(left - a, b))


def tokens(occupations) -> jax.Array:
    """A number for each spatial orbital, (n, norb) int32: empty, alpha, beta, both."""
    return occupations[:, 0].astype(jnp.int32) + 2 * occupations[:, 1].astype(jnp.int32)


def _logits(weights, tokens, heads):
    """Logits of the tokens of every orbital, given those before it: (n, norb) -> (n, norb, 4)."""
    dtype = weights["embedding"].dtype
    before = jnp.concatenate([jnp.full_like(tokens[:, :1], START), tokens[:, :-1]], axis=1)
    # A product rather than a look-up: its transpose adds in a fixed order on GPUs, too.
    hidden = jax.nn.one_hot(before, 5, dtype=dtype) @ weights["embedding"] + weights["position"][None]
    hidden, _ = jax.lax.scan(lambda x, block: (_block(x, block, heads), None), hidden, weights["blocks"])
    return _normalise(hidden) @ weights["head"] + weights["head_bias"][None]


def _block(x, block, heads):
    """One pre-normalised layer: causal self-attention, then a perceptron."""
    n, length, width = x.shape
    size = width // heads
    qkv = ((_normalise(x) * block["norm1"][None, None]) @ block["qkv"]).reshape(n, length, 3, heads, size)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    score = jnp.einsum("nqhd,nkhd->nhqk", q, k) / jnp.sqrt(jnp.asarray(size, x.dtype))
    causal = jnp.tril(jnp.ones((length, length), bool))
    weight = jax.nn.softmax(jnp.where(causal[None, None], score, jnp.asarray(NEVER, x.dtype)), axis=-1)
    mixed = jnp.einsum("nhqk,nkhd->nqhd", weight, v).reshape(n, length, width)
    x = x + mixed @ block["out"]
    up = jax.nn.gelu((_normalise(x) * block["norm2"][None, None]) @ block["up"] + block["up_bias"][None, None])
    return x + up @ block["down"] + block["down_bias"][None, None]


def _normalise(x):
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + jnp.asarray(1e-6, x.dtype))
