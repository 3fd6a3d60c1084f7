"""The M06 family: doi:10.1063/1.2370993 (M06-L), doi:10.1007/s00214-007-0310-x (M06, M06-2X)."""

import math
from functools import partial

import jax.numpy as jnp

from jaxqc.xc.functionals._point import RHO_FLOOR, clamp
from jaxqc.xc.functionals.gga_c import BETA
from jaxqc.xc.functionals.gga_x import S2, x2
from jaxqc.xc.functionals.lda import AX, pow43
from jaxqc.xc.functionals.stoll import stoll

_CF = 0.6 * (6 * math.pi**2) ** (2 / 3)  # sum_i |grad psi_i|^2 of the uniform gas of one spin is _CF rho^(5/3)


def _polynomial(coefficients, u):
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * u + c
    return total


def _pow53(r):
    return r * jnp.square(jnp.cbrt(r))


def _vsxc(d, alpha, x, z):
    """d0/g + (d1 x^2 + d2 z)/g^2 + (d3 x^4 + d4 x^2 z + d5 z^2)/g^3, g = 1 + alpha (x^2 + z). doi:10.1063/1.476577."""
    g = 1 / (1 + alpha * (x + z))
    d0, d1, d2, d3, d4, d5 = (*d, 0.0, 0.0, 0.0)[:6]
    value = d0 + g * (d1 * x + d2 * z)
    if d3 or d4 or d5:
        value = value + g * g * (d3 * x * x + d4 * x * z + d5 * z * z)
    return g * value


def exchange(p, a, d):
    """sum_s -AX rho_s^(4/3) [F_PBE(x) sum_i a_i w^i + h(x, z)], w = (t - 1)/(t + 1), t = tau_unif/tau."""
    mu, kappa = BETA * math.pi**2 / 3, 0.804
    total = 0.0
    for r, sigma, tau in zip(p.rho, p.sigma, p.tau, strict=True):
        x, uniform = x2(r, sigma), _CF * _pow53(r)
        u = mu * S2 * x
        w = (uniform - 2 * tau) / (uniform + 2 * tau)
        factor = (1 + kappa * u / (kappa + u)) * _polynomial(a, w)
        if d:
            factor = factor + _vsxc(d, 0.00186726, x, (2 * tau - uniform) / _pow53(r))
        total = total - AX * pow43(r) * factor
    return total


def correlation(p, same, opposite, d_same, d_opposite):
    """e_ab (g_ab + h_ab) + sum_s e_ss (g_ss + h_ss) D_s.

    g = sum_i c_i u^i, u = gamma x^2 / (1 + gamma x^2); D = 1 - tau_W / tau; h as in VSXC.
    """
    parallel, mixed = stoll(p)
    total, x_sum, z_sum = 0.0, 0.0, 0.0
    for r, sigma, tau, e in zip(p.rho, p.sigma, p.tau, parallel, strict=True):
        # By the slope in z an empty spin at the floor of tau would have a potential of 1e3 Hartree (1e6 in libxc); with
        # the kinetic energy of a tail it has none.
        x, tau = x2(r, sigma), clamp(tau, 1e-3 * RHO_FLOOR)
        z = 2 * tau / _pow53(r) - _CF
        g = _polynomial(same, 0.06 * x / (1 + 0.06 * x)) + _vsxc(d_same, 0.00515088, x, z)
        total = total + e * g * (1 - sigma / (8 * r * tau))
        x_sum, z_sum = x_sum + x, z_sum + z
    g = _polynomial(opposite, 0.0031 * x_sum / (1 + 0.0031 * x_sum)) + _vsxc(d_opposite, 0.00304966, x_sum, z_sum)
    return total + mixed * g


m06l_x = partial(
    exchange,
    a=(
        *(0.3987756, 0.2548219, 0.3923994, -2.103655, -6.302147, 10.97615),
        *(30.97273, -23.18489, -56.7348, 21.60364, 34.21814, -9.049762),
    ),
    d=(0.6012244, 0.004748822, -0.008635108, -9.308062e-06, 4.482811e-05),
)
m06_x = partial(
    exchange,
    a=(
        *(0.5877943, -0.1371776, 0.2682367, -2.515898, -2.978892, 8.710679),
        *(16.88195, -4.489724, -32.99983, -14.4905, 20.43747, 12.56504),
    ),
    d=(0.1422057, 0.0007370319, -0.01601373),
)
m062x_x = partial(
    exchange,
    a=(
        *(0.46, -0.2206052, -0.09431788, 2.164494, -2.556466, -14.22133),
        *(15.55044, 35.98078, -27.22754, -39.24093, 15.22808, 15.22227),
    ),
    d=(),
)
m06l_c = partial(
    correlation,
    same=(0.5349466, 0.539662, -31.61217, 51.49592, -29.19613),
    opposite=(0.6042374, 177.6783, -251.3252, 76.35173, -12.55699),
    d_same=(0.4650534, 0.1617589, 0.1833657, 0.00046921, -0.004990573),
    d_opposite=(0.3957626, -0.5614546, 0.01403963, 0.0009831442, -0.003577176),
)
m06_c = partial(
    correlation,
    same=(0.5094055, -1.491085, 17.23922, -38.59018, 28.45044),
    opposite=(3.741539, 218.7098, -453.1252, 293.6479, -62.8747),
    d_same=(0.4905945, -0.1437348, 0.2357824, 0.001871015, -0.003788963),
    d_opposite=(-2.741539, -0.6720113, -0.07932688, 0.001918681, -0.002032902),
)
m062x_c = partial(
    correlation,
    same=(0.3097855, -5.528642, 13.4742, -32.13623, 28.46742),
    opposite=(0.8833596, 33.57972, -70.43548, 49.78271, -18.52891),
    d_same=(0.6902145, 0.09847204, 0.2214797, -0.001968264, -0.006775479),
    d_opposite=(0.1166404, -0.09120847, -0.06726189, 6.72058e-05, 0.0008448011),
)
