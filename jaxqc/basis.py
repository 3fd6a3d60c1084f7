"""From what a user calls a basis set to contraction blocks for each atom."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxqc._basis_library import is_known, load, similar
from jaxqc._basis_text import parse_basis_text
from jaxqc.elements import Label, parse_label, shorten

MAX_L = 6
_EXPONENT_RANGE = (1e-30, 1e30)  # outside, products of normalisation constants leave the range of float64


class Block(NamedTuple):
    """Contracted functions of one angular momentum that share their primitives (a general contraction).

    Attributes:
        l: angular momentum.
        exponents: (nprim,) in Bohr^-2, falling.
        coefficients: (ncontraction, nprim) as the basis library has them, for normalised primitives.
    """

    l: int
    exponents: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]


def resolve_basis(basis, labels: Sequence[Label]) -> tuple[list, dict]:
    """Finds the basis functions of every atom.

    An atom takes the first entry of a dict that exists among: its exact label (`"GHOST-O1"`, `"O1"`), its element
    (`"GHOST-O"`, `"O"` or the atomic number), `"default"`. Case does not matter. The key decides: an entry for "O"
    may be the text of a carbon basis.

    Args:
        basis: a name (`"def2-svp"`, any PySCF knows, `"unc-..."` for uncontracted), a text in the NWChem or Gaussian94
            format, a path to a file with one, PySCF's list `[[l, [exponent, coefficient, ...], ...], ...]`, a list that
            mixes these, or a dict of them.
        labels: the atoms.

    Returns:
        `keys` and `blocks`: the atom a has the functions `blocks[keys[a]]`, a tuple of `Block` in the order of the
        atomic orbitals. Atoms of one element that share an entry share a key, hence their parameters.

    Raises:
        TypeError, ValueError: the basis set is not understood or has no functions for an atom.
        NotImplementedError: it needs effective core potentials, or functions beyond i.
    """
    table = _table(basis, labels)
    keys, blocks = [], {}
    for label in labels:
        entry = next((name for name in _candidates(label) if name in table), None)
        if entry is None:
            raise ValueError(_no_entry(label, table))
        key = (label.symbol, entry, label.ghost)
        if key not in blocks:
            strict = not isinstance(basis, Mapping)
            blocks[key] = check_shells(_shells(table[entry], label, strict), label.text)
        keys.append(key)
    return keys, blocks


def describe(basis) -> str:
    """Returns a short name of a basis set, for summaries."""
    if isinstance(basis, str) and "\n" not in basis:
        return " ".join(basis.split())
    if isinstance(basis, Path):
        return basis.name
    if isinstance(basis, Mapping):
        names = {describe(value) for value in basis.values()}
        return names.pop() if len(names) == 1 else "mixed basis"
    return "custom basis"


def check_shells(shells, where: str) -> tuple[Block, ...]:
    """Checks shells in PySCF's format and sorts them as PySCF does.

    Args:
        shells: `[[l, [exponent, coefficient, ...], ...], ...]`; `[l, 0, [...], ...]` with PySCF's kappa is read
            as well.
        where: the atom, for messages.

    Returns:
        One `Block` for each entry, sorted by angular momentum (stable), primitives by falling exponent.

    Raises:
        TypeError, ValueError: shells that are not functions, such as a negative exponent.
        NotImplementedError: an angular momentum beyond 6 (i functions), or kappa other than 0.
    """
    if not len(shells):
        raise ValueError(
            f"The basis set of {where} is empty; every atom, ghosts included, needs at least one function."
        )
    blocks = [_block(shell, where) for shell in shells]
    return tuple(sorted(blocks, key=lambda block: block.l))


def _block(shell, where):
    expected = f"a shell of the basis set of {where} must read [l, [exponent, coefficient, ...], ...]"
    if not isinstance(shell, Sequence | np.ndarray) or isinstance(shell, str) or len(shell) < 1:
        raise TypeError(f"{expected[0].upper()}{expected[1:]}, but it is {shorten(shell)}.")
    l = _integer(shell[0])
    if l is None:
        raise TypeError(f"{expected[0].upper()}{expected[1:]} with an integer l, but l is {shorten(shell[0])}.")
    if l < 0:
        raise ValueError(
            f"The angular momentum of a shell of the basis set of {where} is {l}; it must not be negative."
        )
    if l > MAX_L:
        raise NotImplementedError(
            f"The basis set of {where} has a shell with angular momentum {l}; jaxqc has integrals up to {MAX_L} "
            "(i functions). Leave out the higher functions or choose a smaller basis set."
        )
    rows = list(shell[1:])
    if rows and _integer(rows[0]) is not None:
        if rows[0] != 0:
            raise NotImplementedError(f"The basis set of {where} has a spinor shell (kappa {rows[0]}); use kappa 0.")
        rows = rows[1:]
    if not rows:
        raise ValueError(f"A shell (l = {l}) of the basis set of {where} has no primitives.")
    try:
        table = np.array([[float(x) for x in row] for row in rows])
    except (TypeError, ValueError, OverflowError):
        table = None
    if table is None or table.ndim != 2 or table.shape[-1] < 2:
        raise ValueError(
            f"{expected[0].upper()}{expected[1:]}, with the same count of real numbers (two or more) for every "
            f"primitive, but it is {shorten(shell)}."
        )
    return _checked_block(l, table, where)


def _checked_block(l: int, table: np.ndarray, where: str) -> Block:
    if not np.isfinite(table).all():
        raise ValueError(
            f"A shell (l = {l}) of the basis set of {where} has an exponent or coefficient that is not finite."
        )
    low, high = _EXPONENT_RANGE
    for exponent in table[:, 0]:
        if not low <= exponent <= high:
            raise ValueError(
                f"A shell (l = {l}) of the basis set of {where} has the exponent {exponent:g}; it must be positive, "
                f"from {low:g} to {high:g} Bohr^-2."
            )
    table = table[(table[:, 1:] != 0).any(axis=1)]
    if len(table) == 0 or (table[:, 1:] == 0).all(axis=0).any():
        raise ValueError(f"A contraction (l = {l}) of the basis set of {where} has only zero coefficients.")
    # Falling rows: the order in which PySCF hands primitives to its integral library.
    table = np.array(sorted(table.tolist(), reverse=True))
    _check_norms(l, table[:, 0], table[:, 1:].T, where)
    columns = tuple(tuple(column) for column in table[:, 1:].T.tolist())
    return Block(l, tuple(table[:, 0].tolist()), columns)


def _check_norms(l, exponents, columns, where):
    """Refuses contractions that cancel to nothing: they cannot be normalised."""
    ratio = np.sqrt(exponents[:, None]) / np.sqrt(exponents)
    overlap = (2 / (ratio + 1 / ratio)) ** (l + 1.5)  # of normalised primitives
    for column in columns:
        column = column / np.abs(column).max()
        if column @ overlap @ column <= 1e-12 * (np.abs(column) @ overlap @ np.abs(column)):
            raise ValueError(
                f"A contraction (l = {l}) of the basis set of {where} has the norm 0: its primitives cancel each other."
            )


def _integer(value):
    """Returns an integer value as int, or None for anything else; a bool is no integer here."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        return None
    with contextlib.suppress(TypeError):
        return int(value.__index__())
    return None


def _table(basis, labels):
    """Returns the basis as a dict from normalised label, element symbol or "default" to an entry."""
    if not isinstance(basis, Mapping):
        return {"default": basis}
    if not basis:
        raise ValueError("Argument basis is an empty dict; give an entry for each element, such as {'O': 'def2-svp'}.")
    texts = {label.text for label in labels} | {_without_prefix(label) for label in labels}
    table = {}
    for key, entry in basis.items():
        if isinstance(key, str) and key.strip().lower() == "default":
            name = "default"
        else:
            try:
                label = parse_label(key)
            except (TypeError, ValueError) as error:
                raise type(error)(f"Argument basis has the key {shorten(key)}. {error}") from None
            name = label.text
            if name != label.symbol and not label.ghost and name not in texts:
                raise ValueError(
                    f"Argument basis has an entry for the atom {name!r}, but no atom has this label; "
                    f"the labels are {', '.join(sorted({la.text for la in labels}))}."
                )
        if name in table:
            raise ValueError(f"Argument basis has two entries for {name!r} (keys are not case-sensitive).")
        table[name] = entry
    return table


def _without_prefix(label):
    return re.sub(r"^(GHOST|X)-", "", label.text)


def _candidates(label):
    """Names under which the entry of an atom is looked for, the most exact one first."""
    text = _without_prefix(label)
    prefix = label.text[: len(label.text) - len(text)]
    if label.symbol == "X":
        return [label.text, "Ghost" if label.text.startswith("Ghost") else "X", "default"]
    return [label.text, prefix + label.symbol, text, label.symbol, "default"]


def _no_entry(label, table):
    return (
        f"Argument basis has no entry for the atom {label.text}; it has entries for {', '.join(sorted(table))}. "
        f"Add one under {label.symbol!r}, or under 'default' for all other atoms."
    )


def _shells(entry, label, strict):
    """Returns the shells of one atom in PySCF's format. With `strict`, a text must name the element."""
    if isinstance(entry, str | Path):
        return _named_or_text(entry, label, strict)
    if isinstance(entry, np.ndarray):
        entry = entry.tolist()
    if not isinstance(entry, Sequence) or isinstance(entry, bytes | bytearray):
        raise TypeError(
            "Argument basis must be a name such as 'def2-svp', a text in the NWChem or Gaussian94 format, a list of "
            f"shells or a dict of these, but for the atom {label.text} it is {shorten(entry)}."
        )
    shells = []
    for item in entry:
        nested = isinstance(item, Sequence) and not isinstance(item, str) and len(item) and _is_row(item[0])
        if isinstance(item, str | Path):
            shells.extend(_named_or_text(item, label, strict))
        elif nested:
            shells.extend(item)
        else:
            shells.append(item)
    return shells


def _is_row(item):
    return isinstance(item, Sequence | np.ndarray) and not isinstance(item, str)


def _named_or_text(entry, label, strict):
    if isinstance(entry, str):
        if "\n" in entry.strip():
            return _from_text(entry, label, strict)
        if not entry.strip():
            raise ValueError(f"Argument basis is empty for the atom {label.text}; give a name such as 'def2-svp'.")
        if is_known(entry):
            _require_element(entry, label)
            return load(entry.strip(), label.symbol, label.number, label.ghost)
    try:
        exists = Path(entry).is_file()
    except (OSError, ValueError):
        exists = False
    if exists:
        try:
            text = Path(entry).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError(f"The basis set file {shorten(str(entry))} is not a text file.") from None
        return _from_text(text, label, strict)
    if isinstance(entry, Path):
        raise FileNotFoundError(f"There is no basis set file {str(entry)!r}.")
    raise ValueError(f"There is no basis set named {shorten(entry)}.{similar(entry)}")


def _require_element(entry, label):
    if label.symbol == "X":
        raise ValueError(
            f"The ghost atom {label.text} has no element, so the basis set {shorten(entry)} cannot be looked up for "
            "it; write for example 'GHOST-O', or give its shells under its label in a dict."
        )


def _from_text(text, label, strict):
    by_element = parse_basis_text(text)
    if label.symbol in by_element:
        return by_element[label.symbol]
    if not strict and len(by_element) == 1:
        return next(iter(by_element.values()))
    raise ValueError(
        f"The basis set text has no functions for {label.symbol} (atom {label.text}); it has {', '.join(by_element)}."
    )
