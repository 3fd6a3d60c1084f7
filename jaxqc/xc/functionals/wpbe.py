"""Short-range PBE exchange from its hole, as HSE and LC-wPBE use it.

The exchange hole J(s, y) of Ernzerhof and Perdew, doi:10.1063/1.476928, times erfc(w y), w = omega/k_F, integrated
over the distance y (doi:10.1063/1.1564060, doi:10.1063/1.2204597): F = -(8/9) int y J(s, y) erfc(w y) dy. In the term
that has no closed integral, erfc(x) is e^(-b x^2) (1 + sum_i a_i x^i).

The published definition jumps: s is rescaled from s = 1 on only (by 5e-4 there), and fits replace formulas for small s
and large w. Energies of HSE06 and LC-wPBE therefore jump by some 1e-8 Hartree where a grid point crosses these borders,
in every program; their gradients are the derivatives between the jumps, which differences over a border are not.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxqc.xc.functionals._point import clamp
from jaxqc.xc.functionals.gga_x import S2, x2
from jaxqc.xc.functionals.lda import AX, pow43

_A, _B, _C, _D, _E = 1.0161144, -0.37170836, -0.077215461, 0.57786348, -0.051955731
_FIT = (
    *(1.0, -1.128223946706117, 1.452736265762971, -1.243162299390327, 0.971824836115601),
    *(-0.568861079687373, 0.246880514820192, -0.065032363850763, 0.008401793031216),
)
_FIT_EXPONENT = 1.455915450052607
_LARGE_W = 14.0  # above, erfc is e^(-2 x^2)
_S_MAX = 8.572844
_K = 4 * _A / 9
_KF = (6 * math.pi**2) ** (1 / 3)
_EIN = tuple((-1) ** (k + 1) / (k * math.factorial(k)) for k in range(1, 30))
_LEVELS = 26


def _scaled_s2(s2):
    """s^2 of the s that keeps the hole's sum rule: s - ln(1 + e^(s - s_max)) from 1 on. doi:10.1063/1.3185673."""
    far, near = s2 > 225.0, s2 < 1.0
    s = jnp.sqrt(jnp.where(far | near, 4.0, s2))
    bent = s - jnp.log1p(jnp.exp(s - _S_MAX))
    return jnp.where(near, s2, jnp.where(far, _S_MAX**2, bent * bent))


def _hole(s2):
    """(s^2 H(s), C (1 + s^2 F(s)), E (1 + s^2 G(s))) of the PBE hole."""
    h = (0.00979681 + 0.0410834 * s2) * s2
    h = h / (1 + s2 * s2 * (0.187440 + 0.00120824 * jnp.sqrt(s2) + 0.0347188 * s2))
    sh = s2 * h
    c = _C * (1 + s2 * (6.4753871 * h + 0.47965830))
    # E s^2 G from the sum rule; a fit below s = 0.08, where the rule is 0/0.
    small = s2 <= 0.08**2
    p = _D + jnp.where(small, 1.0, sh)
    x = jnp.where(small, 1.0, 9 / (4 * _A) * sh)
    root = jnp.sqrt(p)
    gap = 15 * _E + p * (6 * c + p * (4 * _B + p * 8 * _A))
    gap = gap - p**3 * root * (12 * math.sqrt(math.pi * _A) * jnp.exp(x) * lax.erfc(jnp.sqrt(x)))
    rule = -(gap + 12 * math.sqrt(math.pi) * p**3 * root) / 15
    fit = s2 * (-0.02628417880 + s2 * (-0.07117647788 + s2 * 0.08534541323))
    return sh, c, _E + jnp.where(small, fit, rule)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _moments(x, count):
    """(j_1, ..., j_count), j_i = x^(i/2) e^x Gamma(1 - i/2, x), for an even count.

    int y^(i-1) e^(-q y^2) / (1 + k y^2) dy = Gamma(i/2) j_i / (2 q^(i/2)), x = q/k. From (i/2) j_(i+2) = x (1 - j_i):
    upwards from the exponential integral and erfc where x is small, downwards from continued fractions where it is
    large; the other direction loses all digits. The derivative is (i/2) (j_i - j_(i+2)) / x.
    """
    small = x < 3.0
    # Upwards.
    t = jnp.where(small, x, 1.0)
    ein = jnp.polyval(jnp.array(_EIN[::-1]), t, unroll=1)
    growth, root = jnp.exp(t), jnp.sqrt(t)
    up = [
        math.sqrt(math.pi) * root * growth * lax.erfc(root),
        t * growth * (ein * t - 0.5772156649015329 - jnp.log(t)),
    ]
    for i in range(1, count - 1):
        up.append(t * (1 - up[-2]) * (2 / i))
    # Downwards.
    t = jnp.where(small, 3.0, x)
    top = (count / 2 - 0.5, count / 2)

    def level(i, tails):
        n = (_LEVELS - i).astype(jnp.float64)
        return tuple(n * (n - 1 + a) / (t + 2 * n + a - tail) for a, tail in zip(top, tails, strict=True))

    tails = lax.fori_loop(0, _LEVELS, level, (jnp.zeros_like(t), jnp.zeros_like(t)))
    down = [t / (t + a - tail) for a, tail in zip(top, tails, strict=True)]
    for i in range(count - 2, 0, -1):
        down.insert(0, 1 - i / (2 * t) * down[1])
    return tuple(jnp.where(small, u, d) for u, d in zip(up, down, strict=True))


@_moments.defjvp
def _(count, primals, tangents):
    (x,), (dx,) = primals, tangents
    j = _moments(x, count + 2)
    return j[:count], tuple(i / 2 * (j[i - 1] - j[i + 1]) / x * dx for i in range(1, count + 1))


def _first_term(sh, w):
    """int (A/y) [e^(-D y^2) - 1/(1 + k y^2)] e^(-s^2 H y^2) erfc(w y) dy with the fit of erfc, k = 4A/9."""
    full_range = isinstance(w, float)
    large = jnp.asarray(w > _LARGE_W)
    q = sh + jnp.where(large, 2.0, _FIT_EXPONENT) * w * w
    x, p = q / _K, _D + q
    j = _moments(x, 2 if full_range else 8)
    total = j[1] / x - jnp.log1p(_D / q)
    if full_range:
        return _A / 2 * total
    # The series in w; sums of equal powers of 1/sqrt(p) and 1/sqrt(q).
    w = jnp.where(large, 0.0, w)
    over_p, over_q = w / jnp.sqrt(p), w / jnp.sqrt(q)
    for i in range(1, 9):
        total = total + _FIT[i] * math.gamma(i / 2) * (over_p**i - over_q**i * j[i - 1])
    return _A / 2 * total


def short_range(s2, w):
    """Enhancement factor F(s^2, w) of short-range PBE exchange; w = 0.0 (a Python number) for the full range."""
    s2 = _scaled_s2(clamp(s2, 1e-18))  # the logarithms of s of the full range need not be taken at 0
    sh, c, e = _hole(s2)
    p = _D + sh
    # m_k = int y^(2k+1) e^(-p y^2) erfc(w y) dy by u = 1/(p + w^2), v = w sqrt(u), free of 1 - v = p u/(1 + v).
    u = 1 / (p + w * w)
    v = w * jnp.sqrt(u)
    r = u / (1 + v)
    m0, m1, m2 = r / 2, r * r * (2 + v) / 4, r**3 * (8 + v * (9 + 3 * v)) / 8
    return -8 / 9 * (_first_term(sh, w) + _B * m0 + c * m1 + e * m2)


def wpbe(p, omega):
    """sum_s -AX rho_s^(4/3) F(s, omega/k_F)."""
    # Both spins at once: this is long, and compiling it once is worth more than XLA's merging of equal spins.
    rho, sigma = jnp.stack(p.rho), jnp.stack(p.sigma)
    cbrt = jnp.cbrt(rho)
    w = omega / (_KF * cbrt) if omega else 0.0
    return -AX * jnp.sum(pow43(rho) * short_range(S2 * x2(rho, sigma), w), axis=0)
