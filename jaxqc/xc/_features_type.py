"""What an exchange-correlation functional reads at each grid point."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

KINDS = ("lda", "gga", "mgga")
# Components that the map from density matrix to grid makes for each kind: rho; rho and its gradient; these and tau.
COMPONENTS = {"lda": 1, "gga": 4, "mgga": 5}
_SUPPLIED = {"lda": ("rho",), "gga": ("rho", "grad", "sigma"), "mgga": ("rho", "grad", "sigma", "tau")}


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Features:
    """Spin densities and what derives from them at n grid points, in atomic units.

    rho (2, n): spin densities. grad (2, 3, n): their gradients. tau (2, n): kinetic energy densities
    1/2 sum_i |grad psi_i|^2. sigma (3, n): grad rho_s . grad rho_t for aa, ab, bb.
    A feature above the kind ("lda", "gga", "mgga") raises an AttributeError.
    """

    kind: str
    values: tuple

    @classmethod
    def of(cls, rho, grad=None, tau=None):
        """Features from arrays; the kind follows from which are given."""
        if tau is not None:
            return cls("mgga", (rho, grad, tau))
        return cls("lda", (rho,)) if grad is None else cls("gga", (rho, grad))

    @property
    def rho(self):
        return self.values[0]

    @property
    def grad(self):
        return self._ask("grad", 1)

    @property
    def tau(self):
        return self._ask("tau", 2)

    @property
    def sigma(self):
        g = self._ask("sigma", 1)
        return jnp.stack([jnp.sum(g[0] * g[0], axis=0), jnp.sum(g[0] * g[1], axis=0), jnp.sum(g[1] * g[1], axis=0)])

    def _ask(self, name, index):
        if index >= len(self.values):
            raise AttributeError(
                f"The feature {name!r} was asked of densities of kind {self.kind!r}, which carry "
                f"{', '.join(_SUPPLIED[self.kind])}. "
                f"Declare the functional as {'mgga' if name == 'tau' else 'gga'!r}, or leave this feature out."
            )
        return self.values[index]

    def tree_flatten(self):
        return self.values, self.kind

    @classmethod
    def tree_unflatten(cls, kind, values):
        return cls(kind, tuple(values))
