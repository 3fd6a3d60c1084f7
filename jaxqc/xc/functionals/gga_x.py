"""Exchange with the gradient: PBE and its revisions, Becke 88, Perdew-Wang 91.

E_x = sum_s -AX rho_s^(4/3) F(x_s), x_s = |grad rho_s| / rho_s^(4/3): the exact spin scaling, one channel at a time.
"""

import math
from functools import partial

import jax.numpy as jnp

from jaxqc.xc.functionals.lda import AX, pow43

S2 = 1 / (4 * (6 * math.pi**2) ** (2 / 3))  # s^2 = S2 x^2


def x2(rho, sigma):
    """x^2 = sigma / rho^(8/3)."""
    return sigma / jnp.square(pow43(rho))


def enhanced(p, enhancement):
    """sum_s -AX rho_s^(4/3) F(x_s^2)."""
    return -AX * sum(pow43(r) * enhancement(x2(r, s)) for r, s in zip(p.rho, p.sigma, strict=True))


def pbe(p, kappa=0.804, mu=0.06672455060314922 * math.pi**2 / 3):
    """F = 1 + kappa - kappa / (1 + mu s^2 / kappa).

    PBE: doi:10.1103/PhysRevLett.77.3865. revPBE: kappa = 1.245, doi:10.1103/PhysRevLett.80.890.
    PBEsol: mu = 10/81, doi:10.1103/PhysRevLett.100.136406.
    """

    def enhancement(x):
        u = mu * S2 * x
        return 1 + kappa * u / (kappa + u)

    return enhanced(p, enhancement)


revpbe = partial(pbe, kappa=1.245)
pbesol = partial(pbe, mu=10 / 81)


def rpbe(p, kappa=0.804, mu=0.06672455060314922 * math.pi**2 / 3):
    """F = 1 + kappa (1 - exp(-mu s^2 / kappa)). doi:10.1103/PhysRevB.59.7413."""
    return enhanced(p, lambda x: 1 - kappa * jnp.expm1(-mu * S2 / kappa * x))


def x_asinh(x_squared):
    """x asinh(x) as a smooth function of x^2: series below 1e-4, where the square root has no derivatives."""
    small = x_squared < 1e-4
    t = jnp.where(small, x_squared, 0.0)
    series = t * (1 - t * (1 / 6 - t * (3 / 40 - t * (15 / 336 - t * 105 / 3456))))
    x = jnp.sqrt(jnp.where(small, 1.0, x_squared))
    return jnp.where(small, series, x * jnp.arcsinh(x))


def b88_enhancement(x, beta=0.0042, gamma=6.0):
    """1 + (beta / AX) x^2 / (1 + gamma beta x asinh x)."""
    return 1 + beta / AX * x / (1 + gamma * beta * x_asinh(x))


def b88(p):
    """e_x = -sum_s rho_s^(4/3) (AX + beta x^2 / (1 + 6 beta x asinh x)). doi:10.1103/PhysRevA.38.3098."""
    return enhanced(p, b88_enhancement)


def pw91(p):
    """F = (1 + s a asinh(b s) + (c + d e^(-100 s^2)) s^2) / (1 + s a asinh(b s) + f s^4).

    doi:10.1103/PhysRevB.46.6671.
    """
    a, b, c, d, f = 0.19645, 7.7956, 0.2743, -0.1508, 0.004

    def enhancement(x):
        s2 = S2 * x
        arc = a / b * x_asinh(b * b * s2)
        return 1 + ((c + d * jnp.exp(-100 * s2)) - f * s2) * s2 / (1 + arc + f * s2 * s2)

    return enhanced(p, enhancement)
