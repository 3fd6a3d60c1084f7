"""Which atom gets which quadrature: the static part of a molecular grid."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxqc.elements import NUMBERS, nearest, shorten
from jaxqc.xc._grid_atom import (
    LEBEDEV,
    LEVELS,
    MAX_NUMBER,
    MAX_SG1_NUMBER,
    PRUNINGS,
    atom_grid,
    bragg_radii,
    level_size,
)

RADII = ("treutler", "becke", None)


@dataclass(frozen=True, eq=False)
class GridTemplate:
    """The quadrature of each atom before it is placed and partitioned, without coordinates. Compared by value.

    Args:
        atoms: (number, n_radial, n_angular) for each atom; a ghost has the number of its element, 0 where it has none.
        prune: `"nwchem"`, `"sg1"`, `"treutler"` or None.
        radii: how radii shift the borders between atoms, `"treutler"` (roots of the Bragg radii), `"becke"` or None.
    """

    atoms: tuple[tuple[int, int, int], ...]
    prune: str | None = "nwchem"
    radii: str | None = "treutler"

    @cached_property
    def key(self):
        return (self.atoms, self.prune, self.radii)

    @cached_property
    def _hash(self):
        return hash(self.key)

    def __hash__(self):
        return self._hash

    def __eq__(self, other):
        if self is other:
            return True
        return isinstance(other, GridTemplate) and hash(self) == hash(other) and self.key == other.key

    def __reduce__(self):  # without the cached arrays and the hash, which differs between processes
        return GridTemplate, self.key

    @property
    def natm(self) -> int:
        return len(self.atoms)

    @cached_property
    def kinds(self) -> tuple[tuple[int, int, int], ...]:
        """The different atoms."""
        return tuple(sorted(set(self.atoms)))

    @cached_property
    def kind(self) -> np.ndarray:
        """(natm,) index of each atom's kind."""
        place = {kind: k for k, kind in enumerate(self.kinds)}
        return np.array([place[atom] for atom in self.atoms], dtype=np.int32)

    @cached_property
    def counts(self) -> np.ndarray:
        """(natm,) points of each atom."""
        sizes = np.array([len(atom_grid(*kind, self.prune)[1]) for kind in self.kinds], dtype=np.int64)
        return sizes[self.kind]

    @property
    def size(self) -> int:
        """The number of points."""
        return int(self.counts.sum())

    @cached_property
    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (m, 3) and weights (m,) of the kinds, one kind after the other."""
        parts = [atom_grid(*kind, self.prune) for kind in self.kinds]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    @cached_property
    def table_starts(self) -> np.ndarray:
        """(natm,) where the points of each atom's kind start in `tables`."""
        sizes = [len(atom_grid(*kind, self.prune)[1]) for kind in self.kinds]
        return np.concatenate([[0], np.cumsum(sizes)])[self.kind]

    @cached_property
    def owner(self) -> np.ndarray:
        """(n,) the atom of each point; points come atom after atom, in PySCF's order."""
        return np.repeat(np.arange(self.natm, dtype=np.int32), self.counts)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(n, 3) of each point from its atom, in Bohr."""
        return self.tables[0][self._rows]

    @cached_property
    def weights(self) -> np.ndarray:
        """(n,) in Bohr^3, before the partition of space among the atoms."""
        return self.tables[1][self._rows]

    @cached_property
    def _rows(self) -> np.ndarray:
        starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        return np.arange(self.size) + np.repeat(self.table_starts - starts, self.counts)

    @cached_property
    def size_radii(self) -> np.ndarray:
        """(natm,) the radii whose ratios shift the borders between atoms; only ratios matter."""
        if self.radii is None:
            return np.ones(self.natm)
        radii = bragg_radii([atom[0] for atom in self.atoms])
        return np.sqrt(radii) if self.radii == "treutler" else radii


def grid_template(mol, level: Any = 3, prune: str | None = "nwchem", radii: str | None = "treutler") -> GridTemplate:
    """The template of a molecule's grid; see `Grid` for the arguments and the errors."""
    labels = mol.structure.labels
    check_choice(prune, PRUNINGS, "prune", "the scheme that thins out the angular points near a nucleus and far away")
    check_choice(radii, RADII, "radii", "how atomic radii shift the borders between atoms")
    if isinstance(level, dict):
        _check_keys(level, labels)
    atoms = []
    for label in labels:
        if label.number > MAX_NUMBER:
            raise ValueError(
                f"There are no radial grid parameters for {label.symbol} (atomic number {label.number}); grids reach "
                f"to atomic number {MAX_NUMBER}."
            )
        if prune == "sg1" and label.number > MAX_SG1_NUMBER:
            raise ValueError(
                f"Argument prune='sg1' is defined up to argon only, and the molecule has {label.symbol}. Use "
                "prune='nwchem'."
            )
        atoms.append((label.number, *_size(_entry(level, label), label)))
    return GridTemplate(tuple(atoms), prune, radii)


def check_choice(value, choices, name, meaning):
    """Raises `ValueError` unless `value` is one of `choices`."""
    if not isinstance(value, str | None) or value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        hint = nearest(value, [c for c in choices if c]) if isinstance(value, str) else ""
        raise ValueError(f"Argument {name} ({meaning}) must be one of {known}, but it is {shorten(value)}.{hint}")


def _entry(level, label):
    """What the argument `level` says for one atom: its label comes before its element before the default."""
    if not isinstance(level, dict):
        return level
    for key, value in level.items():
        if isinstance(key, str) and key.upper() == label.text.upper():
            return value
    for key, value in level.items():
        if _number(key) == label.number:
            return value
    return level.get("default", 3)


def _number(key):
    """The atomic number that a key of a dict means, or None."""
    if isinstance(key, str):
        return NUMBERS.get(key.upper())
    return key


def _check_keys(level, labels):
    texts = {label.text.upper() for label in labels}
    for key in level:
        text = isinstance(key, str) and (key == "default" or key.upper() in texts)
        number = _number(key)
        if not text and (isinstance(number, bool) or not isinstance(number, int) or number not in NUMBERS.values()):
            raise ValueError(
                f"Argument level has the key {shorten(key)}, which is neither an element, nor an atom label of this "
                f"molecule ({', '.join(sorted({label.text for label in labels}))}), nor 'default'."
            )


def _integer(value):
    return hasattr(value, "__index__") and not isinstance(value, bool | np.bool_) and np.ndim(value) == 0


def _size(value, label):
    """(n_radial, n_angular) from a level or a pair."""
    if _integer(value):
        if not 0 <= value < LEVELS:
            raise ValueError(
                f"Argument level must lie between 0 (coarse) and {LEVELS - 1} (very fine), but for {label.text} it is "
                f"{value}. Level 3 is usual, 5 is for accurate energies; a pair (n_radial, n_angular) sets the numbers."
            )
        return level_size(label.number, int(value))
    pair = tuple(value) if isinstance(value, tuple | list) else ()
    if len(pair) != 2 or not all(_integer(x) for x in pair):
        raise TypeError(
            "Argument level must be a level from 0 to 9, a pair of whole numbers (n_radial, n_angular), or a dict of "
            f"these by element; for {label.text} it is {shorten(value)}."
        )
    n_radial, n_angular = int(pair[0]), int(pair[1])
    if n_radial < 1:
        raise ValueError(
            f"Argument level has n_radial = {n_radial} for {label.text}; a grid without radial points is empty. "
            "It must be at least 1; 50 to 100 are usual."
        )
    if n_angular not in LEBEDEV:
        below = [n for n in LEBEDEV if n < n_angular][-1:]
        above = [n for n in LEBEDEV if n > n_angular][:1]
        raise ValueError(
            f"Argument level has n_angular = {n_angular} for {label.text}, but there is no Lebedev rule with that many "
            f"points. The nearest are {' and '.join(str(n) for n in below + above)}."
        )
    return n_radial, n_angular
