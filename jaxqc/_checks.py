"""Checks of what a user hands in, made before anything is traced; each error is a sentence."""

import difflib
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc.elements import shorten

CLOSEST = 1e-5  # Bohr; two nuclei closer than this are at the same place


def check_precision(function_name: str) -> None:
    """Refuses to work in single precision.

    Raises:
        RuntimeError: double precision was switched off in JAX after `import jaxqc`.
    """
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError(
            f"{function_name} needs double precision, which was switched off in JAX after jaxqc was imported; call "
            "jax.config.update('jax_enable_x64', True)."
        )


def checked_precision(precision, function_name: str) -> str:
    """The argument `precision` of a function of `jaxqc`.

    Raises:
        ValueError: it is neither "double" nor "mixed".
    """
    names = ("double", "mixed")
    if not isinstance(precision, str) or precision not in names:
        near = difflib.get_close_matches(str(precision), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"Argument precision of {function_name} must be 'double' or 'mixed', but it is {precision!r}{hint}"
        )
    return precision


def checked_count(value, label: str, function_name: str, least: int = 0) -> int:
    """A whole number of at least `least`, as an int; those of NumPy are taken, too.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(
            f"Argument {label} of {function_name} must be a whole number of at least {least}, but it is "
            f"{shorten(value)}."
        )
    return int(value)


def check_flag(value, label: str, function_name: str) -> None:
    """Refuses what is neither True nor False.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"Argument {label} of {function_name} must be True or False, but it is {shorten(value)}.")


def checked_path(path, label: str, function_name: str, *, folder: bool = False) -> Path | None:
    """The place of a file, or of a folder that need not be there yet; None for None.

    Raises:
        TypeError: it is no path.
        ValueError: nothing can be written there.
    """
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"Argument {label} of {function_name} must be a path or None, but it is {shorten(path)}.")
    said = f"Argument {label} of {function_name} is {str(path)!r}"
    if not str(path):
        raise ValueError(f"{said}, which names nothing; give a path, or None.")
    path = Path(path)
    if folder and path.exists() and not path.is_dir():
        raise ValueError(f"{said}, which is a file; give the name of a directory.")
    if not folder and path.is_dir():
        raise ValueError(f"{said}, which is a directory; give the name of a file.")
    if not folder and not path.parent.is_dir():
        raise ValueError(f"{said}, but there is no directory {str(path.parent)!r}; make it first.")
    return path


def check_molecule(mol, function_name: str) -> None:
    """Checks the molecule that a function of `jaxqc` was given; its leaves may be traced.

    Args:
        mol: what must be a `jaxqc.Molecule` with float64 leaves of the shapes that belong to its structure.
        function_name: for messages, for example `"jaxqc.integrals.overlap"`.

    Raises:
        TypeError: `mol` is no `Molecule`, or a leaf is no array of float64.
        ValueError: a leaf has another shape.
        RuntimeError: double precision was switched off in JAX.
    """
    from jaxqc.molecule import Molecule

    if not isinstance(mol, Molecule):
        raise TypeError(
            f"Argument mol of {function_name} must be a jaxqc.Molecule, but it is {shorten(mol)}; build one with "
            "jaxqc.Molecule('water.xyz', basis='def2-svp') or jaxqc.Molecule.from_pyscf(mole)."
        )
    check_precision(function_name)
    for name, rank in (("coords", 2), ("exponents", 1), ("coefficients", 1)):
        leaf = getattr(mol, name)
        dtype, shape = getattr(leaf, "dtype", type(leaf).__name__), getattr(leaf, "shape", ())
        if dtype != np.float64:
            raise TypeError(f"The {name} of argument mol of {function_name} must be float64, but they are {dtype}.")
        if len(shape) != rank or (name == "coords" and shape != (mol.natm, 3)):
            raise ValueError(
                f"The {name} of argument mol of {function_name} have the shape {shape}, which is not that of one "
                "molecule; use jax.vmap for several."
            )


def has_tracer(rows) -> bool:
    """Whether any number in a list of rows is traced."""
    rows = rows if isinstance(rows, list | tuple) else ()
    return any(isinstance(x, Tracer) for row in rows for x in (row if isinstance(row, list | tuple) else (row,)))


def check_coords(coords, natm: int, name: str):
    """Returns coordinates as a float64 array (natm, 3); the values of traced ones are not looked at.

    Args:
        coords: array or nested list of real numbers.
        natm: the number of atoms.
        name: the beginning of error messages, for example `"Argument coords"`.

    Raises:
        TypeError: the coordinates are not real numbers.
        ValueError: wrong shape, or values that are not finite.
    """
    expected = f"must be an array of {natm} rows and 3 columns (x, y, z)"
    traced = isinstance(coords, Tracer)
    if not traced:
        if has_tracer(coords):
            coords, traced = jnp.asarray(coords), True
        else:
            try:
                coords = np.asarray(coords)
            except ValueError:
                raise ValueError(f"{name} {expected}, but its rows differ in length: {shorten(coords)}.") from None
    if coords.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, but it has the type {coords.dtype}.")
    if coords.shape != (natm, 3):
        raise ValueError(f"{name} {expected}, but it has the shape {coords.shape}.")
    if traced:
        return coords.astype(jnp.float64)
    coords = coords.astype(np.float64)
    if not np.isfinite(coords).all():
        atom = int(np.argmin(np.isfinite(coords).all(axis=1)))
        raise ValueError(f"{name}: the coordinates of atom {atom} are not finite: {coords[atom].tolist()}.")
    if np.abs(coords).max(initial=0.0) > 1e8:
        atom = int(np.argmax(np.abs(coords).max(axis=1)))
        raise ValueError(f"{name}: the coordinates of atom {atom} exceed 1e8: {coords[atom].tolist()}.")
    return coords


def _check_integer(value, name, meaning):
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"Argument {name} must be an integer ({meaning}), but it is {shorten(value)}.")
    try:
        return int(value.__index__())
    except TypeError:
        raise TypeError(f"Argument {name} must be an integer ({meaning}), but it is {shorten(value)}.") from None


def check_electrons(labels, charge, spin):
    """Returns charge and spin as int, if there are electrons and the spin is possible for their number."""
    charge = _check_integer(charge, "charge", "the total charge in units of e")
    spin = _check_integer(spin, "spin", "the number of unpaired electrons, 2S = N_alpha - N_beta")
    protons = sum(label.number for label in labels if not label.ghost)
    nelec = protons - charge
    if nelec < 1:
        raise ValueError(
            f"A molecule with nuclear charge {protons} and charge {charge:+d} has {nelec} electrons; there must be at "
            "least one."
        )
    convention = "spin is 2S = N_alpha - N_beta, the number of unpaired electrons (0 singlet, 1 doublet, 2 triplet)"
    given = f"The molecule has {nelec} electrons, and spin={spin} was given"
    if spin < 0:
        raise ValueError(f"{given}; {convention} and must not be negative. Use spin={-spin}.")
    if spin > nelec:
        raise ValueError(f"{given}; {convention} and cannot exceed the number of electrons.")
    if (nelec - spin) % 2:
        kind = "even" if nelec % 2 == 0 else "odd"
        raise ValueError(
            f"{given}; {convention}, so with an {kind} number of electrons it must be {kind}. Use spin={nelec % 2} or "
            "another charge."
        )
    return charge, spin


def check_distances(labels, coords):
    """Refuses two nuclei at one point. A ghost may sit on top of an atom."""
    if isinstance(coords, Tracer):
        return
    real = np.array([k for k, label in enumerate(labels) if not label.ghost], dtype=int)
    if len(real) < 2:
        return
    points = np.asarray(coords)[real]
    # Sorted along x, only neighbours within the limit can coincide.
    order = np.argsort(points[:, 0], kind="stable")
    points, real = points[order], real[order]
    for shift in range(1, len(real)):
        near = points[shift:, 0] - points[:-shift, 0] < CLOSEST
        if not near.any():
            return
        close = near & (np.linalg.norm(points[shift:] - points[:-shift], axis=1) < CLOSEST)
        if close.any():
            k = int(np.argmax(close))
            a, b = sorted((int(real[k]), int(real[k + shift])))
            raise ValueError(
                f"The atoms {a} ({labels[a].text}) and {b} ({labels[b].text}) are at the same place "
                f"({points[k].tolist()} Bohr); check the geometry, or make one of them a ghost "
                f"('GHOST-{labels[b].symbol}')."
            )


def check_vector(values, shape, name, positive):
    """Returns exponents or coefficients as a float64 array, if the shape is right and concrete values make sense."""
    values = values if isinstance(values, Tracer) else np.asarray(values)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"Argument {name} must hold real numbers, but it has the type {values.dtype}.")
    if values.shape != shape:
        raise ValueError(f"Argument {name} must have the shape {shape}, but it has {values.shape}.")
    if not isinstance(values, Tracer):
        if not np.isfinite(values).all():
            raise ValueError(f"Argument {name} has values that are not finite.")
        if positive and not (values > 0).all():
            raise ValueError(f"Argument {name} must be positive, but the smallest is {values.min():g}.")
    return jnp.asarray(values).astype(jnp.float64)
