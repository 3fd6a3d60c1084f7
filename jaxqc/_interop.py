"""Molecules from and to PySCF and ASE, and their notebook view."""

import bisect
import contextlib
import html as _html
import importlib.util
import re

import numpy as np
from jax.core import Tracer

from jaxqc._basis_library import is_known, load
from jaxqc._checks import check_distances, check_electrons
from jaxqc.basis import check_shells, describe
from jaxqc.elements import BOHR, parse_label, shorten


def from_pyscf(cls, mole):
    """Builds a molecule from a PySCF `Mole`: its atoms, ghosts, basis functions, charge, spin and `cart`.

    Args:
        cls: `Molecule`.
        mole: a `pyscf.gto.Mole`; one that has not been built is built.

    Returns:
        The molecule; its atomic orbitals are those of PySCF, in the same order.

    Raises:
        TypeError: `mole` is no `Mole`.
        NotImplementedError: it has effective core potentials, or a basis set that needs them; finite nuclei, fractional
            charges, periodic boundary conditions or another operator than 1/r.
        ValueError: its basis was changed after it was built, or its number of electrons was set by hand.
    """
    if not hasattr(mole, "_basis") or not hasattr(mole, "atom_coords"):
        raise TypeError(f"Argument mole must be a pyscf.gto.Mole, but it is {shorten(mole)}.")
    if hasattr(mole, "lattice_vectors"):
        raise NotImplementedError("Argument mole is a periodic Cell; jaxqc computes molecules only.")
    if not mole._built:
        mole = mole.copy()
        mole.build(False, False)
    _refuse_extensions(mole)
    labels, names = [], [mole.atom_symbol(a) for a in range(mole.natm)]
    for name, charge in zip(names, mole.atom_charges(), strict=True):
        label = parse_label(name)
        if int(charge) != (0 if label.ghost else label.number):
            raise NotImplementedError(f"The atom {name} of argument mole has the changed nuclear charge {charge}.")
        labels.append(label)
    neutral = sum(label.number for label in labels if not label.ghost)
    if mole.nelectron != neutral - mole.charge:
        raise ValueError(
            f"The number of electrons of argument mole was set to {mole.nelectron}, but its atoms and its charge of "
            f"{mole.charge} make {neutral - mole.charge}; set mole.charge={neutral - mole.nelectron} instead."
        )
    _refuse_valence_sets(mole, labels)
    keys, blocks = [], {}
    for name in names:
        entry = _entry(mole._basis, name)
        if entry is None:
            raise ValueError(f"Argument mole has no basis functions for the atom {name}.")
        key = (parse_label(name).symbol, entry)
        if key not in blocks:
            blocks[key] = check_shells(mole._basis[entry], name)
        keys.append(key)
    charge, spin = check_electrons(labels, mole.charge, mole.spin)
    coords = np.asarray(mole.atom_coords(), dtype=np.float64)
    check_distances(labels, coords)
    result = cls.__new__(cls)
    result._fill(labels, coords, keys, blocks, charge, spin, bool(mole.cart), describe(mole.basis))
    _compare(result, mole)
    return result


def to_pyscf(mol):
    """Returns a PySCF `Mole` with the same atoms and the same basis functions in the same order.

    Args:
        mol: a molecule with concrete leaves.

    Returns:
        A built `pyscf.gto.Mole` (verbose 0), with coordinates in Bohr.

    Raises:
        TypeError: a leaf is traced.
        ImportError: PySCF is not installed.
    """
    if any(isinstance(leaf, Tracer) for leaf in (mol.coords, mol.exponents, mol.coefficients)):
        raise TypeError(
            "A molecule with traced leaves has no values to give to PySCF; call to_pyscf outside jit and grad."
        )
    from pyscf import gto

    basis: dict[str, list] = {}
    taken: dict[str, int] = {}  # atoms of one label have the same functions: those of the first are written
    for group in _general_contractions(mol):
        label = mol.labels[group[0].atom]
        if taken.setdefault(label, group[0].atom) == group[0].atom:
            basis.setdefault(label, []).append(_pyscf_shell(mol, group))
    mole = gto.Mole(verbose=0)
    mole.build(
        dump_input=False,
        parse_arg=False,
        atom=[(label, tuple(row)) for label, row in zip(mol.labels, np.asarray(mol.coords).tolist(), strict=True)],
        basis=basis,
        unit="Bohr",
        charge=mol.charge,
        spin=mol.spin,
        cart=mol.cart,
    )
    return mole


def from_ase(cls, atoms, basis, charge=None, spin=None, cart=False):
    """Builds a molecule from ASE `Atoms` (positions in Angstrom).

    Args:
        cls: `Molecule`.
        atoms: `ase.Atoms` without periodic boundary conditions.
        basis: the basis set, as for `Molecule`.
        charge: total charge; None takes the sum of the initial charges of the atoms.
        spin: 2S; None takes the sum of their initial magnetic moments.
        cart: Cartesian functions.

    Raises:
        TypeError: `atoms` are no `Atoms`.
        ValueError: the sum of charges or moments is not an integer; or as for `Molecule`.
        NotImplementedError: periodic boundary conditions.
    """
    if not hasattr(atoms, "get_chemical_symbols") or not hasattr(atoms, "get_positions"):
        raise TypeError(f"Argument atoms must be ase.Atoms, but it is {shorten(atoms)}.")
    if any(atoms.get_pbc()):
        raise NotImplementedError(
            "Argument atoms is periodic; jaxqc computes molecules only: call atoms.set_pbc(False)."
        )
    if charge is None:
        charge = _whole(atoms.get_initial_charges(), "initial charges", "charge")
    if spin is None:
        spin = _whole(atoms.get_initial_magnetic_moments(), "initial magnetic moments", "spin")
    symbols = atoms.get_chemical_symbols()
    return cls((symbols, np.asarray(atoms.get_positions())), basis, charge=charge, spin=spin, cart=cart)


def html(mol) -> str:
    """Returns the notebook view of a molecule: a table, and a rotating model where py3Dmol is installed."""
    rows = {
        "Formula": mol.formula,
        "Atoms": mol.natm,
        "Electrons": f"{mol.nelec} ({mol.nalpha} alpha, {mol.nbeta} beta)",
        "Charge": mol.charge,
        "Spin (2S)": mol.spin,
        "Basis": f"{mol.basis} ({'Cartesian' if mol.cart else 'spherical'})",
        "Basis functions": mol.nao,
    }
    cells = "".join(f"<tr><th>{name}</th><td>{_html.escape(str(value))}</td></tr>" for name, value in rows.items())
    table = f"<table>{cells}</table>"
    if isinstance(mol.coords, Tracer) or importlib.util.find_spec("py3Dmol") is None:
        return table
    import py3Dmol  # pyright: ignore[reportMissingImports]

    coords = np.asarray(mol.coords) * BOHR
    atoms = [f"{s} {x:.6f} {y:.6f} {z:.6f}" for s, (x, y, z) in zip(mol.symbols, coords, strict=True)]
    view = py3Dmol.view(width=420, height=300)
    view.addModel("\n".join([str(mol.natm), "", *atoms]), "xyz")
    view.setStyle({"stick": {"radius": 0.12}, "sphere": {"scale": 0.25}})
    view.zoomTo()
    return table + view._make_html()


def _whole(values, what, name):
    total = float(np.sum(values))
    if abs(total - round(total)) > 1e-6:
        raise ValueError(f"The {what} of argument atoms add up to {total:g}, not to an integer; give {name}.")
    return round(total)


def _general_contractions(mol):
    """Puts shells that share their primitives together again, in order."""
    starts = [start for start, _ in mol.structure.blocks]
    groups, last = [], None
    for shell in mol.shells:
        place = (shell.atom, bisect.bisect_right(starts, shell.exponent_start))
        if place != last:
            groups.append([])
            last = place
        groups[-1].append(shell)
    return groups


def _pyscf_shell(mol, group):
    starts = [start for start, _ in mol.structure.blocks]
    start, nprim = mol.structure.blocks[bisect.bisect_right(starts, group[0].exponent_start) - 1]
    table = np.zeros((nprim, 1 + len(group)))
    table[:, 0] = np.asarray(mol.exponents)[start : start + nprim]
    for k, shell in enumerate(group):
        first = shell.exponent_start - start
        used = slice(shell.coefficient_start, shell.coefficient_start + shell.nprim)
        table[first : first + shell.nprim, 1 + k] = np.asarray(mol.coefficients)[used]
    return [group[0].l, *table.tolist()]


def _entry(basis, name):
    """Returns the key of an atom in PySCF's formatted basis, found in PySCF's order."""
    bare = re.sub(r"^(GHOST|X)-", "", name, flags=re.IGNORECASE)
    for key in (name, "".join(filter(str.isalpha, name)), bare, "".join(filter(str.isalpha, bare))):
        if key in basis:
            return key
    return None


def _spelling(key):
    """The key of a basis dict as PySCF spells it: a label, or "default"."""
    try:
        return "default" if str(key).strip().lower() == "default" else parse_label(key).text
    except (TypeError, ValueError):
        return key


def _refuse_extensions(mole):
    if getattr(mole, "_ecp", None) or getattr(mole, "_pseudo", None):
        raise NotImplementedError(
            "Argument mole has effective core potentials, which jaxqc does not have yet; use an all-electron basis set."
        )
    if mole.omega:
        raise NotImplementedError(
            "Argument mole has an attenuated operator (omega); set omega where integrals are asked for instead."
        )
    if (mole._atm[:, 2] > 1).any():  # slot 2: the model of the nucleus; 0 and 1 are a point
        raise NotImplementedError("Argument mole has finite nuclei or fractional charges; jaxqc has point nuclei only.")
    if len(mole._bas) and (mole._bas[:, 4] != 0).any():  # slot 4: kappa
        raise NotImplementedError("Argument mole has spinor shells (kappa); jaxqc has real ones only.")


def _refuse_valence_sets(mole, labels):
    """Refuses a basis set that needs a potential for one of the atoms; only its name tells."""
    default = None if isinstance(mole.basis, dict) else mole.basis
    table = {_spelling(key): value for key, value in mole.basis.items()} if default is None else {}
    for label in labels:
        entry = _entry(table, label.text)
        named = table.get("default", default) if entry is None else table[entry]
        for name in named if isinstance(named, list | tuple) else [named]:
            if isinstance(name, str) and "\n" not in name and is_known(name) and label.symbol != "X":
                with contextlib.suppress(ValueError):  # a name that PySCF alone understands
                    load(name.strip(), label.symbol, label.number, label.ghost)


def _compare(result, mole):
    """Checks that the molecule has the functions that PySCF would really use, whatever was done to `mole`."""
    other = to_pyscf(result)
    same = len(mole._bas) == len(other._bas) and (mole._bas[:, [0, 1, 3]] == other._bas[:, [0, 1, 3]]).all()
    for k in range(len(mole._bas) if same else 0):
        same = same and np.array_equal(_contraction(mole, k), _contraction(other, k))
    if not same:
        raise ValueError(
            "The basis functions of argument mole are not those of its attribute basis: it was changed after it was "
            "built. Set mole.basis and call mole.build()."
        )


def _contraction(mole, k):
    table = np.hstack([mole.bas_exp(k)[:, None], mole._libcint_ctr_coeff(k)])
    return table[(table[:, 1:] != 0).any(axis=1)]
