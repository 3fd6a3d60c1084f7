"""Basis sets written out as text in the NWChem or the Gaussian94 format."""

import re

from jaxqc.elements import NUMBERS, parse_label, shorten

_ANGULAR = "SPDFGHIKLMNO"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([EeDd][+-]?\d+)?")
_NWCHEM_HEADER = re.compile(r"([A-Za-z]{1,2})[^A-Za-z\s]*\s+(SP|[A-Z])", re.IGNORECASE)
_GAUSSIAN_ELEMENT = re.compile(r"-?([A-Za-z]{1,2})\s+0")
_GAUSSIAN_SHELL = re.compile(r"(SP|[A-Z]|L=\d+)\s+(\d+)(?:\s+(\S+))?(?:\s+\S+)?", re.IGNORECASE)


def parse_basis_text(text: str) -> dict[str, list]:
    """Reads a basis set in the NWChem or the Gaussian94 format.

    Comments (`#`, `!`), blank lines, `BASIS ...`, `END` and `****` are skipped; Fortran exponents (`1.0D+01`) are read;
    `SP` shells are split; Gaussian scale factors multiply the exponents by their square; primitives whose
    coefficients are all zero are dropped.

    Args:
        text: the basis set, of any number of elements.

    Returns:
        For each element symbol, in order of appearance, the shells in PySCF's format
        `[[l, [exponent, coefficient, ...], ...], ...]`.

    Raises:
        ValueError: the text cannot be read; the message quotes the line.
        NotImplementedError: the text defines an effective core potential.

    Example:
        >>> parse_basis_text("He  S\\n 6.36 0.15\\n 1.16 0.54\\n")
        {'He': [[0, [6.36, 0.15], [1.16, 0.54]]]}
    """
    lines = [re.split(r"[#!]", line, maxsplit=1)[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line and line.strip("*") and not line.upper().startswith(("BASIS", "END"))]
    if not lines:
        raise ValueError("The basis set text is empty; give it in the NWChem or the Gaussian94 format.")
    for line in lines:
        if re.match(r"ECP\b|[A-Z]{1,2}\s+NELEC\b|[A-Z]{1,2}-ECP\b", line, re.IGNORECASE):
            raise NotImplementedError(
                f"The basis set text defines an effective core potential ({shorten(line)}), which jaxqc does not "
                "have yet; choose an all-electron basis set."
            )
    gaussian = any(_GAUSSIAN_ELEMENT.fullmatch(line) or re.match(r"L=", line, re.IGNORECASE) for line in lines)
    shells = _gaussian_shells(lines) if gaussian else _nwchem_shells(lines)
    basis: dict[str, list] = {}
    for symbol, kind, header, rows in shells:
        _check_rows(rows, kind, header)
        for l, columns in ((0, (0, 1)), (1, (0, 2))) if kind == "SP" else ((_angular(kind, header), None),):
            kept = [[row[c] for c in columns] if columns else row for row in rows]
            kept = [row for row in kept if any(row[1:])]
            if not kept:
                raise ValueError(f"All coefficients of the shell {header!r} in the basis set text are zero.")
            basis.setdefault(symbol, []).append([l, *kept])
    return basis


def _nwchem_shells(lines):
    """Yields (symbol, kind, header, rows) for each shell: a header `O  S`, then rows of numbers."""
    shells = []
    for line in lines:
        match = _NWCHEM_HEADER.fullmatch(line)
        if match:
            shells.append((_element(match[1], line), match[2].upper(), line, []))
        elif not shells or line[0].isalpha():
            raise ValueError(
                f"Cannot read the line {shorten(line)} of the basis set text: a shell in the NWChem format begins with "
                "an element symbol and a letter, such as 'O  S', followed by one line a primitive."
            )
        else:
            shells[-1][3].append(_numbers(line))
    return shells


def _gaussian_shells(lines):
    """Returns the same from `O 0`, then `S 3 1.00` and the three rows it announces."""
    shells, symbol, k = [], None, 0
    while k < len(lines):
        line = lines[k]
        element = _GAUSSIAN_ELEMENT.fullmatch(line)
        shell = _GAUSSIAN_SHELL.fullmatch(line)
        k += 1
        if element:
            symbol = _element(element[1], line)
        elif shell and symbol is not None:
            count, scale = int(shell[2]), _numbers(shell[3])[0] if shell[3] else 1.0
            rows = [_numbers(row) for row in lines[k : k + count]]
            if len(rows) < count:
                raise ValueError(f"The shell {line!r} of the basis set text ends before its {count} primitives.")
            shells.append((symbol, shell[1].upper(), line, [[row[0] * scale**2, *row[1:]] for row in rows]))
            k += count
        else:
            raise ValueError(
                f"Cannot read the line {shorten(line)} of the basis set text: the Gaussian94 format has an element "
                "line such as 'O 0', then shells such as 'S 3 1.00', each with one line a primitive."
            )
    if not shells:
        raise ValueError("The basis set text has no shells.")
    return shells


def _element(word, line):
    if word.upper() not in NUMBERS or word.upper() == "X":
        raise ValueError(f"The line {shorten(line)} of the basis set text does not begin with an element symbol.")
    return parse_label(word).symbol


def _angular(kind, header):
    if kind.startswith("L="):
        return int(kind[2:])
    if kind not in _ANGULAR:
        raise ValueError(f"The shell {header!r} of the basis set text is none of S, P, SP, D, F, G, H, I.")
    return _ANGULAR.index(kind)


def _numbers(line):
    words = line.split()
    for word in words:
        if not _NUMBER.fullmatch(word):
            raise ValueError(
                f"The word {shorten(word)} in the line {shorten(line)} of the basis set text is not a number."
            )
    return [float(re.sub("[Dd]", "e", word)) for word in words]


def _check_rows(rows, kind, header):
    if not rows:
        raise ValueError(f"The shell {header!r} of the basis set text has no primitives.")
    width = 3 if kind == "SP" else len(rows[0])
    for row in rows:
        if len(row) != width or width < 2:
            expected = "an exponent and two coefficients" if kind == "SP" else "an exponent and its coefficients"
            raise ValueError(
                f"A primitive of the shell {header!r} of the basis set text has {len(row)} numbers; each line of a "
                f"shell must hold {expected}, the same count in every line."
            )
