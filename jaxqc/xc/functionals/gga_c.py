"""Correlation with the gradient: PBE and PBEsol, Lee-Yang-Parr, Perdew 86."""

import math
from functools import partial

import jax.numpy as jnp

from jaxqc.xc.functionals._point import clamp
from jaxqc.xc.functionals.lda import pw_epsilon, pz_epsilon

BETA = 0.06672455060314922
GAMMA = (1 - math.log(2)) / math.pi**2
_T2 = (math.pi / 3) ** (1 / 3) / 16  # t^2 = _T2 sigma / (phi^2 n^(7/3))


def phi(p, floor=0.0):
    """((1 + zeta)^(2/3) + (1 - zeta)^(2/3)) / 2, each density at least `floor`."""
    up, down = (2 * clamp(r, floor) / p.n for r in p.rho)
    return (jnp.square(jnp.cbrt(up)) + jnp.square(jnp.cbrt(down))) / 2


def pbe_epsilon(epsilon, phi3, t2, beta=BETA):
    """eps + H of PBE: gamma phi^3 ln(1 + (e^(eps / (gamma phi^3)) - 1) / (1 + A t^2 + A^2 t^4)).

    This is algebraically H = gamma phi^3 ln(1 + (beta/gamma) t^2 (1 + A t^2) / (1 + A t^2 + A^2 t^4)) plus eps, with
    A = (beta/gamma) / (e^(-eps/(gamma phi^3)) - 1), without the cancellation of the two where t is large.
    """
    scaled = epsilon / (GAMMA * phi3)
    u = beta / GAMMA * t2 / jnp.expm1(-scaled)
    return GAMMA * phi3 * jnp.log1p(jnp.expm1(scaled) / (1 + u + u * u))


def t_squared(p, ph):
    """t^2 = |grad n|^2 / (2 phi k_s n)^2, k_s = sqrt(4 k_F / pi)."""
    return _T2 * p.sigma_total / (jnp.square(ph * p.n) * jnp.cbrt(p.n))


def pbe(p, beta=BETA):
    """n (eps_PW92 + H(rs, zeta, t)). doi:10.1103/PhysRevLett.77.3865; PBEsol has beta = 0.046."""
    # d phi / d rho_b is infinite at full polarisation; libxc's floor, hence its potential for the empty spin, is 1e-12.
    epsilon, ph = pw_epsilon(p), phi(p, 1e-12)
    return p.n * pbe_epsilon(epsilon, ph**3, t_squared(p, ph), beta)


pbesol = partial(pbe, beta=0.046)


def lyp(p):
    """Lee, Yang and Parr's correlation in the form of Miehlich et al., without the Laplacian.

    doi:10.1103/PhysRevB.37.785, doi:10.1016/0009-2614(89)87234-3.
    """
    a, b, c, d = 0.04918, 0.132, 0.2533, 0.349
    (ra, rb), n, (saa, sbb), sab = p.rho, p.n, p.sigma, p.sigma_ab
    r = 1 / jnp.cbrt(n)
    den = 1 / (1 + d * r)
    delta = (c + d * den) * r
    cf = 2 ** (11 / 3) * 0.3 * (3 * math.pi**2) ** (2 / 3)
    eight_thirds = jnp.square(ra * jnp.cbrt(ra)) + jnp.square(rb * jnp.cbrt(rb))
    # omega n^2 = e^(-c r) den n^(-5/3); ra rb / n^2 = q
    xa, xb = ra / n, rb / n
    inner = (
        xa
        * xb
        * (
            cf * eight_thirds
            + (47 - 7 * delta) / 18 * p.sigma_total
            - (45 - delta) / 18 * (saa + sbb)
            - (delta - 11) / 9 * (xa * saa + xb * sbb)
        )
        - 4 / 3 * sab
        - xa * xa * sbb
        - xb * xb * saa
    )
    return -a * den * (4 * xa * rb + b * jnp.exp(-c * r) * r**5 * inner)


def p86(p):
    """n eps_PZ + e^(-Phi) C(n) |grad n|^2 / (d n^(4/3)), Phi = 0.19195 (C(inf)/C(n)) |grad n| / n^(7/6).

    doi:10.1103/PhysRevB.33.8822.
    """
    rs, (up, down) = p.rs, p.opposite
    c_inf = 0.001667 + 0.002568
    c = 0.001667 + (0.002568 + rs * (0.023266 + 7.389e-6 * rs)) / (
        1 + rs * (8.723 + rs * (0.472 + 1e4 * 7.389e-6 * rs))
    )
    d = jnp.sqrt((up * jnp.square(jnp.cbrt(up)) + down * jnp.square(jnp.cbrt(down))) / 2)
    cbrt = jnp.cbrt(p.n)
    big = 0.19195 * c_inf / c * jnp.sqrt(p.sigma_total / (p.n * p.n * cbrt))
    return p.n * pz_epsilon(p) + jnp.exp(-big) * c * p.sigma_total / (d * p.n * cbrt)
