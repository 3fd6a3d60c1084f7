"""The one sanitiser that stands before every functional: what a functional reads is always in its domain.

Every quantity is moved to the nearest point at which all formulas and their derivatives are finite, and derivatives
are taken there (a straight-through clamp): below the floors the potential is that at the floor, as in libxc, and not
zero, so that the empty spin channel of a hydrogen atom keeps its potential, and tau that rounding puts below its bound
(any density of one orbital lies on it) gives the same derivative from both sides.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

RHO_FLOOR = 1e-15  # Bohr^-3, per spin, and of the total density below which the energy is 0
SIGMA_FLOOR = 1e-40
TAU_FLOOR = 1e-20
# |grad rho|^2 <= SIGMA_BOUND rho^(8/3). A tail exp(-2 kappa r) has 4 kappa^2 rho^(-2/3): 1e11 at the floor.
SIGMA_BOUND = 1e16
RS = (3 / (4 * math.pi)) ** (1 / 3)


@jax.custom_jvp
def _in_place_of(value, clamped):
    """clamped, with the derivative of value."""
    return clamped


@_in_place_of.defjvp
def _(primals, tangents):
    return _in_place_of(*primals), tangents[0]


def clamp(value, low=None, high=None):
    """value within [low, high], with the derivative of value itself inside and outside of it."""
    inside = lax.stop_gradient(value)
    if low is not None:
        inside = jnp.maximum(inside, low)
    if high is not None:
        inside = jnp.minimum(inside, high)
    return _in_place_of(value, inside)


@dataclass(frozen=True)
class Point:
    """Densities in the domain of every functional; each entry of a pair belongs to one spin.

    rho: (rho_a, rho_b). n: their sum. active: where n is not taken as 0. sigma: (sigma_aa, sigma_bb). sigma_ab.
    sigma_total: |grad n|^2. tau: (tau_a, tau_b). Entries above the kind are None.
    """

    rho: tuple
    n: jax.Array
    active: jax.Array
    sigma: Any = None
    sigma_ab: Any = None
    sigma_total: Any = None
    tau: Any = None

    @property
    def opposite(self):
        """(1 + zeta, 1 - zeta) without cancellation."""
        return tuple(2 * r / self.n for r in self.rho)

    @property
    def zeta(self):
        return (self.rho[0] - self.rho[1]) / self.n

    @property
    def rs(self):
        """Wigner-Seitz radius, (3 / (4 pi n))^(1/3)."""
        return RS / jnp.cbrt(self.n)


def point(features, kind):
    """The `Point` of the features that a functional of this kind reads."""
    raw = features.rho
    rho = tuple(clamp(raw[s], RHO_FLOOR) for s in (0, 1))
    n = rho[0] + rho[1]
    active = jnp.logical_not(raw[0] + raw[1] <= RHO_FLOOR)  # a density that is no number stays visible
    if kind == "lda":
        return Point(rho, n, active)
    raw = features.sigma
    sigma = []
    for s in (0, 1):
        cbrt = lax.stop_gradient(jnp.cbrt(rho[s]))
        sigma.append(clamp(raw[2 * s], SIGMA_FLOOR, SIGMA_BOUND * cbrt**8))
    mean = lax.stop_gradient(0.5 * (sigma[0] + sigma[1]))
    sigma_ab = clamp(raw[1], -mean, mean)
    sigma_total = clamp(sigma[0] + 2 * sigma_ab + sigma[1], SIGMA_FLOOR)
    tau = None
    if kind == "mgga":
        raw = features.tau
        tau = tuple(clamp(raw[s], jnp.maximum(lax.stop_gradient(sigma[s] / (8 * rho[s])), TAU_FLOOR)) for s in (0, 1))
    return Point(rho, n, active, tuple(sigma), sigma_ab, sigma_total, tau)
