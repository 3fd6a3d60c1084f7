"""Strings of functionals as PySCF and libxc write them."""

import contextlib
import difflib
import io
import re

from jaxqc.xc.functionals import _libxc
from jaxqc.xc.functionals._names import COMPOUND, CORRELATION, EXCHANGE, SINGLE, key, names
from jaxqc.xc.functionals._registry import COMPONENT_EXCHANGE, COMPONENTS, COMPOSITES

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_TERM = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<factor>{_NUMBER})\*)?(?P<name>[a-z]\w*(?:-(?!{_NUMBER}\*[a-z])\w+)*|\d+(?![\w.*]))"
    rf"(?:\((?P<arguments>[^()]*)\))?(?:\*(?P<after>{_NUMBER}))?"
)
_DISPERSION = re.compile(
    r"-(d|d2|d3|d3bj|d3zero|d3bjm|d3zerom|d3op|d3\(\w+\)|d4s?|xdm|mbd|ts|nl|gd3|gd3bj|3c)(?![\w(])"
)
_DOUBLE_HYBRID = re.compile(
    r"(b2|mpw2|b2k|b2t|b2gp|b2nc)p?lyp|pwpb95|xyg3|xygjos|.*dsd.*|.*qidh|pbe0dh|pbe02|wb97x2.*|wb97m\(?2\)?|ptpss"
)


def parse(text):
    """(exact exchange ((c, omega), ...), parts ((factor, identifier), ...)) of a description; see `functional`."""
    clean = "".join(text.lower().split())
    found = _DISPERSION.search(clean)
    if found:
        raise NotImplementedError(
            f"The functional {text!r} asks for the dispersion correction {found.group()[1:].upper()!r}, which jaxqc "
            f"does not include. Leave the suffix out to compute without dispersion, or add that energy yourself."
        )
    if not clean.strip(",+-"):
        raise ValueError(f"The functional is empty ({text!r}); give a name such as 'pbe' or 'b3lyp'.")
    sides = _split_sides(clean)
    if len(sides) > 2:
        raise ValueError(
            f"The functional {text!r} has {len(sides) - 1} commas; at most one may stand in it, between exchange and "
            f"correlation, as in '0.25*HF + 0.75*PBE, PBE'."
        )
    exchange, parts = {}, {}
    for side, section in zip(sides, ("xc",) if len(sides) == 1 else ("x", "c"), strict=True):
        _add_side(side, section, text, 1.0, exchange, parts)
    _resolve_bare(exchange, text)
    return (
        tuple((c, omega) for omega, c in sorted(exchange.items()) if c),
        tuple((c, identifier) for identifier, c in parts.items() if c),
    )


def _split_sides(clean):
    """Split at commas that are not inside parentheses."""
    return re.split(r",(?![^()]*\))", clean)


def _add_side(side, section, text, scale, exchange, parts):
    position = 0
    while position < len(side):
        match = _TERM.match(side, position)
        if not match or (position and not match["sign"]):
            raise ValueError(
                f"The functional {text!r} cannot be read from {side[position:]!r} on. Write terms as factor*name "
                f"joined by + or -, with one comma between exchange and correlation, as in '0.25*HF + 0.75*PBE, PBE'."
            )
        factor = scale * (-1.0 if match["sign"] == "-" else 1.0)
        factor *= float(match["factor"] or 1.0) * float(match["after"] or 1.0)
        if not abs(factor) <= 1e6:
            raise ValueError(
                f"In the functional {text!r}, the factor of {match['name']!r} is {factor:g}; that is no mixture."
            )
        name, end = match["name"], match.end()
        # A hyphen belongs to the longest name that is known; what follows it otherwise is subtracted.
        pieces = name.split("-")
        if len(pieces) > 1:
            for count in range(len(pieces), 0, -1):
                shorter = "-".join(pieces[:count])
                if count == 1 or _known(shorter, section):
                    break
            if shorter != name:
                end = match.start("name") + len(shorter)
                name = shorter
                if match["factor"] is None and match["after"]:
                    factor /= float(match["after"])
                if not _known(name, section):
                    raise _unknown(match["name"], section, text)
        arguments = match["arguments"] if end == match.end() else None
        _add_term(name, arguments, section, factor, text, exchange, parts)
        position = end


def _known(name, section):
    try:
        _lookup(name, section)
    except (KeyError, NotImplementedError):
        return name in ("hf", "rsh", "sr_hf", "lr_hf", "sr-hf", "lr-hf") or bool(_DOUBLE_HYBRID.fullmatch(key(name)))
    return True


def _add_term(name, arguments, section, factor, text, exchange, parts):
    exact = _exact_exchange(name, arguments, text)
    if exact is not None:
        for c, omega in exact:
            exchange[omega] = exchange.get(omega, 0.0) + factor * c
        return
    if _DOUBLE_HYBRID.fullmatch(key(name if arguments is None else f"{name}({arguments})")):
        raise NotImplementedError(
            f"The functional {name!r} in {text!r} is a double hybrid: it needs MP2 correlation energy, which jaxqc "
            f"does not have. Choose a hybrid such as 'b3lyp', 'wb97x' or 'm06-2x'."
        )
    if arguments is not None:
        raise ValueError(f"In the functional {text!r}, {name!r} takes no arguments in parentheses.")
    try:
        found = _lookup(name, section)
    except KeyError:
        raise _unknown(name, section, text) from None
    if isinstance(found, str):  # another description
        for side, sub in zip(_split_sides("".join(found.split())), ("x", "c"), strict=False):
            _add_side(side, sub, text, factor, exchange, parts)
        return
    exact, identifiers = found
    for c, omega in exact:
        exchange[omega] = exchange.get(omega, 0.0) + factor * c
    for c, identifier in identifiers:
        _add_identifier(identifier, factor * c, exchange, parts)


def _add_identifier(identifier, factor, exchange, parts):
    if identifier in COMPOSITES:
        exact, inner = COMPOSITES[identifier]
        for c, part in inner:
            parts[part] = parts.get(part, 0.0) + factor * c
    else:
        exact = COMPONENT_EXCHANGE.get(identifier, ())
        if identifier not in COMPONENTS:
            exact = _libxc.describe(identifier)[1]
        parts[identifier] = parts.get(identifier, 0.0) + factor
    for c, omega in exact:
        exchange[omega] = exchange.get(omega, 0.0) + factor * c


def _exact_exchange(name, arguments, text):
    """((c, omega), ...) of a term that stands for exact exchange, else None."""
    plain = key(name)
    if plain not in ("hf", "rsh", "srhf", "lrhf"):
        return None
    try:
        values = [float(v) for v in re.split("[,;]", arguments)] if arguments else []
    except ValueError:
        values = [-1.0]
    if plain == "hf" and arguments is None:
        return ((1.0, 0.0),)
    if plain == "rsh" and len(values) == 3 and ";" in arguments:
        values = [values[2], values[0], values[1]]  # PySCF: RSH(alpha; beta; omega), but RSH(omega, alpha, beta)
    if plain == "rsh" and len(values) == 3 and values[0] > 0:
        omega, alpha, beta = values
        return ((alpha + beta, 0.0), (-beta, omega))
    if plain == "rsh" and len(values) == 3 and values[0] == 0:
        return ((values[1] + values[2], 0.0),)
    if plain in ("srhf", "lrhf") and len(values) <= 1 and (not values or values[0] > 0):
        omega = values[0] if values else "bare"
        return ((1.0, 0.0), (-1.0, omega)) if plain == "srhf" else ((1.0, omega),)
    raise ValueError(
        f"In the functional {text!r}, the exact exchange {name}({arguments or ''}) cannot be read: write HF, "
        f"RSH(omega, alpha, beta), SR_HF(omega) or LR_HF(omega) with omega > 0 in 1/Bohr."
    )


def _resolve_bare(exchange, text):
    """SR_HF and LR_HF without omega take that of the rest of the description."""
    bare = exchange.pop("bare", None)
    if bare is None:
        return
    omegas = [omega for omega in exchange if omega]
    if len(omegas) != 1:
        raise ValueError(
            f"The functional {text!r} has SR_HF or LR_HF without omega, and {len(omegas)} values of omega elsewhere. "
            f"Give omega in parentheses, as in SR_HF(0.11)."
        )
    exchange[omegas[0]] += bare


def _lookup(name, section):
    """A description (str), or (exact exchange, ((factor, identifier), ...)). KeyError where the name is unknown."""
    short = key(name)
    if section == "xc" and short in COMPOUND:
        return COMPOUND[short]
    table = {"xc": {}, "x": EXCHANGE, "c": CORRELATION}[section]
    if short in table or short in SINGLE:
        return (), ((1.0, table.get(short) or SINGLE[short]),)
    return _ask_pyscf(name, section)


def _ask_pyscf(name, section):
    library = _libxc._library()
    for spelling in dict.fromkeys((name, name.replace("-", "_"), name.replace("-", ""))):
        description = {"xc": "{}", "x": "{},", "c": ",{}"}[section].format(spelling)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # it reports how it chose between several matches
                (short, long, omega), found = library.parse_xc(description)
        except (KeyError, ValueError, AssertionError):
            continue
        table = _libxc.identifiers()
        if any(int(number) not in table for number, _ in found):
            raise KeyError(name)
        exact = ((float(short), 0.0), (float(long - short), float(omega))) if omega else ((float(short), 0.0),)
        return exact, tuple((float(c), table[int(number)]) for number, c in found)
    raise KeyError(name)


def _unknown(name, section, text):
    candidates = {key(n): n for n in [*_libxc.known_names(), *names()]}
    near = [candidates[n] for n in difflib.get_close_matches(key(name), candidates, n=5, cutoff=0.6)]
    where = {"xc": "", "x": " as exchange (before the comma)", "c": " as correlation (after the comma)"}[section]
    message = f"The functional {name!r} in {text!r} is unknown{where}."
    if section == "xc" and key(name) in CORRELATION:
        return ValueError(f"{message} It is a correlation functional: write {',' + name!r} for correlation alone.")
    if section == "xc" and key(name) in EXCHANGE:
        return ValueError(f"{message} It is an exchange functional: write {name + ','!r} for exchange alone.")
    hint = f"Near names: {', '.join(near)}." if near else "jaxqc.xc.functionals.names() lists what jaxqc has itself."
    return ValueError(f"{message} {hint}")
