"""Functionals as arguments of compiled programs: the static part, and the arrays on which a user's function depends.

A user's function may close over arrays (parameters of a network, `functools.partial`, `jax.tree_util.Partial`). They
are found by tracing it once and become operands of the program, so that energies can be differentiated with respect to
them and other values compile nothing.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

# Points with which a user's function is tried out.
_TRIAL = 7


@dataclass(frozen=True, eq=False)
class BoundFunctional:
    """A functional without its parameters; equal ones compute the same from equal parameters.

    Attributes:
        name: for messages and results.
        kind: "lda", "gga" or "mgga".
        exchange: terms (coefficient, omega) of exact exchange.
        key: what decides whether two are equal.
        function: from `Features` to the energy per volume.
        named: whether it comes by a name, and not as a user's function.
    """

    name: str
    kind: str
    exchange: tuple[tuple[float, float], ...]
    key: Any
    function: Any
    named: bool = True

    def __eq__(self, other):
        return isinstance(other, BoundFunctional) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def apply(self, parameters):
        """The functional with the given arrays in the place of those that were found in the function."""
        return _Applied(self, parameters)


class _Applied:
    """What evaluates a functional: `kind`, `exchange` and `energy_density` as those of `jaxqc.xc.Functional`."""

    def __init__(self, bound, parameters):
        self.name, self.kind, self.exchange = bound.name, bound.kind, bound.exchange
        self._function, self._parameters = bound.function, parameters

    def energy_density(self, features):
        """(n,) Hartree/Bohr^3."""
        if not self._parameters:
            return self._function(features)
        closed, where = _traced_function(self._function, features)
        consts = list(closed.consts)
        for i, value in zip(where, self._parameters, strict=True):
            consts[i] = value
        leaves = jax.tree.leaves(features)
        return jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(closed.jaxpr, consts))(*leaves)[0]


def read(xc):
    """The `Functional` that the argument `xc` means."""
    from jaxqc.xc import functional

    return functional(xc)


def bind(functional) -> tuple[BoundFunctional, tuple[jax.Array, ...]]:
    """Splits a functional into its static part and its parameters.

    Args:
        functional: `Functional` of `jaxqc.xc.functional(...)`.

    Returns:
        `BoundFunctional` and a tuple of arrays, empty for a functional by name.
    """
    static = (functional.name, functional.kind, _merged(functional.exchange))
    if functional.function is None:
        return BoundFunctional(*static, key=functional, function=functional.energy_density), ()
    function = functional.energy_density
    closed, where = _traced_function(function, _trial_features(functional.kind))
    parameters = tuple(jnp.asarray(closed.consts[i]) for i in where)
    fixed = [_fingerprint(c) for i, c in enumerate(closed.consts) if i not in where]
    key = (*static, str(closed.jaxpr), *fixed, *_hidden(closed.jaxpr), *(_shape(p) for p in parameters))
    return BoundFunctional(*static, key=key, function=function, named=False), parameters


def _merged(exchange):
    """Terms of exact exchange with one coefficient for each omega, and none of coefficient 0."""
    total = {}
    for coefficient, omega in exchange:
        total[float(omega)] = total.get(float(omega), 0.0) + float(coefficient)
    return tuple((coefficient, omega) for omega, coefficient in sorted(total.items()) if coefficient != 0.0)


def _hidden(jaxpr):
    """What the text of a jaxpr does not show: arrays inside of nested functions, and rules of derivatives."""
    found = []
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                if isinstance(item, jax.extend.core.ClosedJaxpr):
                    found += [_fingerprint(c) for c in item.consts]
                    found += _hidden(item.jaxpr)
                elif isinstance(item, jax.extend.core.Jaxpr):
                    found += _hidden(item)
                elif callable(item) or hasattr(item, "f"):
                    found += _rules(item)
    return found


_WRAPPERS = tuple(f"jax._src.{name}" for name in ("interpreters.", "linear_util", "api_util", "custom_derivatives"))


def _rules(item):
    """The functions behind those of JAX, which are made anew in each trace; a function that is not known is kept."""
    if hasattr(item, "f"):
        return _rules(item.f)
    found = []
    if str(getattr(item, "__module__", "")).startswith(_WRAPPERS):
        for cell in getattr(item, "__closure__", None) or ():
            inner = cell.cell_contents
            for function in inner if isinstance(inner, tuple | list) else (inner,):
                if callable(function) or hasattr(function, "f"):
                    found += _rules(function)
    return found or [item]


def _trial_features(kind):
    from jaxqc.xc import Features

    rho = jax.ShapeDtypeStruct((2, _TRIAL), jnp.float64)
    grad = jax.ShapeDtypeStruct((2, 3, _TRIAL), jnp.float64)
    return Features(kind, {"lda": (rho,), "gga": (rho, grad), "mgga": (rho, grad, rho)}[kind])


def _traced_function(function, features):
    """The function as a jaxpr, and which of its constants are arrays of JAX, and thus parameters."""
    closed = jax.make_jaxpr(function)(features)
    return closed, tuple(i for i, c in enumerate(closed.consts) if isinstance(c, jax.Array))


def _fingerprint(constant):
    array = np.asarray(constant)
    return array.shape, str(array.dtype), array.tobytes()


def _shape(array):
    return array.shape, str(array.dtype), bool(getattr(array, "weak_type", False))
