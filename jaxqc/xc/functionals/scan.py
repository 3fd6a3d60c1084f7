"""SCAN (doi:10.1103/PhysRevLett.115.036402) and r2SCAN (doi:10.1021/acs.jpclett.0c02405).

Both mix two limits by the iso-orbital indicator alpha = (tau - tau_W) / tau_unif, which is 0 for one orbital and 1 for
the uniform gas.
"""

import math

import jax.numpy as jnp

from jaxqc.xc.functionals._point import clamp
from jaxqc.xc.functionals.gga_c import GAMMA, phi, t_squared
from jaxqc.xc.functionals.gga_x import S2, x2
from jaxqc.xc.functionals.lda import AX, FZ20, PW_A_MOD, PW_TAIL, f_zeta, pow43, pw_g, pw_g_slope

_EXCHANGE = (0.667, 0.8, 1.24)  # c1, c2, d of f(alpha)
_CORRELATION = (0.64, 1.5, 0.7)
_K1, _H0X, _A1 = 0.065, 1.174, 4.9479
_MU = 10 / 81
_CF = 0.3 * (6 * math.pi**2) ** (2 / 3)  # tau of the uniform gas of one spin is _CF rho^(5/3)
_B2 = math.sqrt(5913 / 405000)
_B1 = 511 / 13500 / (2 * _B2)
_B4 = _MU**2 / _K1 - 1606 / 18225 - _B1**2
_ETA, _DP2 = 1e-3, 0.361
# r2SCAN's f(alpha) up to 2.5: coefficients of alpha^0 to alpha^7 (from rSCAN, doi:10.1063/1.5094646).
_FX = (1.0, -0.667, -0.4445555, -0.663086601049, 1.451297044490, -0.887998041597, 0.234528941479, -0.023185843322)
_FC = (1.0, -0.64, -0.4352, -1.535685604549, 3.061560252175, -1.915710236206, 0.516884468372, -0.051848879792)


def _pow53(x):
    return x * jnp.square(jnp.cbrt(x))


def _scan_switch(alpha, c1, c2, d):
    """exp(-c1 alpha / (1 - alpha)) below 1, -d exp(c2 / (1 - alpha)) above: flat at 1 to all orders."""
    # Within 0.01 of 1 it is below 1e-27: the pole is never evaluated.
    below, above = alpha < 0.99, alpha > 1.01
    low, high = jnp.where(below, alpha, 0.0), jnp.where(above, alpha, 2.0)
    # One exponential for both branches.
    value = jnp.exp(jnp.where(below, -c1 * low / (1 - low), c2 / (1 - high)))
    return jnp.where(below, value, jnp.where(above, -d * value, 0.0))


def _r2scan_switch(alpha, c2, d, polynomial):
    """The polynomial up to alpha = 2.5, -d exp(c2 / (1 - alpha)) beyond."""
    far = alpha > 2.5
    near, high = jnp.where(far, 0.0, alpha), jnp.where(far, alpha, 3.0)
    return jnp.where(far, -d * jnp.exp(c2 / (1 - high)), jnp.polyval(jnp.array(polynomial[::-1]), near, unroll=8))


def _slope_at_one(polynomial):
    return sum(i * c for i, c in enumerate(polynomial))


def _exchange(p, enhancement):
    """sum_s -AX rho_s^(4/3) F(s^2, tau, tau_W, tau_unif) (1 - exp(-a1 / sqrt(s)))."""
    total = 0.0
    for r, sigma, tau in zip(p.rho, p.sigma, p.tau, strict=True):
        s2 = S2 * x2(r, sigma)
        damping = -jnp.expm1(-_A1 / jnp.sqrt(jnp.sqrt(s2)))
        total = total - AX * pow43(r) * enhancement(s2, tau, sigma / (8 * r), _CF * _pow53(r)) * damping
    return total


def scan_x(p):
    """F = [h1 + f(alpha) (1.174 - h1)] (1 - e^(-a1 s^(-1/2))), h1 = 1 + k1 x / (k1 + x).

    doi:10.1103/PhysRevLett.115.036402.
    """

    def enhancement(s2, tau, weizsaecker, uniform):
        alpha = clamp((tau - weizsaecker) / uniform, 0.0)
        shift = 1 - alpha
        x = _MU * s2 + _B4 * s2 * s2 * jnp.exp(-_B4 / _MU * s2)
        x = x + jnp.square(_B1 * s2 + _B2 * shift * jnp.exp(-0.5 * shift * shift))
        h1 = 1 + _K1 * x / (_K1 + x)
        return h1 + _scan_switch(alpha, *_EXCHANGE) * (_H0X - h1)

    return _exchange(p, enhancement)


def r2scan_x(p):
    """As SCAN with alpha = (tau - tau_W) / (tau_unif + eta tau_W), x = (C e^(-s^4/0.361^4) + 10/81) s^2.

    doi:10.1021/acs.jpclett.0c02405.
    """
    c = -(20 / 27 + _ETA * 5 / 3) * _slope_at_one(_FX) * (1 - _H0X)

    def enhancement(s2, tau, weizsaecker, uniform):
        alpha = clamp((tau - weizsaecker) / (uniform + _ETA * weizsaecker), 0.0)
        x = (c * jnp.exp(-s2 * s2 / _DP2**4) + _MU) * s2
        h1 = 1 + _K1 * x / (_K1 + x)
        return h1 + _r2scan_switch(alpha, *_EXCHANGE[1:], _FX) * (_H0X - h1)

    return _exchange(p, enhancement)


def _lsda0(rs):
    """eps_c of the one-orbital limit without spin and gradient, and its derivative in rs."""
    root = jnp.sqrt(rs)
    value = -0.0285764 / (1 + 0.0889 * root + 0.125541 * rs)
    return value, value * value / 0.0285764 * (0.0889 / (2 * root) + 0.125541)


def _with_gradient(epsilon, scale, y):
    """eps + scale ln(1 + (e^(-eps/scale) - 1) (1 - g)), g = (1 + 4y)^(-1/4), in the form that does not cancel."""
    return scale * jnp.log1p(jnp.expm1(epsilon / scale) * jnp.exp(-0.25 * jnp.log1p(4 * y)))


def _correlation(p, regularised):
    rs, f, z, ph3 = p.rs, f_zeta(p), p.zeta, phi(p) ** 3
    s2 = p.sigma_total / (4 * (3 * math.pi**2) ** (2 / 3) * jnp.square(pow43(p.n)))
    up, down = p.opposite
    d = (_pow53(up) + _pow53(down)) / 2
    weizsaecker = p.sigma_total / (8 * p.n)
    uniform = 0.3 * (3 * math.pi**2) ** (2 / 3) * _pow53(p.n) * d
    alpha = clamp((p.tau[0] + p.tau[1] - weizsaecker) / (uniform + _ETA * weizsaecker if regularised else uniform), 0.0)
    # One orbital: (eps_LDA0 + H0) G(zeta).
    lda0, slope0 = _lsda0(rs)
    spin = (1 - 2.363 * (2 ** (1 / 3) - 1) * f) * (1 - z**12)
    single = spin * _with_gradient(lda0, 0.0285764, 0.12802585262625815 * s2)
    # Uniform gas: PW92 + H1.
    root = jnp.sqrt(rs)
    parts = [pw_g(root, a, *t) for a, t in zip(PW_A_MOD, PW_TAIL, strict=True)]
    z4 = z**4
    weights = (1 - f * z4, f * z4, -f * (1 - z4) / FZ20)
    lsda = sum(w * x for w, x in zip(weights, parts, strict=True))
    w1 = jnp.expm1(-lsda / (GAMMA * ph3))
    beta = 0.066724550603149220 * (1 + 0.1 * rs) / (1 + 0.1778 * rs)
    y = beta / (GAMMA * w1) * t_squared(p, phi(p))
    if regularised:
        slopes = [pw_g_slope(root, a, *t) for a, t in zip(PW_A_MOD, PW_TAIL, strict=True)]
        slope = sum(w * x for w, x in zip(weights, slopes, strict=True))
        change = 20 * rs * (slope0 * spin - slope) - 45 * _ETA * (lda0 * spin - lsda)
        change = change * s2 * jnp.exp(-s2 * s2 / _DP2**4) * (_slope_at_one(_FC) / (27 * GAMMA))
        y = y - change / (d * ph3 * w1)
        switch = _r2scan_switch(alpha, *_CORRELATION[1:], _FC)
    else:
        switch = _scan_switch(alpha, *_CORRELATION)
    uniform_limit = _with_gradient(lsda, GAMMA * ph3, y)
    return p.n * (uniform_limit + switch * (single - uniform_limit))


def scan_c(p):
    """n [eps_1 + f(alpha) (eps_0 - eps_1)]. doi:10.1103/PhysRevLett.115.036402."""
    return _correlation(p, False)


def r2scan_c(p):
    """As SCAN with the regularised alpha, its polynomial f, and the correction dy. doi:10.1021/acs.jpclett.0c02405."""
    return _correlation(p, True)
