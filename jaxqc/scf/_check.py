"""Checks of the arguments of `scf`, made before anything is traced; each error is a sentence."""

import difflib
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc._checks import checked_precision
from jaxqc._parallel import checked_mesh, replicated
from jaxqc.molecule import Molecule
from jaxqc.scf._check_xc import XC_DEFAULTS, check_xc
from jaxqc.scf._guess import check_guess
from jaxqc.scf._method import Arguments, Method
from jaxqc.scf._reference import Reference
from jaxqc.scf._solver import Settings


@dataclass(frozen=True)
class Options:
    """Checked arguments of one calculation."""

    reference: Reference
    settings: Settings
    method: Method
    arguments: Arguments
    numbers: dict[str, float]
    guess: Any
    throw: bool


DEFAULTS: dict[str, Any] = {
    "restricted": None,
    "guess": "atom",
    "guess_mix": 0.0,
    "field": None,
    "max_cycles": 100,
    "tolerance": 1e-10,
    "gradient_tolerance": 3e-8,
    "threshold": 1e-13,
    "precision": "double",
    "level_shift": 0.0,
    "damping": 0.0,
    "diis_space": 8,
    "second_order": "auto",
    "linear_dependence": 1e-8,
    "throw": True,
    "mesh": None,
    **XC_DEFAULTS,
}


def check_options(mol, xc, given, report, name="jaxqc.scf") -> Options:
    """Completes and checks the keyword arguments of `scf`, `energy` and `gradient`, whichever is named `name`."""
    if not isinstance(mol, Molecule):
        raise TypeError(
            f"Argument mol must be a jaxqc.Molecule, but it is of type {type(mol).__name__}; build one with "
            "jaxqc.Molecule('water.xyz', basis='def2-svp') or jaxqc.Molecule.from_pyscf(mole)."
        )
    unknown = [name for name in given if name not in DEFAULTS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], DEFAULTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the arguments are {', '.join(DEFAULTS)}."
        raise TypeError(f"There is no argument {unknown[0]!r}; {hint}")
    values = {**DEFAULTS, **given}
    reference = choose_reference(mol, values["restricted"])
    check_guess(values["guess"], mol.nao)
    numbers = {
        "tolerance": _number(values, "tolerance", low=0.0, open_low=True),
        "gradient_tolerance": _number(values, "gradient_tolerance", low=0.0, open_low=True),
        "level_shift": _number(values, "level_shift", low=0.0),
        "damping": _number(values, "damping", low=0.0, high=1.0),
        "linear_dependence": _number(values, "linear_dependence", low=0.0),
        "guess_mix": _number(values, "guess_mix"),
    }
    if numbers["guess_mix"] and reference.kind != "uhf":
        raise ValueError(
            "Argument guess_mix breaks the symmetry between alpha and beta, so it needs unrestricted orbitals; add "
            "restricted=False."
        )
    threshold = _number(values, "threshold", low=0.0, open_low=True)
    precision = checked_precision(values["precision"], name)
    xc_part, parameters, points = check_xc(mol, xc, values, given)
    mesh = checked_mesh(values["mesh"], name)
    method = Method(threshold, xc_part, mesh)
    settings = Settings(
        max_cycles=_integer(values, "max_cycles", 1, 10000),
        diis_space=_integer(values, "diis_space", 1, 100),
        second_order=_second_order(values["second_order"]),
        # Derivatives, and what looks at the result, keep to double precision.
        method=replace(method.without_response, precision=precision),
        mix=numbers["guess_mix"] != 0.0,
        report=report,
    )
    if not isinstance(values["throw"], bool):
        raise TypeError(f"Argument throw must be True or False, but it is {values['throw']!r}.")
    arguments = replicated(Arguments(mol, check_field(values["field"]), parameters, points), mesh)
    return Options(reference, settings, method, arguments, numbers, values["guess"], values["throw"])


def choose_reference(mol, restricted) -> Reference:
    """RHF for spin 0 and UHF otherwise, unless `restricted` decides."""
    if restricted is not None and not isinstance(restricted, bool | np.bool_):
        raise TypeError(
            f"Argument restricted must be True (RHF, or ROHF where spin is not 0), False (UHF) or None (RHF where spin "
            f"is 0, else UHF), but it is {restricted!r}."
        )
    if mol.nalpha > mol.nao:
        raise ValueError(
            f"The molecule has {mol.nalpha} alpha electrons but only {mol.nao} basis functions; choose a larger basis."
        )
    if restricted is None:
        restricted = mol.spin == 0
    kind = ("rhf" if mol.spin == 0 else "rohf") if restricted else "uhf"
    return Reference(kind, mol.nalpha, mol.nbeta, mol.nao)


def check_field(field):
    """An electric field as an array (3,), or None."""
    if field is None:
        return None
    if not isinstance(field, Tracer):
        try:
            array = np.asarray(field)
        except Exception:
            array = np.asarray(None)
        if array.dtype.kind not in "fiu" or array.shape != (3,) or not np.isfinite(array).all():
            raise ValueError(
                f"Argument field must be three finite numbers, the electric field in atomic units, but it is {field!r}."
            )
        return field if isinstance(field, jax.Array) and field.dtype == jnp.float64 else jnp.asarray(array, jnp.float64)
    if field.shape != (3,):
        raise ValueError(f"Argument field must have the shape (3,), but it has {field.shape}.")
    return field


def _second_order(value):
    table = {"auto": "auto", True: "always", False: "never"}
    if not isinstance(value, str | bool) or value not in table:
        raise ValueError(
            f"Argument second_order is {value!r}, but it must be 'auto' (where DIIS does not converge), True (from the "
            "first cycle) or False (never)."
        )
    return table[value]


def _integer(values, name, low, high):
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"Argument {name} must be an integer between {low} and {high}, but it is {value!r}.")
    return int(value)


def _number(values, name, low=-math.inf, high=math.inf, open_low=False):
    value = values[name]
    bounds = f"above {low:g}" if open_low else f"at least {low:g}" if math.isfinite(low) else "finite"
    bounds += f" and below {high:g}" if math.isfinite(high) else ""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"Argument {name} must be a number, but it is {value!r}.") from None
    if not math.isfinite(number) or number < low or number >= high or (open_low and number == low):
        raise ValueError(f"Argument {name} must be {bounds}, but it is {value!r}.")
    return number
