"""Short-range exchange, of the operator erfc(omega r)/r: Becke 88 (CAM-B3LYP) and B97 (wB97X)."""

import math
from functools import partial

import jax.numpy as jnp
from jax import lax

from jaxqc.xc.functionals.gga_x import b88_enhancement, x2
from jaxqc.xc.functionals.lda import AX, pow43
from jaxqc.xc.functionals.stoll import stoll

_KF = (6 * math.pi**2) ** (1 / 3)
# Coefficients of y^1, y^2, ... of the attenuation, y = 1/(4 a^2).
_SERIES = tuple(
    -8
    / 3
    * (-1) ** m
    * (1 / (math.factorial(m) * (2 * m + 1)) - 1 / (2 * math.factorial(m + 1)) - 1 / (4 * math.factorial(m + 2)))
    for m in range(1, 19)
)


def attenuation(a):
    """1 - (8/3) a [sqrt(pi) erf(1/(2a)) + (2a - 4a^3) e^(-1/(4a^2)) - 3a + 4a^3], a = omega/(2 k_F).

    The share of short range in the exchange of the uniform gas; doi:10.1063/1.1688752. For large a it is a power series
    in 1/a^2: the closed form cancels there.
    """
    y = 1 / (4 * a * a)
    series = y < 0.5
    t = jnp.where(series, y, 0.0)
    total = _SERIES[-1]
    for c in _SERIES[-2::-1]:
        total = total * t + c
    a = jnp.where(series, 0.5, a)
    closed = 8 / 3 * a * (math.sqrt(math.pi) * lax.erf(1 / (2 * a)) - 3 * a + 4 * a**3)
    closed = closed + 16 / 3 * a * a * (1 - 2 * a * a) * jnp.exp(-1 / (4 * a * a))
    return jnp.where(series, total * t, 1 - closed)


def b88_short(p, omega):
    """sum_s -AX rho_s^(4/3) F(x) attenuation(omega sqrt(F) / (2 k_F)), F that of Becke 88. doi:10.1063/1.1383587."""
    total = 0.0
    for r, sigma in zip(p.rho, p.sigma, strict=True):
        f = b88_enhancement(x2(r, sigma))
        a = omega * jnp.sqrt(f) / (2 * _KF * jnp.cbrt(r))
        total = total - AX * pow43(r) * f * attenuation(a)
    return total


def _b97(coefficients, gamma, x):
    """sum_i c_i u^i, u = gamma x^2 / (1 + gamma x^2). doi:10.1063/1.475007."""
    u = gamma * x / (1 + gamma * x)
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * u + c
    return total


def wb97(p, omega, exchange, same, opposite):
    """Short-range B97 exchange with B97 correlation. doi:10.1063/1.2834918."""
    parallel, mixed = stoll(p, printed_digits=True)
    total, x_sum = 0.0, 0.0
    for r, sigma, e in zip(p.rho, p.sigma, parallel, strict=True):
        x = x2(r, sigma)
        short = attenuation(omega / (2 * _KF * jnp.cbrt(r)))
        total = total - AX * pow43(r) * short * _b97(exchange, 0.004, x) + e * _b97(same, 0.2, x)
        x_sum = x_sum + x
    return total + mixed * _b97(opposite, 0.006, x_sum / 2)


wb97x = partial(
    wb97,
    omega=0.3,
    exchange=(0.842294, 0.726479, 1.0476, -5.70635, 13.2794),
    same=(1.0, -4.33879, 18.2308, -31.743, 17.2901),
    opposite=(1.0, 2.37031, -11.3995, 6.58405, -3.78132),
)
