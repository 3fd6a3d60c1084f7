"""The resolved functional: a name, its local part, and how much exact exchange goes with it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from jaxqc.xc._features_type import KINDS, Features
from jaxqc.xc.functionals._libxc import libxc_energy
from jaxqc.xc.functionals._point import point
from jaxqc.xc.functionals._registry import COMPONENTS


@dataclass(frozen=True)
class Functional:
    """An exchange-correlation functional: E = int f(features) dr + sum c E_x^exact(omega).

    name: how it was asked for. kind: "lda", "gga" or "mgga", what the features must carry.
    exchange: ((c, omega), ...): K_total = sum c K(omega), where omega = 0 is the full Coulomb operator and omega > 0
    its long-range part erf(omega r) / r. parts: ((factor, libxc identifier), ...) of the local part.
    source: "jaxqc", "libxc" (every part runs in PySCF's libxc on the host), "mixed", or "user".

    Frozen, hashable, compared by value (a user's function by identity): fit for a static argument of `jax.jit`.
    """

    name: str
    kind: str
    exchange: tuple[tuple[float, float], ...] = ()
    parts: tuple[tuple[float, str], ...] = ()
    source: str = "jaxqc"
    function: Callable | None = field(default=None, repr=False)

    def energy_density(self, features: Features) -> jax.Array:
        """Energy per volume f(rho, sigma, tau) = rho eps, (n,) Hartree / Bohr^3, at the n points of `features`.

        Finite with finite derivatives everywhere, also where densities, gradients or tau vanish. Raises an
        AttributeError where the features carry less than `kind` asks for.
        """
        if self.function is not None:
            return self.function(features)
        own = [(factor, COMPONENTS[i]) for factor, i in self.parts if i in COMPONENTS]
        total = jnp.zeros_like(features.rho[0])
        if own:
            p = point(features, max((kind for _, (kind, _) in own), key=KINDS.index))
            for factor, (_, component) in own:
                total = total + factor * component(p)
            total = jnp.where(p.active, total, 0.0)
        for factor, identifier in self.parts:
            if identifier not in COMPONENTS:
                total = total + factor * libxc_energy(identifier, features)
        return total

    def __post_init__(self):
        assert self.kind in KINDS
