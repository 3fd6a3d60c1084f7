"""Functionals that jaxqc does not have itself: PySCF's libxc on the host, with its derivatives."""

import ctypes
import logging
from functools import cache
from itertools import combinations_with_replacement, product

import jax
import jax.numpy as jnp
import numpy as np

_LOG = logging.getLogger("jaxqc.xc")
_VARIABLES = {"lda": 2, "gga": 5, "mgga": 7}  # rho_a, rho_b; sigma_aa, sigma_ab, sigma_bb; tau_a, tau_b


def _library():
    from pyscf.dft import libxc

    return libxc


@cache
def identifiers():
    """{number: identifier in lower case} of every functional in PySCF's libxc."""
    return {int(number): name.lower() for name, number in _library().available_libxc_functionals().items()}


@cache
def known_names():
    """Every name that PySCF's parser knows, in lower case."""
    library = _library()
    return sorted({name.lower() for name in [*library.XC_CODES, *library.XC_ALIAS]})


@cache
def describe(identifier):
    """(kind, ((c, omega), ...)) of a functional that the host can evaluate.

    Raises NotImplementedError where its energy has more terms than a functional of rho, grad rho and tau with exact
    exchange, and ValueError where it is no exchange-correlation functional.
    """
    library = _library()
    if "_k_" in identifier:
        raise ValueError(
            f"{identifier!r} is a functional of the kinetic energy, not of exchange and correlation. "
            f"Choose an exchange-correlation functional, such as 'pbe' or 'b3lyp'."
        )
    if not all(_has_energy(library, part) for part in library._get_xc(identifier).xc_objs):
        raise NotImplementedError(
            f"The functional {identifier!r} is a potential without an energy, and jaxqc's potentials are derivatives "
            "of energies. Choose a functional that has an energy, such as 'pbe'."
        )
    if library.nlc_coeff(identifier):
        raise NotImplementedError(
            f"The functional {identifier!r} contains the non-local correlation VV10, which jaxqc does not have; "
            f"without it the energy would be wrong. Choose a functional without it, such as 'wb97x' or 'r2scan'."
        )
    if library.needs_laplacian(identifier):
        raise NotImplementedError(
            f"The functional {identifier!r} depends on the Laplacian of the density, which jaxqc's grids do not "
            f"compute. Choose one that depends on tau only, such as 'r2scan' or 'm06-l'."
        )
    kind = library.xc_type(identifier).lower()
    if kind not in _VARIABLES:
        raise NotImplementedError(f"PySCF's libxc gives {identifier!r} the type {kind!r}, which jaxqc cannot evaluate.")
    omega, alpha, beta = library.rsh_coeff(identifier)
    if beta and not all(library._itrf.LIBXC_is_cam_rsh(part) for part in library._get_xc(identifier).xc_objs):
        raise NotImplementedError(
            f"The functional {identifier!r} separates ranges by another operator than erf(omega r)/r, which jaxqc's "
            f"exact exchange does not have. Choose one with the error function, such as 'cam-b3lyp' or 'hse06'."
        )
    _LOG.warning(
        "Functional %s is evaluated by PySCF's libxc on the host, at derivatives up to order %d: it runs on one CPU "
        "process and waits for copies on a GPU.",
        identifier,
        library.max_deriv_order(identifier),
    )
    return kind, ((float(alpha + beta), 0.0), (float(-beta), float(omega) if beta else 0.0))


def _has_energy(library, part) -> bool:
    """Whether libxc has the energy of a functional; asked for one that it lacks, libxc ends the process."""
    interface = library._itrf
    interface.xc_func_get_info.restype = ctypes.c_void_p
    interface.xc_func_info_get_flags.argtypes = [ctypes.c_void_p]
    interface.xc_func_info_get_flags.restype = ctypes.c_int
    return bool(interface.xc_func_info_get_flags(interface.xc_func_get_info(part)) & 1)  # XC_FLAGS_HAVE_EXC


def _evaluate(identifier, kind, order, x):
    """Derivatives of one order, (..., terms, n), from x (..., variables, n); terms in lexicographic order."""
    x = np.asarray(x)
    lead, n = x.shape[:-2], x.shape[-1]
    flat = np.moveaxis(x, -2, 0).reshape(x.shape[-2], -1)
    parts = [flat[:2, None]]
    if kind != "lda":
        # libxc reads sigma; PySCF's interface reads gradients: two plane vectors that have these sigma.
        aa, ab, bb = flat[2], flat[3], flat[4]
        grad = np.zeros((2, 3, flat.shape[1]))
        grad[0, 0] = np.sqrt(np.maximum(aa, 0))
        grad[1, 0] = np.divide(ab, grad[0, 0], out=np.zeros_like(ab), where=grad[0, 0] > 0)
        grad[1, 1] = np.sqrt(np.maximum(bb - grad[1, 0] ** 2, 0))
        parts.append(grad)
    if kind == "mgga":
        parts.append(flat[5:7, None])
    out = _library().eval_xc1(identifier, np.concatenate(parts, axis=1), spin=1, deriv=order)
    terms = len(_terms(kind, order))
    out = out[-terms:] if order else out[:1] * (flat[0] + flat[1])
    return np.ascontiguousarray(np.moveaxis(out.reshape(terms, *lead, n), 0, -2))


def _terms(kind, order):
    return list(combinations_with_replacement(range(_VARIABLES[kind]), order))


@cache
def _derivative(identifier, kind, order):
    """x (variables, n) -> tensor (variables,) * order + (n,) of derivatives of the energy density."""
    terms, m = _terms(kind, order), _VARIABLES[kind]
    where = np.array([terms.index(tuple(sorted(i))) for i in product(range(m), repeat=order)], np.int32)
    shape = (m,) * order

    @jax.custom_jvp
    def derivative(x):
        result = jax.ShapeDtypeStruct((len(terms), x.shape[-1]), jnp.float64)
        out = jax.pure_callback(lambda v: _evaluate(identifier, kind, order, v), result, x, vmap_method="expand_dims")
        return out[where].reshape(*shape, x.shape[-1])

    @derivative.defjvp
    def _(primals, tangents):
        if order + 1 > _library().max_deriv_order(identifier):
            raise NotImplementedError(
                f"PySCF's libxc has derivatives of {identifier!r} up to order {order} only; one more was asked for. "
                f"Choose one of jaxqc's own functionals (jaxqc.xc.functionals.names()), which have all orders."
            )
        following = _derivative(identifier, kind, order + 1)(*primals)
        return derivative(*primals), jnp.sum(following * tangents[0], axis=-2)

    return derivative


def libxc_energy(identifier, features):
    """Energy per volume (n,) of a libxc functional at the features, by a callback to the host."""
    kind = _library().xc_type(identifier).lower()
    parts = [features.rho]
    if kind != "lda":
        parts.append(features.sigma)
    if kind == "mgga":
        parts.append(features.tau)
    return _derivative(identifier, kind, 0)(jnp.concatenate(parts))
