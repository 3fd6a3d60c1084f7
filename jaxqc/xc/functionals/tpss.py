"""TPSS: doi:10.1103/PhysRevLett.91.146401."""

import math

import jax.numpy as jnp

from jaxqc.xc.functionals._point import RS
from jaxqc.xc.functionals.gga_c import pbe_epsilon, phi, t_squared
from jaxqc.xc.functionals.gga_x import S2, x2
from jaxqc.xc.functionals.lda import AX, pow43, pw_epsilon, pw_ferro

_KAPPA, _B, _C, _E, _MU = 0.804, 0.40, 1.59096, 1.537, 0.21951
_CF = 0.3 * (6 * math.pi**2) ** (2 / 3)


def tpss_x(p):
    """F = 1 + kappa - kappa / (1 + x/kappa), x(s^2, z = tau_W/tau) of the paper's equation 10, per spin."""
    total = 0.0
    ge, root_e = 10 / 81, math.sqrt(_E)
    for r, sigma, tau in zip(p.rho, p.sigma, p.tau, strict=True):
        s2 = S2 * x2(r, sigma)
        weizsaecker, uniform = sigma / (8 * r), _CF * r * jnp.square(jnp.cbrt(r))
        z2 = jnp.square(weizsaecker / tau)
        alpha = (tau - weizsaecker) / uniform
        q = 0.45 * (alpha - 1) / jnp.sqrt(1 + _B * alpha * (alpha - 1)) + 2 / 3 * s2
        # sqrt((3z/5)^2/2 + s^4/2), with 3z/5 = s^2 tau_unif/tau: no root of a vanishing number
        mixed = s2 * jnp.sqrt(0.5 * (1 + jnp.square(uniform / tau)))
        x = (ge + _C * z2 / jnp.square(1 + z2)) * s2 + 146 / 2025 * q * q - 73 / 405 * q * mixed
        x = x + ge * ge / _KAPPA * s2 * s2 + 2 * root_e * ge * 0.36 * z2 + _E * _MU * s2**3
        x = x / jnp.square(1 + root_e * s2)
        total = total - AX * pow43(r) * (1 + _KAPPA * x / (_KAPPA + x))
    return total


def tpss_c(p):
    """n eps (1 + 2.8 eps z^3), eps = eps_PBE (1 + C z^2) - (1 + C) z^2 sum_s n_s/n max(eps_PBE(n_s), eps_PBE).

    z = tau_W/tau of the total density, C(zeta, xi) of the paper's equations 13 and 14.
    """
    ph = phi(p)
    epsilon = pbe_epsilon(pw_epsilon(p), ph**3, t_squared(p, ph))
    up, down = p.opposite
    z2 = p.zeta**2
    c0 = 0.53 + z2 * (0.87 + z2 * (0.50 + z2 * 2.26))
    # xi^2 = |grad zeta|^2 / (4 (3 pi^2 n)^(2/3)), n^2 |grad zeta|^2 = (1-zeta)^2 aa - 2 (1-zeta^2) ab + (1+zeta)^2 bb
    grad = jnp.square(down) * p.sigma[0] - 2 * up * down * p.sigma_ab + jnp.square(up) * p.sigma[1]
    xi2 = grad / (4 * (3 * math.pi**2) ** (2 / 3) * jnp.square(pow43(p.n)))
    c = c0 / (1 + xi2 * (1 / pow43(up) + 1 / pow43(down)) / 2) ** 4
    single = 0.0
    for r, sigma in zip(p.rho, p.sigma, strict=True):
        # PBE of one fully polarised spin: phi = 2^(-1/3)
        cbrt = jnp.cbrt(r)
        t2 = (math.pi / 3) ** (1 / 3) / 16 * 2 ** (2 / 3) * sigma / (r * r * cbrt)
        single = single + r / p.n * jnp.maximum(pbe_epsilon(pw_ferro(RS / cbrt), 0.5, t2), epsilon)
    z = p.sigma_total / (8 * p.n * (p.tau[0] + p.tau[1]))
    revised = epsilon * (1 + c * z * z) - (1 + c) * z * z * single
    return p.n * revised * (1 + 2.8 * revised * z**3)
