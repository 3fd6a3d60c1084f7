"""Geometries in and out: XYZ files, atom strings, atom lists, QCSchema."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxqc._checks import check_coords, has_tracer
from jaxqc.elements import BOHR, Label, length_in_bohr, parse_label, shorten

if TYPE_CHECKING:
    from jaxqc.molecule import Molecule

_FORMS = (
    "a path of an XYZ file, the text of one, an atom string such as 'O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24' or a list "
    "such as [('O', (0, 0, 0)), ...]"
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([EeDd][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)


def parse_atoms(atoms) -> tuple[list[Label], Any]:
    """Reads atoms in any of the accepted forms.

    Args:
        atoms: a path of an XYZ file (`str` or `Path`), the text of one, an atom string in which `;` or a new line ends
            an atom, a list of `(symbol, (x, y, z))`, `(symbol, x, y, z)` or `"symbol x y z"`, or a pair of symbols and
            an (natm, 3) array.

    Returns:
        The labels, and the coordinates (natm, 3) in the unit of the input: a float64 NumPy array, or a JAX array if any
        coordinate is traced.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError, ValueError: the atoms are not understood.

    Example:
        >>> labels, coords = parse_atoms("H 0 0 0; H 0 0 0.74")
        >>> [label.symbol for label in labels], coords.shape
        (['H', 'H'], (2, 3))
    """
    if isinstance(atoms, Path):
        return parse_xyz(_read(atoms))
    if isinstance(atoms, str):
        return _from_text(atoms)
    if isinstance(atoms, tuple) and len(atoms) == 2 and _is_pair(*atoms):
        symbols, coords = atoms
        labels = [parse_label(symbol) for symbol in symbols]
        return labels, check_coords(coords, len(labels), "Argument atoms")
    if isinstance(atoms, Sequence | np.ndarray) and not isinstance(atoms, bytes | bytearray):
        return _from_list(atoms)
    raise TypeError(f"Argument atoms must be {_FORMS}, but it is {shorten(atoms)}.")


def read_xyz(path) -> tuple[list[Label], Any]:
    """Reads an XYZ file: returns the labels and the coordinates (natm, 3) in Angstrom (see `parse_xyz`)."""
    return parse_xyz(_read(Path(path)))


def parse_xyz(text: str) -> tuple[list[Label], Any]:
    """Reads the text of an XYZ file: the number of atoms, a comment, one line `symbol x y z` for each atom.

    A text without the two header lines is read as atom lines.

    Args:
        text: one geometry.

    Returns:
        The labels, and the coordinates (natm, 3) in the unit of the text (Angstrom by convention).

    Raises:
        ValueError: the text is empty, a line cannot be read, or the count of atoms does not match.

    Example:
        >>> labels, coords = parse_xyz("1\\na comment\\nHe 0 0 0.5")
        >>> labels[0].symbol, coords.tolist()
        ('He', [[0.0, 0.0, 0.5]])
    """
    lines = [line.strip() for line in text.lstrip("\ufeff").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError("The geometry is empty; give at least one atom.")
    first = next(k for k, line in enumerate(lines) if line)
    if not re.fullmatch(r"[+-]?\d+", lines[first]):
        return _from_lines([line for line in lines if line and not line.startswith("#")])
    count, atoms = int(lines[first][:9]), lines[first + 2 :]
    if count < 1:
        raise ValueError(f"The first line of the XYZ text gives {count} atoms; there must be at least one.")
    if len(atoms) != count:
        more = "; a trajectory must be split and one frame given" if len(atoms) > count else ""
        raise ValueError(
            f"The first line of the XYZ text gives {lines[first][:12]} atoms, but {len(atoms)} lines follow the "
            f"comment line{more}."
        )
    return _from_lines(atoms)


def write_xyz(mol: "Molecule", path=None, comment: str | None = None) -> str:
    """Writes a molecule as XYZ, in Angstrom, with enough digits to read the same coordinates back.

    Ghost atoms are written with their labels, such as `GHOST-O`.

    Args:
        mol: the molecule, with concrete coordinates.
        path: the file, or None to write none.
        comment: the second line; by default charge and spin.

    Returns:
        The text.

    Raises:
        ValueError: the comment has more than one line.
    """
    comment = f"charge {mol.charge} spin {mol.spin}" if comment is None else comment
    if "\n" in comment:
        raise ValueError("Argument comment must be one line.")
    coords = np.asarray(mol.coords) * BOHR
    rows = [f"{la:<3s} {x:22.16f} {y:22.16f} {z:22.16f}" for la, (x, y, z) in zip(mol.labels, coords, strict=True)]
    text = "\n".join([str(mol.natm), comment, *rows, ""])
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def to_qcschema(mol: "Molecule") -> dict:
    """Returns a molecule as a QCSchema Molecule (version 2, https://molssi-qc-schema.readthedocs.io): plain JSON data.

    Args:
        mol: the molecule, with concrete coordinates.

    Returns:
        A dict with `symbols`, `geometry` (3 * natm numbers in Bohr), `molecular_charge`, `molecular_multiplicity`
        (spin + 1), `real` (False for ghosts) and `atom_labels`.
    """
    return {
        "schema_name": "qcschema_molecule",
        "schema_version": 2,
        "symbols": list(mol.symbols),
        "geometry": np.asarray(mol.coords).ravel().tolist(),
        "molecular_charge": float(mol.charge),
        "molecular_multiplicity": mol.spin + 1,
        "real": [number > 0 for number in mol.numbers],
        "atom_labels": list(mol.labels),
        "fix_com": True,
        "fix_orientation": True,
    }


def from_qcschema(data: Mapping, basis, *, cart: bool = False) -> "Molecule":
    """Builds a molecule from a QCSchema Molecule.

    Args:
        data: a dict with at least `symbols` and `geometry` (Bohr); charge 0 and multiplicity 1 if not given.
        basis: the basis set, as for `Molecule`.
        cart: Cartesian functions instead of spherical ones.

    Returns:
        The molecule.

    Raises:
        TypeError, ValueError: fields are missing or wrong.
    """
    from jaxqc.molecule import Molecule

    if not isinstance(data, Mapping) or "symbols" not in data or "geometry" not in data:
        raise ValueError("Argument data must be a QCSchema Molecule: a dict with 'symbols' and 'geometry'.")
    symbols = list(data["symbols"])
    real = list(data.get("real") or [True] * len(symbols))
    if len(real) != len(symbols):
        raise ValueError(f"The QCSchema Molecule has {len(symbols)} symbols, but {len(real)} entries in 'real'.")
    symbols = [s if r else f"GHOST-{s}" for s, r in zip(symbols, real, strict=True)]
    geometry = np.asarray(data["geometry"])
    if geometry.size != 3 * len(symbols):
        raise ValueError(
            f"The QCSchema Molecule has {len(symbols)} symbols, but {geometry.size} numbers in 'geometry'."
        )
    charge, multiplicity = (data.get(key, default) for key, default in _QCSCHEMA_DEFAULTS.items())
    for name, value in (("molecular_charge", charge), ("molecular_multiplicity", multiplicity)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
            raise ValueError(f"{name!r} of the QCSchema Molecule must be a whole number, but it is {shorten(value)}.")
    geometry = geometry.reshape(-1, 3)
    return Molecule((symbols, geometry), basis, charge=int(charge), spin=int(multiplicity) - 1, unit="bohr", cart=cart)


_QCSCHEMA_DEFAULTS = {"molecular_charge": 0.0, "molecular_multiplicity": 1}


def in_bohr(coords, unit):
    """Returns coordinates times the length of `unit` in Bohr."""
    length = length_in_bohr(unit)
    return coords if length == 1.0 else coords * length


def _read(path):
    if path.is_dir():
        raise ValueError(f"Argument atoms is the directory {str(path)!r}; give the path of an XYZ file.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no geometry file {str(path)!r}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"The geometry file {str(path)!r} is not a text file.") from None


def _from_text(text):
    if not text.strip():
        raise ValueError(f"Argument atoms is empty; it must be {_FORMS}.")
    if "\n" in text or ";" in text:
        first = text.lstrip("\ufeff \t\r\n").split("\n", 1)[0].strip()
        if re.fullmatch(r"[+-]?\d+", first):
            return parse_xyz(text)
        return _from_lines(_split_lines(text))
    words = text.replace(",", " ").split()
    if len(words) > 3 and all(_NUMBER.fullmatch(word) for word in words[1:4]):
        return _from_lines([text])
    try:
        exists = Path(text).exists()
    except (OSError, ValueError):  # too long a name, or a zero byte
        exists = False
    if exists:
        return parse_xyz(_read(Path(text)))
    raise FileNotFoundError(f"There is no geometry file {shorten(text)}. Argument atoms must be {_FORMS}.")


def _split_lines(text):
    lines = [line.strip() for line in re.split(r"[;\n]", text)]
    return [line for line in lines if line and not line.startswith("#")]


def _from_lines(lines):
    if not lines:
        raise ValueError("The geometry is empty; give at least one atom.")
    labels, rows = [], []
    for line in lines:
        words = line.replace(",", " ").split()
        if len(words) != 4:
            hint = " (Z-matrices are not read)" if len(words) in (1, 2, 3, 5, 7) else ""
            raise ValueError(
                f"Each atom must be a symbol and three coordinates, but the line {shorten(line)} has {len(words)} "
                f"words{hint}."
            )
        for word in words[1:]:
            if not _NUMBER.fullmatch(word):
                raise ValueError(f"The coordinate {shorten(word)} in the line {shorten(line)} is not a number.")
        labels.append(parse_label(words[0]))
        rows.append([float(re.sub("[Dd]", "e", word)) for word in words[1:]])
    return labels, check_coords(rows, len(labels), "The geometry")


def _from_list(atoms):
    if not len(atoms):
        raise ValueError(f"Argument atoms is empty; it must be {_FORMS}.")
    labels, rows = [], []
    for atom in atoms:
        if isinstance(atom, str):
            found, row = _from_lines([atom])
            labels.append(found[0])
            rows.append(row[0])
            continue
        is_row = isinstance(atom, Sequence | np.ndarray) and not isinstance(atom, bytes | bytearray)
        if not is_row or len(atom) not in (2, 4):
            raise ValueError(
                "Each atom in argument atoms must be (symbol, (x, y, z)) or (symbol, x, y, z), but one is "
                f"{shorten(atom)}."
            )
        labels.append(parse_label(atom[0]))
        rows.append(atom[1] if len(atom) == 2 else list(atom[1:]))
        _check_row(rows[-1], atom)
    if has_tracer(rows):
        rows = jnp.stack([jnp.stack([jnp.asarray(x, dtype=jnp.float64) for x in row]) for row in rows])
    return labels, check_coords(rows, len(labels), "Argument atoms")


def _check_row(row, atom):
    """Checks that the coordinates of one atom are three numbers (strings in an array would be converted)."""
    shape = getattr(row, "shape", None)
    if shape is None:
        ok = isinstance(row, Sequence) and not isinstance(row, str) and len(row) == 3
        ok = ok and not any(isinstance(x, str | bool) or (isinstance(x, Sequence) or x is None) for x in row)
    else:
        ok = shape == (3,)
    if not ok:
        raise ValueError(
            f"The coordinates of an atom must be three numbers, but they are {shorten(row)} in {shorten(atom)}."
        )


def _is_pair(symbols, coords):
    """Whether two values are a list of symbols or of atomic numbers, and a table of coordinates."""
    if not isinstance(symbols, Sequence | np.ndarray) or isinstance(symbols, str) or len(symbols) == 0:
        return False
    if hasattr(coords, "ndim"):
        table = True
    else:
        table = isinstance(coords, Sequence) and len(coords) > 0 and hasattr(coords[0], "__len__")
        table = table and not isinstance(coords[0], str)
    words = [isinstance(item, str) for item in symbols]
    return table and (all(words) or (not any(words) and all(hasattr(item, "__index__") for item in symbols)))
