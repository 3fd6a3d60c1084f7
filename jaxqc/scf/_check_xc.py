"""Checks of the arguments of Kohn-Sham calculations; each error is a sentence."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from jaxqc.scf._method import KohnSham, Method

XC_DEFAULTS: dict[str, Any] = {"grid": 3, "epsilon": 1e-12, "grid_response": True}
_SCHEME = ("level", "partition", "prune", "radii")


def check_xc(mol, xc, values, given) -> tuple[KohnSham | None, tuple, Any]:
    """The exchange-correlation part of a calculation, the arrays of its functional, and the points of its grid.

    Args:
        mol: `Molecule`.
        xc: argument of `scf`.
        values: all keyword arguments, complete.
        given: those that were given.
    """
    _check_epsilon(values["epsilon"])
    check_switch(values["grid_response"])
    if xc is None:
        superfluous = [name for name in XC_DEFAULTS if name in given]
        if superfluous:
            raise ValueError(
                f"Argument {superfluous[0]} is for density functionals, but there is no xc: Hartree-Fock needs no "
                "grid. Leave it out, or name a functional such as xc='b3lyp'."
            )
        return None, (), None
    from jaxqc._bound_functional import bind, read
    from jaxqc.scf._xc import measured

    template, partition = _scheme(mol, values["grid"])
    functional, parameters = bind(read(xc))
    epsilon = float(values["epsilon"])
    capacity, points = measured(mol, template, partition, epsilon)
    method = KohnSham(functional, template, partition, epsilon, capacity, values["grid_response"])
    return method, parameters, points


def check_switch(value):
    """Refuses a `grid_response` without meaning."""
    if not isinstance(value, bool):
        raise TypeError(f"Argument grid_response must be True or False, but it is {value!r}.")


def check_response(method: Method, options) -> Method:
    """The method of a result with the given `grid_response`."""
    if "grid_response" not in options:
        return method
    check_switch(options["grid_response"])
    if method.xc is None:
        raise ValueError("Argument grid_response is for density functionals, but the result is of Hartree-Fock.")
    return replace(method, xc=replace(method.xc, grid_response=options["grid_response"]))


def _check_epsilon(value):
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number:
        raise TypeError(f"Argument epsilon must be a number, but it is {value!r}.")
    if not (math.isfinite(value) and 0.0 <= value < 1e-3):
        raise ValueError(
            f"Argument epsilon, below which parts of the density on the grid are left out, must be at least 0 and "
            f"below 1e-3 Hartree, but it is {value!r}. 1e-12 is the default, 1e-10 is fast."
        )


def _scheme(mol, grid) -> tuple[Any, Any]:
    """Template and partition of the grid."""
    from jaxqc.xc._grid import _PARTITION_MEANING, PARTITIONS, Grid, check_choice
    from jaxqc.xc._grid_template import grid_template

    if isinstance(grid, Grid):
        return _scheme_of(mol, grid)
    options: dict[str, Any] = {"level": grid}
    if isinstance(grid, dict) and any(key in _SCHEME for key in grid):
        unknown = [key for key in grid if key not in _SCHEME]
        if unknown:
            raise ValueError(
                f"Argument grid has the key {unknown[0]!r}; the options of a grid are {', '.join(_SCHEME)}, and levels "
                "of single elements belong into 'level'."
            )
        options = {"level": 3, **grid}
    partition: Any = options.pop("partition", "becke")
    check_choice(partition, PARTITIONS, "partition", _PARTITION_MEANING)
    return grid_template(mol, **options), partition


def _scheme_of(mol, grid):
    if grid.template is None:
        raise ValueError(
            "Argument grid is a Grid from arrays of points, which cannot follow the nuclei; build it with "
            "jaxqc.xc.Grid(mol, level), or give a level."
        )
    numbers = tuple(label.number for label in mol.structure.labels)
    if tuple(atom[0] for atom in grid.template.atoms) != numbers:
        raise ValueError(
            "Argument grid is the Grid of another molecule; its atoms must be those of mol in their order."
        )
    return grid.template, grid.partition
