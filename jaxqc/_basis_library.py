"""Basis sets by name, from PySCF's library (imported on first use: it takes half a second)."""

import difflib
import re
import warnings
from functools import lru_cache

_COMMON = (
    ["def2-svp", "def2-tzvp", "def2-tzvpp", "def2-qzvp", "def2-qzvpp", "sto-3g", "3-21g", "6-31g", "6-31g*", "6-31g**"]
    + ["6-311g**", "6-31+g*", "6-311++g**", "cc-pvdz", "cc-pvtz", "cc-pvqz", "cc-pv5z"]
    + ["aug-cc-pvdz", "aug-cc-pvtz", "aug-cc-pvqz", "aug-cc-pv5z", "cc-pcvdz", "cc-pcvtz", "pc-1", "pc-2", "ano-rcc"]
)


def _normal(name):
    """PySCF's spelling of a basis set name: lower case without '-', '_' and blanks."""
    return re.sub(r"[-_\s]", "", name.lower())


def _aliases():
    from pyscf.gto import basis as library

    return (*library.ALIAS, *library.USER_BASIS_ALIAS, *library.GTH_ALIAS)


def _split(name):
    """Takes 'unc' (uncontracted) and '@3s2p' (truncated) off a name."""
    plain = _normal(name.split("@")[0])
    known = plain in _aliases()
    if plain.startswith("unc") and not known:
        return plain[3:], True
    return plain, False


def is_known(name: str) -> bool:
    """Whether PySCF's library (or an installed basis_set_exchange) has a basis set of this name."""
    from pyscf.gto import basis as library

    plain, _ = _split(name)
    if plain in _aliases():
        return True
    if re.fullmatch(r"(6311?|321|431)\+{0,2}g\((\d?[pdfg])+(,(\d?[pdfg])+)?\)", plain):
        return plain[: plain.find("(")] in library.ALIAS
    return _exchange_name(name) is not None


def similar(name: str) -> str:
    """Returns a hint with the known names nearest to `name`, or with common ones."""
    names = {_normal(known): known for known in (*_aliases(), *_COMMON)}
    close = difflib.get_close_matches(_normal(name), list(names), n=3, cutoff=0.6)
    if close:
        return f" Did you mean {' or '.join(repr(names[plain]) for plain in close)}?"
    return " Common ones are " + ", ".join(_COMMON[:6]) + "."


def _exchange_name(name):
    try:
        import basis_set_exchange as exchange  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return name if name.strip().lower() in exchange.get_metadata() else None


@lru_cache(maxsize=1024)
def load(name: str, symbol: str, number: int, ghost: bool = False) -> list:
    """Returns the shells of an element.

    Args:
        name: a name for which `is_known` holds.
        symbol: element symbol.
        number: atomic number.
        ghost: a ghost atom has no core, so that a set made for a potential does as well.

    Returns:
        Shells in PySCF's format, not to be changed.

    Raises:
        ValueError: the set has no functions for the element.
        NotImplementedError: it needs an effective core potential.
    """
    from pyscf.gto import basis as library

    plain, uncontracted = _split(name)
    full = name[3:].lstrip("-_ ") if uncontracted else name
    potential = (
        f"The basis set {name!r} replaces the core electrons of {symbol} by an effective core potential, which jaxqc "
        "does not have yet; choose an all-electron basis set, for example 'ano-rcc', or 'cc-pvtz' up to krypton."
    )
    if not ghost and _needs_potential(full, plain, symbol, number):
        raise NotImplementedError(potential)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shells = library.load(full, symbol)
    except Exception:
        if "@" in name:
            raise ValueError(
                f"Cannot truncate the basis set {name!r} for {symbol}: after '@' there must be counts such as "
                "'3s2p1d', no higher than those of the full set."
            ) from None
        raise ValueError(f"The basis set {name!r} has no functions for {symbol}.") from None
    if not shells:
        raise ValueError(f"The basis set {name!r} has no functions for {symbol}.")
    if not ghost and _lacks_core(shells, number) and not re.search("fit|ri$", plain):
        raise NotImplementedError(potential)
    return _uncontract(shells) if uncontracted else shells


def _uncontract(shells):
    """One function for each different exponent of each angular momentum, exponents falling, as PySCF does it."""
    exponents = {}
    for shell in shells:
        for row in [row for row in shell[1:] if not isinstance(row, int)]:  # an int is PySCF's kappa
            exponents.setdefault(shell[0], {}).setdefault(round(row[0], 9), row[0])
    return [[l, [found[e], 1.0]] for l, found in sorted(exponents.items()) for e in sorted(found, reverse=True)]


def _lacks_core(shells, number):
    """Whether no s function is as steep as the 1s orbital: the density of the core is left to a potential.

    In all all-electron sets of PySCF's library the largest s exponent is above 0.6 Z^2, in all others below.
    """
    steepest = max((row[0] for l, *rows in shells if l == 0 for row in rows if not isinstance(row, int)), default=0.0)
    return number > 2 and steepest < 0.6 * number**2


# Families made for pseudopotentials: with these every element needs one, whether or not PySCF's file holds it.
_POTENTIAL_FAMILIES = re.compile(r"bfd|ccecp|gth|ecpds|(aug)?ccpw?c?v[dtq5]zpp")


def _needs_potential(name, plain, symbol, number):
    from pyscf.gto import basis as library

    if _POTENTIAL_FAMILIES.match(plain):
        return True
    if plain.startswith(("def2", "madef2")) and number > 36 and "fit" not in plain and not plain.endswith("ri"):
        return True
    if not str(library.ALIAS.get(plain, ".dat")).endswith(".dat"):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(library.load_ecp(name, symbol))
    except Exception:
        return False
