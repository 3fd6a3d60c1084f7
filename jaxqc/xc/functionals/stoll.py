"""Parallel and opposite-spin parts of the uniform gas (Stoll's partition), on which B97 and the M06 family build."""

import jax.numpy as jnp

from jaxqc.xc.functionals._point import RS
from jaxqc.xc.functionals.lda import PW_A, PW_A_MOD, PW_TAIL, pw92, pw92_mod, pw_g


def stoll(p, printed_digits=False):
    """((e_aa, e_bb), e_ab) per volume: e_ss = rho_s eps_PW92(rho_s, 0), e_ab the rest of PW92. doi:10.1007/BF00549029.

    printed_digits: the constants as PW92 prints them, as the B97 family has it.
    """
    a = (PW_A if printed_digits else PW_A_MOD)[1]
    same = tuple(r * pw_g(jnp.sqrt(RS / jnp.cbrt(r)), a, *PW_TAIL[1]) for r in p.rho)
    return same, (pw92 if printed_digits else pw92_mod)(p) - same[0] - same[1]
