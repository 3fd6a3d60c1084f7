"""The neural wave function: an autoregressive transformer for |psi|^2 and a perceptron for the phase, in Flax.

A configuration is read as one token per spatial orbital (empty, alpha, beta, both). Conditional probabilities that
would leave the sector of `nalpha` and `nbeta` electrons are masked, so that |psi|^2 sums to one over it exactly.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp

try:
    from flax import linen as nn
except ModuleNotFoundError as error:  # pragma: no cover
    raise ImportError(
        "jaxqc.nnqs needs Flax, Optax and Orbax for neural wave functions; install them with "
        "`pip install flax optax orbax-checkpoint`, or jaxqc with the extra: `pip install 'jaxqc[train]'`."
    ) from error

from jaxqc._checks import check_flag, checked_count
from jaxqc.elements import shorten
from jaxqc.nnqs._network import PRECISIONS, Shape, log_probability, precise_dot_general


class Transformer(nn.Module):
    r"""psi(n) = sqrt(P(n)) exp(i phi(n)), P(n) = prod_k p(n_k | n_1 ... n_(k-1)).

    A Flax module: `init(random_key, occupations)` makes parameters, `apply(parameters, occupations)` gives
    `(log_amplitude, phase)`. Any object with these two methods can take its place in `jaxqc.nnqs.solve`.
    The defaults are the sizes of the paper (arXiv:2604.15768).

    Attributes:
        norb, nalpha, nbeta: orbitals and electrons of the sector.
        width, layers, heads: of the transformer.
        phase_layers: widths of the hidden layers of the perceptron.
        real: a real wave function, sqrt(P) tanh(s) with s from the perceptron, instead of a phase; |psi|^2 then sums to
            less than one. Molecules without magnetic fields have real wave functions, and on sets of a few hundred
            configurations these are learned in fewer steps. On larger sets a sign has to pass through zero, where P
            gives way first: there phases learn a vector faster.
        spin_flip: psi is the same with alpha and beta exchanged, as for singlets and all even total spins. Every
            configuration is evaluated twice. Needs nalpha == nbeta.
        dtype: of parameters and products; log-probabilities are added in float64.
        inference: how amplitudes are computed on NVIDIA GPUs where no derivative is taken, and width is 32, heads 4,
            dtype of 32 bits or fewer, norb at most 64 and layers at most 4 (8 for "float16"): "float32" by a fused
            kernel to that accuracy (the perceptron, too, gets products of 24 bits), "float16" by one with products in
            half precision, "plain" as everywhere else. In the kernels, queries, keys, values and activations beyond
            4000 give NaN. A kernel that fails its test on a GPU is not used; a warning says so. Derivatives are always
            those of plain JAX.

    Example:
        >>> import jax, jaxqc
        >>> from jaxqc.nnqs import Transformer, all_configurations, unpack
        >>> module = Transformer(norb=4, nalpha=2, nbeta=1, layers=2, phase_layers=(16,))
        >>> occupations = unpack(all_configurations(4, 2, 1).keys, 4)
        >>> parameters = module.init(jax.random.key(0), occupations)
        >>> log_amplitude, phase = module.apply(parameters, occupations)
        >>> print(f"{jax.numpy.sum(jax.numpy.exp(2 * log_amplitude)):.5f}")
        1.00000
    """

    norb: int
    nalpha: int
    nbeta: int
    width: int = 32
    layers: int = 4
    heads: int = 4
    phase_layers: tuple[int, ...] = (512, 512, 512)
    real: bool = False
    spin_flip: bool = False
    dtype: Any = jnp.float32
    inference: str = "float32"

    @property
    def inference_batch(self) -> int:
        """Least number of configurations that `jaxqc.nnqs.evaluate` passes at once: the kernel needs no memory."""
        return 1 << 15 if self._shape.has_kernel() else 1

    @property
    def _shape(self):
        sizes = self.norb, self.nalpha, self.nbeta, self.width, self.layers, self.heads
        return Shape(*sizes, jnp.dtype(self.dtype).name, self.inference)

    @nn.compact
    def __call__(self, occupations):
        """Logarithm of |psi| and phase.

        Args:
            occupations: (n, 2, norb) bool: alpha, then beta.

        Returns:
            log_amplitude: (n,) float64, below -1e29 outside the sector.
            phase: (n,) float64, radians.
        """
        _check(self)
        occupations = jnp.asarray(occupations).astype(bool)
        log_p_of = _Conditionals(self._shape)
        if self.spin_flip:
            flipped = occupations[:, ::-1]
            both = jnp.concatenate([occupations, flipped])
            log_p = log_p_of(both)
            log_p = jnp.logaddexp(log_p[: len(occupations)], log_p[len(occupations) :]) - jnp.log(2.0)
            occupations = jnp.where(_beta_is_larger(occupations)[:, None, None], flipped, occupations)
        else:
            log_p = log_p_of(occupations)
        dot = precise_dot_general if self.inference == "float32" else None
        dense = partial(nn.Dense, dtype=self.dtype, param_dtype=self.dtype, dot_general=dot)
        hidden = 2 * occupations.reshape(len(occupations), 2 * self.norb).astype(self.dtype) - 1
        for width in self.phase_layers:
            hidden = nn.silu(dense(width)(hidden))
        out = dense(1)(hidden)[:, 0].astype(jnp.float64)
        if self.real:
            return 0.5 * log_p + _log_tanh(jnp.abs(out)), jnp.where(out < 0, jnp.pi, 0.0)
        return 0.5 * log_p, out


class _Conditionals(nn.Module):
    """log P of configurations (n, 2, norb), (n,) float64, by a causal transformer."""

    shape: Shape

    @nn.compact
    def __call__(self, occupations):
        norb, width, depth, dtype = self.shape.norb, self.shape.width, self.shape.layers, jnp.dtype(self.shape.dtype)
        zeros, ones = nn.initializers.zeros, nn.initializers.ones

        def matrix(key, shape, dtype):  # of inputs with variance 1 it makes outputs with variance 1
            return nn.initializers.normal(shape[-2] ** -0.5)(key, shape, dtype)

        def stacked(name, initializer, *shape):
            return self.param(name, initializer, (depth, *shape), dtype)

        weights = {
            "embedding": self.param("embedding", nn.initializers.normal(1.0), (5, width), dtype),
            "position": self.param("position", nn.initializers.normal(1.0), (norb, width), dtype),
            # All layers in one array each and one loop over them: compiled once, whatever the depth.
            "blocks": {
                "norm1": stacked("norm1", ones, width),
                "qkv": stacked("qkv", matrix, width, 3 * width),
                "out": stacked("out", matrix, width, width),
                "norm2": stacked("norm2", ones, width),
                "up": stacked("up", matrix, width, 4 * width),
                "up_bias": stacked("up_bias", zeros, 4 * width),
                "down": stacked("down", matrix, 4 * width, width),
                "down_bias": stacked("down_bias", zeros, width),
            },
            "head": self.param("head", nn.initializers.normal(0.02), (width, 4), dtype),
            "head_bias": self.param("head_bias", zeros, (norb, 4), dtype),
        }
        return log_probability(weights, occupations, self.shape)


def _beta_is_larger(occupations):
    """Whether the string of beta is the larger number, (n,)."""
    differ = occupations[:, 0] ^ occupations[:, 1]
    top = occupations.shape[-1] - 1 - jnp.argmax(differ[:, ::-1], axis=-1)
    beta = jnp.take_along_axis(occupations[:, 1], top[:, None], axis=1)[:, 0]
    return beta & jnp.any(differ, axis=-1)


def _log_tanh(x):
    """log tanh x for x >= 0, finite at 0."""
    return jnp.log(jnp.tanh(x) + 1e-30)


def _check(module):
    name = "jaxqc.nnqs.Transformer"
    for label in ("norb", "width", "layers", "heads"):
        checked_count(getattr(module, label), label, name, 1)
    if not isinstance(module.phase_layers, tuple | list):
        raise ValueError(
            f"Argument phase_layers of {name} must be a tuple of widths, such as (512, 512), but it is "
            f"{shorten(module.phase_layers)}."
        )
    for width in module.phase_layers:
        checked_count(width, "phase_layers", name, 1)
    _check_type(module.dtype, name)
    for label in ("real", "spin_flip"):
        check_flag(getattr(module, label), label, name)
    if module.width % module.heads:
        raise ValueError(
            f"Argument width of {name} is {module.width}, which is not a multiple of heads={module.heads}; it must be."
        )
    for label in ("nalpha", "nbeta"):
        if checked_count(getattr(module, label), label, name) > module.norb:
            raise ValueError(
                f"Argument {label} of {name} is {getattr(module, label)}, but must be from 0 to norb={module.norb}."
            )
    if module.spin_flip and module.nalpha != module.nbeta:
        raise ValueError(
            f"Argument spin_flip of {name} needs as many alpha as beta electrons, but there are {module.nalpha} and "
            f"{module.nbeta}; use spin_flip=False."
        )
    if module.inference not in PRECISIONS:
        raise ValueError(f"Argument inference of {name} is {module.inference!r}; it must be one of {PRECISIONS}.")


def _check_type(dtype, name):
    try:
        real = dtype is not None and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)  # None is a name of float64
    except TypeError:
        real = False
    if not real:
        raise ValueError(
            f"Argument dtype of {name} must be a type of real numbers, such as jax.numpy.float32, but it is "
            f"{shorten(dtype)}."
        )
