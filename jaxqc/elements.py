"""Chemical elements, atom labels and the unit of length."""

import difflib
import re
from typing import NamedTuple

# Length of one Bohr in Angstrom: CODATA 2010, the constant PySCF uses, so that coordinates agree to the last digit.
BOHR = 0.52917721092

# fmt: off
ELEMENTS = (
    "X", "H", "He", "Li", "Be", "B", "C", "N", "O", "F", "Ne", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "Ar", "K", "Ca",
    "Sc", "Ti", "V", "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ga", "Ge", "As", "Se", "Br", "Kr", "Rb", "Sr", "Y",
    "Zr", "Nb", "Mo", "Tc", "Ru", "Rh", "Pd", "Ag", "Cd", "In", "Sn", "Sb", "Te", "I", "Xe", "Cs", "Ba", "La", "Ce",
    "Pr", "Nd", "Pm", "Sm", "Eu", "Gd", "Tb", "Dy", "Ho", "Er", "Tm", "Yb", "Lu", "Hf", "Ta", "W", "Re", "Os", "Ir",
    "Pt", "Au", "Hg", "Tl", "Pb", "Bi", "Po", "At", "Rn", "Fr", "Ra", "Ac", "Th", "Pa", "U", "Np", "Pu", "Am", "Cm",
    "Bk", "Cf", "Es", "Fm", "Md", "No", "Lr", "Rf", "Db", "Sg", "Bh", "Hs", "Mt", "Ds", "Rg", "Cn", "Nh", "Fl", "Mc",
    "Lv", "Ts", "Og",
)
NAMES = (
    "", "hydrogen", "helium", "lithium", "beryllium", "boron", "carbon", "nitrogen", "oxygen", "fluorine", "neon",
    "sodium", "magnesium", "aluminium", "silicon", "phosphorus", "sulfur", "chlorine", "argon", "potassium", "calcium",
    "scandium", "titanium", "vanadium", "chromium", "manganese", "iron", "cobalt", "nickel", "copper", "zinc",
    "gallium", "germanium", "arsenic", "selenium", "bromine", "krypton",
)
# fmt: on

NUMBERS = {symbol.upper(): number for number, symbol in enumerate(ELEMENTS)}
_NUMBER_OF_NAME = {name: number for number, name in enumerate(NAMES) if name}
_UNITS = {"angstrom": 1 / BOHR, "bohr": 1.0}
_UNIT_WORDS = {
    "angstrom": "angstrom",
    "angstroms": "angstrom",
    "ang": "angstrom",
    "a": "angstrom",
    "å": "angstrom",
    "bohr": "bohr",
    "b": "bohr",
    "au": "bohr",
    "a.u.": "bohr",
}


class Label(NamedTuple):
    """An atom label taken apart.

    Attributes:
        text: the label as PySCF writes it, for example `"O"`, `"H1"`, `"O@2"`, `"GHOST-O"`, `"X-H1"`.
        symbol: element symbol, `"X"` for a ghost without an element.
        number: atomic number of the element (of a ghost as well), 0 for `"X"`.
        ghost: whether the centre carries basis functions only: no nuclear charge and no electrons.
    """

    text: str
    symbol: str
    number: int
    ghost: bool


def shorten(value, limit=60):
    """Returns `repr(value)`, cut to `limit` characters, for error messages."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(word, candidates, count=3):
    """Returns a hint such as `" Did you mean 'cc-pvdz'?"`, or an empty string if nothing is similar."""
    close = difflib.get_close_matches(str(word).lower(), list(candidates), n=count, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


def parse_label(label) -> Label:
    """Reads an atom label: an element symbol or atomic number, with an optional ghost prefix and suffix.

    The rules are PySCF's: case does not matter; a suffix of digits and signs makes a label of its own
    (`"H1"`, `"O@2"`), for which a basis can be given; `"GHOST-O"`, `"ghost_O"`, `"X-O"` is a ghost oxygen.

    Args:
        label: `str`, or `int` for an atomic number (0 is a bare ghost `"X"`).

    Returns:
        The `Label`.

    Raises:
        TypeError: the label is neither text nor an integer.
        ValueError: there is no such element.

    Example:
        >>> parse_label("ghost-cl1")
        Label(text='GHOST-Cl1', symbol='Cl', number=17, ghost=True)
    """
    if isinstance(label, bool) or not (isinstance(label, str) or hasattr(label, "__index__")):
        raise TypeError(
            f"An atom must be an element symbol such as 'O' or an atomic number such as 8, but it is {shorten(label)}."
        )
    if not isinstance(label, str) or re.fullmatch(r"[0-9]{1,4}", label.strip()):
        number = int(label)
        if not 0 <= number < len(ELEMENTS):
            raise ValueError(
                f"There is no element with the atomic number {number}; it must be from 1 to {len(ELEMENTS) - 1}."
            )
        return Label(ELEMENTS[number], ELEMENTS[number], number, number == 0)
    match = re.fullmatch(r"([A-Z]+)([^A-Z\s]*)", label.strip().upper())
    if match and match[1] in NUMBERS:
        symbol = ELEMENTS[NUMBERS[match[1]]]
        return Label(symbol + match[2], symbol, NUMBERS[symbol.upper()], symbol == "X")
    match = re.fullmatch(r"(GHOST|X)(?:[^A-Z\s]?([A-Z]+))?([^A-Z\s]*)", label.strip().upper())
    if match and match[2] is None:
        return Label({"GHOST": "Ghost", "X": "X"}[match[1]] + match[3], "X", 0, True)
    if match and match[2] in NUMBERS and match[2] != "X":
        symbol = ELEMENTS[NUMBERS[match[2]]]
        return Label(f"{match[1]}-{symbol}{match[3]}", symbol, NUMBERS[match[2]], True)
    raise ValueError(_unknown_element(label))


def _unknown_element(label):
    word = label.strip()
    lower = re.sub(r"[^a-z]", "", word.lower())
    if lower in ("d", "t"):
        hint = " Isotopes have no symbols of their own here: write 'H'."
    elif lower in _NUMBER_OF_NAME:
        hint = f" Did you mean {ELEMENTS[_NUMBER_OF_NAME[lower]]!r}?"
    else:
        close = difflib.get_close_matches(lower.capitalize(), ELEMENTS[1:], n=3, cutoff=0.6)
        hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return (
        f"The word {shorten(word)} is not an element symbol; give one such as 'O', with an optional numeric suffix "
        f"('O1', 'O@2') or ghost prefix ('GHOST-O').{hint}"
    )


def length_in_bohr(unit) -> float:
    """Returns the length of a unit in Bohr.

    Args:
        unit: `"angstrom"` (also `"ang"`, `"a"`) or `"bohr"` (also `"b"`, `"au"`); case does not matter.

    Raises:
        TypeError: the unit is not text.
        ValueError: the unit is not known.

    Example:
        >>> length_in_bohr("Bohr")
        1.0
    """
    if not isinstance(unit, str):
        raise TypeError(f"Argument unit must be 'angstrom' or 'bohr', but it is {shorten(unit)}.")
    word = unit.strip().lower()
    if word not in _UNIT_WORDS:
        raise ValueError(
            f"Argument unit must be 'angstrom' or 'bohr', but it is {shorten(unit)}.{nearest(word, _UNITS)}"
        )
    return _UNITS[_UNIT_WORDS[word]]


def formula(labels) -> str:
    """Returns the molecular formula in Hill order (carbon, hydrogen, then alphabetical), ghosts counted apart.

    Args:
        labels: sequence of `Label`.

    Example:
        >>> formula([parse_label(s) for s in ("O", "H", "H", "ghost-O")])
        'H2O + 1 ghost'
    """
    counts: dict[str, int] = {}
    for label in labels:
        if not label.ghost:
            counts[label.symbol] = counts.get(label.symbol, 0) + 1
    first = ["C", "H"] if "C" in counts else []
    order = [s for s in first if s in counts] + sorted(s for s in counts if s not in first)
    text = "".join(s + (str(counts[s]) if counts[s] > 1 else "") for s in order)
    ghosts = sum(label.ghost for label in labels)
    if not ghosts:
        return text
    return f"{text} + {ghosts} ghost{'s' if ghosts > 1 else ''}" if text else f"{ghosts} ghost{'s' * (ghosts > 1)}"
