"""Results as QCSchema AtomicResult (version 1, https://molssi-qc-schema.readthedocs.io): plain data for JSON."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jaxqc
from jaxqc._summary import Summary, summarise
from jaxqc.io import to_qcschema
from jaxqc.scf import Result
from jaxqc.scf._view import misfit


def atomic_result(result: Result, gradient=None, *, keywords: Mapping | None = None, wall_time=None) -> dict:
    """Returns a result as a QCSchema AtomicResult.

    Args:
        result: a `Result` that is not traced. Where it has not converged, `success` is False, `error` says why
            and there is no `return_result`.
        gradient: (natm, 3) Hartree/Bohr, if it was computed; it then is the `return_result`.
        keywords: settings of the calculation, to be kept with it.
        wall_time: seconds, to be kept with it.

    Returns:
        Nested dicts and lists of plain numbers. Matrices are flat, row by row; lengths are in Bohr, energies in
        Hartree, the dipole moment in e a0. What QCSchema has no field for is in `extras["jaxqc"]`.

    Example:
        >>> import jaxqc
        >>> mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.917", basis="sto-3g")
        >>> data = atomic_result(jaxqc.scf(mol))
        >>> data["schema_name"], data["success"]
        ('qcschema_output', True)
    """
    summary = summarise(result)
    converged = bool(result.converged)
    properties = _properties(result, summary)
    if gradient is not None:
        properties["return_gradient"] = properties["scf_total_gradient"] = flat(gradient)
    returned = properties["scf_total_energy"] if gradient is None else properties["return_gradient"]
    if converged:
        error = None
    else:
        for name in ("return_energy", "scf_total_energy"):
            del properties[name]  # nobody may take it for an energy
        error = {
            "error_type": "convergence_error",
            "error_message": _failure(result),
        }
    data = {
        **_head("energy" if gradient is None else "gradient", wall_time),
        "molecule": to_qcschema(result.mol),
        "model": {"method": result.xc or "hf", "basis": result.mol.basis},
        "keywords": {"reference": result.kind.lower(), **(keywords or {})},
        "properties": clean(properties),
        "success": converged,
        "error": error,
        "extras": {"jaxqc": clean(_extras(result, summary))},
    }
    if converged:
        data["return_result"] = clean(returned)
    return data


def failed_result(driver: str, model: dict, keywords: Mapping, kind: str, message: str) -> dict:
    """Returns the QCSchema of a calculation that could not be done.

    Args:
        driver: `"energy"` or `"gradient"`.
        model: `method` and `basis`.
        keywords: settings of the calculation.
        kind: QCSchema's type of the error, such as `"input_error"`.
        message: the sentence that people get to see.
    """
    return {
        **_head(driver, None),
        "model": model,
        "keywords": dict(keywords),
        "properties": {},
        "success": False,
        "error": {"error_type": kind, "error_message": message},
        "extras": {},
    }


def dumps(data: dict) -> str:
    """Returns the data as JSON in the strict sense: without NaN and Infinity."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write(data: dict, path) -> None:
    """Writes the data to a file, as JSON."""
    Path(path).write_text(dumps(data), encoding="utf-8")


def flat(array) -> list[float]:
    """Returns the elements of an array, row by row."""
    return np.asarray(array, dtype=float).ravel().tolist()


def clean(value: Any) -> Any:
    """Returns the value with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _failure(result):
    if coarse := misfit(result):
        return coarse
    return (
        f"The {result.kind} calculation did not converge within {int(result.cycles)} cycles; "
        f"the orbital gradient is {float(result.gradient_norm):.1e} Hartree."
    )


def _head(driver, wall_time):
    provenance: dict[str, Any] = {"creator": "jaxqc", "version": jaxqc.__version__, "routine": "jaxqc.scf"}
    if wall_time is not None:
        provenance["wall_time"] = float(wall_time)
    return {
        "schema_name": "qcschema_output",
        "schema_version": 1,
        "driver": driver,
        "provenance": provenance,
    }


def _properties(result, summary: Summary):
    reference = result.reference
    properties = {
        "calcinfo_natom": result.mol.natm,
        "calcinfo_nbasis": reference.nao,
        "calcinfo_nmo": summary.nmo,
        "calcinfo_nalpha": reference.nalpha,
        "calcinfo_nbeta": reference.nbeta,
        "nuclear_repulsion_energy": summary.nuclear,
        "scf_one_electron_energy": summary.one_electron,
        "scf_two_electron_energy": summary.two_electron,
        "scf_dipole_moment": flat(summary.dipole),
        "scf_iterations": int(result.cycles),
        "scf_total_energy": summary.energy,
        "return_energy": summary.energy,
    }
    if summary.xc is not None:
        properties["scf_xc_energy"] = summary.xc
    return properties


def _extras(result, summary: Summary):
    extras: dict[str, Any] = {
        "mulliken_charges": flat(summary.charges),
        "orbital_gradient_norm": float(result.gradient_norm),
        "gap": summary.gap,
        "levels": [vars(level) for level in summary.levels],
    }
    if result.method.xc is not None:
        extras["grid_points"] = summary.grid_points
        extras["grid_electrons"] = summary.grid_electrons
        extras["grid_partition"] = result.method.xc.partition
        extras["epsilon"] = result.method.xc.epsilon
    if result.reference.kind != "rhf":
        extras["spin_square"] = summary.spin_square
        extras["mulliken_spin_populations"] = flat(summary.spin_populations)
    return extras
