"""`functional`: whatever a user gives as exchange-correlation functional, as a `Functional`."""

from functools import lru_cache

from jaxqc.xc._features_type import KINDS
from jaxqc.xc.functionals import _libxc
from jaxqc.xc.functionals._functional import Functional
from jaxqc.xc.functionals._parse import parse
from jaxqc.xc.functionals._registry import COMPONENTS
from jaxqc.xc.functionals._user import kind_of


def functional(xc, *, exchange=None, kind=None):
    r"""The exchange-correlation functional that a name or a function stands for.

    .. math:: E = \int f(\rho_\sigma, \nabla\rho_\sigma, \tau_\sigma)\, dr + \sum_i c_i E_x^{exact}(\omega_i)

    Parameters
    ----------
    xc : str, callable or Functional
        A name ("pbe", "B3LYP", "cam-b3lyp", "hf"), a libxc identifier ("gga_x_pbe"), or a sum in PySCF's notation:
        "exchange, correlation", terms as factor*name, "HF" for exact exchange, "RSH(omega, alpha, beta)" for
        alpha K + beta K_SR(omega), "SR_HF(omega)", "LR_HF(omega)". Case, spaces and hyphens do not matter. "lda" alone
        is exchange only, "b3lyp" has VWN-RPA, both as in PySCF. Names that `names()` lacks run in PySCF's libxc on the
        host (a log record says so once). Or a function `features -> (n,)` that gives the energy per volume in
        Hartree / Bohr^3, such as a Flax module bound to its parameters.
    exchange : float or sequence of (float, float), optional
        Exact exchange that goes with a function: a factor, or pairs (c, omega); omega in 1/Bohr, 0 for full range and
        > 0 for the long-range part.
    kind : "lda", "gga" or "mgga", optional
        What a function reads of the features. Without it, it is found by tracing the function.

    Returns
    -------
    Functional

    Raises
    ------
    ValueError
        Unknown name (with near names), unreadable description, or a function whose result has not the shape (n,).
    NotImplementedError
        Parts that jaxqc does not have: dispersion (-D3, -D4), VV10, MP2 of double hybrids, the Laplacian.
    AttributeError
        A function that asks for a feature which the declared kind lacks.

    Examples
    --------
    >>> from jaxqc.xc.functionals import functional
    >>> functional("hse06").exchange
    ((0.25, 0.0), (-0.25, 0.11))
    >>> functional(lambda features: -0.7 * features.rho.sum(0) ** (4 / 3)).kind
    'lda'
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(map(repr, KINDS))}.")
    named = isinstance(xc, (Functional, str))
    if named and (exchange is not None or kind is not None):
        raise ValueError(
            f"exchange and kind describe a user's function; xc is {xc if isinstance(xc, str) else xc.name!r}, which "
            f"has its own. Leave them out, or write the exact exchange into the name, as in '0.25*HF + 0.75*PBE, PBE'."
        )
    if isinstance(xc, Functional):
        return xc
    if isinstance(xc, str):
        return _named(xc)
    if not callable(xc):
        raise TypeError(
            f"xc is {xc!r} of type {type(xc).__name__}; it must be a name such as 'b3lyp', or a function of the "
            f"features that returns the energy per volume, shape (n,)."
        )
    name = getattr(xc, "__name__", type(xc).__name__)
    return Functional(name, kind_of(xc, kind), _pairs(exchange), (), "user", xc)


@lru_cache(maxsize=256)
def _named(text):
    exact, parts = parse(text)
    own = [identifier in COMPONENTS for _, identifier in parts]
    kinds = [COMPONENTS[i][0] if i in COMPONENTS else _libxc.describe(i)[0] for _, i in parts]
    kind = max(kinds, key=KINDS.index, default="lda")
    source = "jaxqc" if all(own) else "mixed" if any(own) else "libxc"
    return Functional(text.strip(), kind, exact, parts, source)


def _pairs(exchange):
    if exchange is None:
        return ()
    try:
        if isinstance(exchange, (int, float)):
            exchange = ((exchange, 0.0),)
        pairs = tuple((float(c), float(omega)) for c, omega in exchange)
        if all(omega >= 0 for _, omega in pairs):
            return tuple(p for p in pairs if p[0])
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"exchange is {exchange!r}; it must be one factor of full-range exact exchange, such as 0.25, or pairs "
        f"(c, omega) with omega >= 0 in 1/Bohr, such as ((0.25, 0.0), (-0.25, 0.11))."
    )
