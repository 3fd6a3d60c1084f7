"""Local density: Slater exchange; correlation of Vosko, Wilk and Nusair, of Perdew and Wang, of Perdew and Zunger."""

import math

import jax.numpy as jnp

AX = 0.75 * (6 / math.pi) ** (1 / 3)  # e_x = -AX sum_s rho_s^(4/3)
_FZ = 1 / (2 ** (4 / 3) - 2)
FZ20 = 8 / 9 * _FZ  # f''(0)


def pow43(r):
    """r^(4/3)."""
    return r * jnp.cbrt(r)


def f_zeta(p):
    """f(zeta) = ((1 + zeta)^(4/3) + (1 - zeta)^(4/3) - 2) / (2^(4/3) - 2)."""
    up, down = p.opposite
    return (pow43(up) + pow43(down) - 2) * _FZ


def slater(p):
    """e_x = -(3/4) (6/pi)^(1/3) sum_s rho_s^(4/3). Dirac 1930, doi:10.1017/S0305004100016108."""
    return -AX * (pow43(p.rho[0]) + pow43(p.rho[1]))


# (A, x0, b, c) of Vosko, Wilk and Nusair 1980, doi:10.1139/p80-159, in Hartree: electron gas of Ceperley and Alder
# (VWN5: unpolarised, polarised, spin stiffness) and of the random phase approximation.
_VWN5 = (
    (0.0310907, -0.10498, 3.72744, 12.9352),
    (0.01554535, -0.32500, 7.06042, 18.0578),
    (-1 / (6 * math.pi**2), -0.0047584, 1.13107, 13.0045),
)
_VWN_RPA = ((0.0310907, -0.409286, 13.0720, 42.7198), (0.01554535, -0.743294, 20.1231, 101.578))


def _vwn_fit(x, A, x0, b, c):
    """A [ln(x^2/X) + 2b/Q atan(Q/(2x+b)) - b x0/X(x0) (ln((x-x0)^2/X) + 2(b+2 x0)/Q atan(Q/(2x+b)))], X = x^2+bx+c."""
    q = math.sqrt(4 * c - b * b)
    big = x * x + b * x + c
    atan = jnp.arctan(q / (2 * x + b))
    share = b * x0 / (x0 * x0 + b * x0 + c)
    log = jnp.log(big)
    return A * (
        (1 - share) * -log
        + 2 * jnp.log(x)
        + 2 * b / q * atan
        - share * (2 * jnp.log(x - x0) + 2 * (b + 2 * x0) / q * atan)
    )


def vwn5(p):
    """Correlation VWN5 (form V of the paper). doi:10.1139/p80-159."""
    x = jnp.sqrt(p.rs)
    para, ferro, stiffness = (_vwn_fit(x, *c) for c in _VWN5)
    f, z4 = f_zeta(p), p.zeta**4
    return p.n * (para + stiffness * f * (1 - z4) / FZ20 + (ferro - para) * f * z4)


def vwn_rpa(p):
    """Correlation VWN fitted to the random phase approximation, as in B3LYP. doi:10.1139/p80-159."""
    x = jnp.sqrt(p.rs)
    para, ferro = (_vwn_fit(x, *c) for c in _VWN_RPA)
    return p.n * (para + (ferro - para) * f_zeta(p))


# (A, alpha1, beta1..beta4) of Perdew and Wang 1992, doi:10.1103/PhysRevB.45.13244: unpolarised, polarised, -stiffness.
PW_TAIL = (
    (0.21370, 7.5957, 3.5876, 1.6382, 0.49294),
    (0.20548, 14.1189, 6.1977, 3.3662, 0.62517),
    (0.11125, 10.357, 3.6231, 0.88026, 0.49671),
)
PW_A = (0.031091, 0.015545, 0.016887)  # as printed
PW_A_MOD = (0.0310907, 0.01554535, 0.0168869)  # with more digits, as PBE's own program has them


def pw_g(root, A, alpha1, b1, b2, b3, b4):
    """-2A (1 + alpha1 rs) ln(1 + 1/(2A (b1 rs^(1/2) + b2 rs + b3 rs^(3/2) + b4 rs^2)))."""
    return (
        -2 * A * (1 + alpha1 * root**2) * jnp.log1p(1 / (2 * A * root * (b1 + root * (b2 + root * (b3 + root * b4)))))
    )


def pw_g_slope(root, A, alpha1, b1, b2, b3, b4):
    """d/drs of `pw_g`."""
    q = 2 * A * root * (b1 + root * (b2 + root * (b3 + root * b4)))
    slope = A * (b1 / root + 2 * b2 + root * (3 * b3 + 4 * b4 * root))
    return 2 * A * ((1 + alpha1 * root**2) * slope / (q * q + q) - alpha1 * jnp.log1p(1 / q))


def pw_ferro(rs):
    """PW92 energy per electron of the fully polarised gas (more digits)."""
    return pw_g(jnp.sqrt(rs), PW_A_MOD[1], *PW_TAIL[1])


def pw_epsilon(p, a=PW_A_MOD, fz20=FZ20):
    """PW92 correlation energy per electron."""
    root = jnp.sqrt(p.rs)
    para, ferro, minus = (pw_g(root, x, *t) for x, t in zip(a, PW_TAIL, strict=True))
    f, z4 = f_zeta(p), p.zeta**4
    return para - minus * f * (1 - z4) / fz20 + (ferro - para) * f * z4


def pw92(p):
    """Correlation PW92 with the digits of the paper. doi:10.1103/PhysRevB.45.13244."""
    return p.n * pw_epsilon(p, PW_A, 1.709921)


def pw92_mod(p):
    """Correlation PW92 with more digits, as PBE uses it. doi:10.1103/PhysRevB.45.13244."""
    return p.n * pw_epsilon(p)


# (gamma, beta1, beta2, A, B, C, D) of Perdew and Zunger 1981, doi:10.1103/PhysRevB.23.5048.
_PZ = (
    (-0.1423, 1.0529, 0.3334, 0.0311, -0.048, 0.0020, -0.0116),
    (-0.0843, 1.3981, 0.2611, 0.01555, -0.0269, 0.0007, -0.0048),
)


def pz_epsilon(p):
    """Perdew-Zunger correlation energy per electron."""
    rs = p.rs
    root, log = jnp.sqrt(rs), jnp.log(rs)

    def fit(g, b1, b2, A, B, C, D):
        return jnp.where(rs >= 1, g / (1 + b1 * root + b2 * rs), A * log + B + C * rs * log + D * rs)

    para, ferro = (fit(*c) for c in _PZ)
    return para + (ferro - para) * f_zeta(p)


def pz(p):
    """Correlation of Perdew and Zunger. doi:10.1103/PhysRevB.23.5048."""
    return p.n * pz_epsilon(p)
