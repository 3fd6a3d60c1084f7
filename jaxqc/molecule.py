"""The molecule: atoms, charge, spin and basis functions as one frozen pytree."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc import _interop
from jaxqc._checks import check_coords, check_distances, check_electrons, check_precision, check_vector
from jaxqc.basis import Block, describe, resolve_basis
from jaxqc.elements import Label, formula, shorten
from jaxqc.io import in_bohr, parse_atoms, write_xyz

_ANGULAR = "spdfghi"
_REAL_NAMES = (("",), ("x", "y", "z"), ("xy", "yz", "z^2", "xz", "x2-y2"), ("-3", "-2", "-1", "+0", "+1", "+2", "+3"))


class Shell(NamedTuple):
    """One contracted shell; its functions follow each other in the order of the atomic orbitals.

    Attributes:
        atom: index of the atom it is centred on.
        l: angular momentum.
        exponent_start: index of its first primitive in `Molecule.exponents`.
        nprim: the number of primitives.
        coefficient_start: index of its first coefficient in `Molecule.coefficients`.
    """

    atom: int
    l: int
    exponent_start: int
    nprim: int
    coefficient_start: int


@dataclass(frozen=True, eq=False)
class Structure:
    """The static part of a molecule: everything but numbers that can vary smoothly. Hashed once, compared by value."""

    labels: tuple[Label, ...]
    charge: int
    spin: int
    cart: bool
    shells: tuple[Shell, ...]
    blocks: tuple[tuple[int, int], ...]  # (first exponent, number of primitives) of each general contraction
    basis: str

    @cached_property
    def key(self):
        return (self.labels, self.charge, self.spin, self.cart, self.shells, self.blocks)

    @cached_property
    def ao_loc(self):
        sizes = [(s.l + 1) * (s.l + 2) // 2 if self.cart else 2 * s.l + 1 for s in self.shells]
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=int)])
        offsets.setflags(write=False)
        return offsets

    @cached_property
    def _hash(self):
        return hash(self.key)

    def __hash__(self):
        return self._hash

    def __reduce__(self):  # without the cached hash, which differs between processes
        return Structure, (self.labels, self.charge, self.spin, self.cart, self.shells, self.blocks, self.basis)

    def __eq__(self, other):
        return self is other or (isinstance(other, Structure) and hash(self) == hash(other) and self.key == other.key)


@jax.tree_util.register_pytree_with_keys_class
class Molecule:
    r"""Atoms with charge, spin and a Gaussian basis set.

    A frozen JAX pytree. Its leaves can be traced and differentiated: `coords`, `exponents`, `coefficients`; all else is
    static. A basis function of a shell with angular momentum l, centred on an atom at A, is

    $$\chi(r) = N\,Y_{lm}(r - A) \sum_p c_p\,N_l(e_p)\,\exp(-e_p |r - A|^2)$$

    with the normalisation of a primitive N_l and of the contraction N, and the order of functions, as in PySCF: atoms
    in the order given, on each atom shells sorted by l, p functions x, y, z, others m = -l..l (or Cartesian).

    Args:
        atoms: a path of an XYZ file, the text of one, an atom string (`"O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24"`), a list
            of `(symbol, (x, y, z))` or `(symbol, x, y, z)`, or a pair of symbols and an (natm, 3) array. A symbol may
            be an atomic number, carry a suffix (`"H1"`, `"O@2"`) to have its own basis, or mark a ghost atom
            (`"GHOST-O"`, `"X-O"`): one with basis functions but no charge and no electrons.
        basis: a name (`"def2-svp"`), a text in the NWChem or Gaussian94 format, shells as PySCF writes them
            (`[[l, [exponent, coefficient, ...], ...], ...]`), or a dict of these by atom label, element (or atomic
            number) or `"default"`: the exact label comes before the element before the default.
        charge: total charge in units of e.
        spin: number of unpaired electrons, 2S = N_alpha - N_beta (the multiplicity minus one).
        unit: unit of the coordinates given, `"angstrom"` or `"bohr"`; one Bohr is 0.52917721092 Angstrom (CODATA 2010,
            as in PySCF).
        cart: Cartesian functions (6 d, 10 f, ...) instead of spherical ones.

    Attributes:
        coords: (natm, 3) in Bohr.
        exponents: (nexp,) in Bohr^-2, of the primitives. Atoms of one element that share a basis entry share them, so
            the derivative of an energy with respect to an exponent is that of the basis set; give atoms labels and a
            dict by label to vary them one by one.
        coefficients: (ncoef,) as the basis set has them, before normalisation. Leading and trailing zeros of a
            contraction are left out.

    Raises:
        TypeError, ValueError, FileNotFoundError: the input has no meaning; the message says which argument and why.
        NotImplementedError: the basis set needs effective core potentials, or functions beyond i.

    Example:
        >>> mol = Molecule("H 0 0 0; F 0 0 0.917", basis="def2-svp")
        >>> mol
        Molecule(FH, def2-svp, charge 0, spin 0, 19 AOs)
        >>> jax.grad(lambda x: mol.with_coords(x).energy_nuc())(mol.coords).shape
        (2, 3)
    """

    coords: jax.Array
    exponents: jax.Array
    coefficients: jax.Array
    structure: Structure

    def __init__(self, atoms, basis=None, charge: int = 0, spin: int = 0, unit: str = "angstrom", cart: bool = False):
        if isinstance(atoms, Molecule):
            raise TypeError("Argument atoms is a Molecule already; use its with_... methods to vary it.")
        if basis is None:
            raise TypeError("Argument basis is missing: give a basis set, for example basis='def2-svp'.")
        if not isinstance(cart, bool | np.bool_):
            raise TypeError(f"Argument cart must be True or False, but it is {shorten(cart)}.")
        labels, coords = parse_atoms(atoms)
        coords = in_bohr(coords, unit)
        charge, spin = check_electrons(labels, charge, spin)
        check_distances(labels, coords)
        keys, blocks = resolve_basis(basis, labels)
        self._fill(labels, coords, keys, blocks, charge, spin, bool(cart), describe(basis))

    def _fill(self, labels, coords, keys, blocks, charge, spin, cart, name):
        check_precision("jaxqc.Molecule")
        shells, spans, exponents, coefficients = _lay_out(keys, blocks)
        structure = Structure(tuple(labels), charge, spin, cart, shells, spans, name)
        arrays = (jnp.asarray(x, dtype=jnp.float64) for x in (coords, exponents, coefficients))
        self._set(arrays, structure)
        if self.nalpha > self.nao:
            raise ValueError(
                f"The basis set {name!r} has {self.nao} functions for this molecule, too few for its {self.nalpha} "
                "alpha electrons; choose a larger one."
            )

    def _set(self, leaves, structure):
        for name, value in zip(_LEAVES, leaves, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "structure", structure)

    @classmethod
    def _make(cls, leaves, structure):
        self = object.__new__(cls)
        self._set(leaves, structure)
        return self

    def __setattr__(self, name, value):
        raise AttributeError(
            f"A Molecule cannot be changed; use with_{name} if there is one, or build another Molecule."
        )

    def __delattr__(self, name):
        raise AttributeError("A Molecule cannot be changed.")

    def __reduce__(self):
        leaves = (np.asarray(getattr(self, name)) for name in _LEAVES)
        return _unpickle, (tuple(leaves), self.structure)

    def tree_flatten_with_keys(self):
        children = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in _LEAVES]
        return children, self.structure

    def tree_flatten(self):
        return [getattr(self, name) for name in _LEAVES], self.structure

    @classmethod
    def tree_unflatten(cls, structure, children):
        return cls._make(children, structure)

    # Other numbers, the same functions

    def with_coords(self, coords, unit: str = "bohr") -> "Molecule":
        """Returns the same molecule with other coordinates.

        Args:
            coords: (natm, 3), by default in Bohr; may be traced (jit, grad, vmap), and is then not checked.
            unit: `"bohr"` or `"angstrom"`.

        Raises:
            TypeError, ValueError: wrong shape or type, values that are not finite, coincident atoms.
        """
        coords = in_bohr(check_coords(coords, self.natm, "Argument coords"), unit)
        check_distances(self.structure.labels, coords)
        leaves = (jnp.asarray(coords, dtype=jnp.float64), self.exponents, self.coefficients)
        return self._make(leaves, self.structure)

    def with_exponents(self, exponents) -> "Molecule":
        """Returns the same molecule with other exponents (nexp,) in Bohr^-2; may be traced."""
        exponents = check_vector(exponents, self.exponents.shape, "exponents", positive=True)
        return self._make((self.coords, exponents, self.coefficients), self.structure)

    def with_coefficients(self, coefficients) -> "Molecule":
        """Returns the same molecule with other coefficients (ncoef,), before normalisation; may be traced."""
        coefficients = check_vector(coefficients, self.coefficients.shape, "coefficients", positive=False)
        return self._make((self.coords, self.exponents, coefficients), self.structure)

    # What it is made of

    @property
    def charge(self) -> int:
        """Total charge in units of e."""
        return self.structure.charge

    @property
    def spin(self) -> int:
        """Number of unpaired electrons, 2S = N_alpha - N_beta."""
        return self.structure.spin

    @property
    def cart(self) -> bool:
        """Whether the functions are Cartesian."""
        return self.structure.cart

    @property
    def shells(self) -> tuple[Shell, ...]:
        """The contracted shells in the order of the atomic orbitals."""
        return self.structure.shells

    @property
    def labels(self) -> tuple[str, ...]:
        """Atom labels as PySCF writes them, for example `"O"`, `"H1"`, `"GHOST-O"`."""
        return tuple(label.text for label in self.structure.labels)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Element symbols, of ghost atoms as well (`"X"` for one without an element)."""
        return tuple(label.symbol for label in self.structure.labels)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Nuclear charges; 0 for ghost atoms."""
        return tuple(0 if label.ghost else label.number for label in self.structure.labels)

    @property
    def basis(self) -> str:
        """Name of the basis set, for summaries."""
        return self.structure.basis

    @property
    def formula(self) -> str:
        """Molecular formula in Hill order."""
        return formula(self.structure.labels)

    @property
    def natm(self) -> int:
        """Number of atoms, ghosts included."""
        return len(self.structure.labels)

    @property
    def nshell(self) -> int:
        """Number of contracted shells."""
        return len(self.shells)

    @property
    def ao_loc(self) -> np.ndarray:
        """(nshell + 1,) index of the first atomic orbital of each shell, and their number."""
        return self.structure.ao_loc

    @property
    def nao(self) -> int:
        """Number of atomic orbitals (basis functions)."""
        return int(self.ao_loc[-1])

    @property
    def aoslice(self) -> np.ndarray:
        """(natm, 2) first atomic orbital of each atom, and the one after its last."""
        first = np.searchsorted([s.atom for s in self.shells], np.arange(self.natm + 1))
        starts = self.ao_loc[first]
        return np.stack([starts[:-1], starts[1:]], axis=1)

    @property
    def nelec(self) -> int:
        """Number of electrons."""
        return sum(self.numbers) - self.charge

    @property
    def nalpha(self) -> int:
        """Number of alpha electrons."""
        return (self.nelec + self.spin) // 2

    @property
    def nbeta(self) -> int:
        """Number of beta electrons."""
        return (self.nelec - self.spin) // 2

    def ao_labels(self) -> list[str]:
        """Returns a name for each atomic orbital, as PySCF's `Mole.ao_labels`: `"0 O 2px"`."""
        counts: dict[tuple[int, int], int] = {}
        names, labels = [], self.labels
        for shell in self.shells:
            counts[shell.atom, shell.l] = counts.get((shell.atom, shell.l), shell.l) + 1
            level = f"{counts[shell.atom, shell.l]}{_ANGULAR[shell.l]}"
            for component in _components(shell.l, self.cart):
                if self.cart:
                    names.append(f"{shell.atom}{labels[shell.atom]:>3s} {level}{component:<4s}")
                else:
                    names.append(f"{shell.atom} {labels[shell.atom]} {level}{component:<4s}")
        return names

    def energy_nuc(self) -> jax.Array:
        r"""Returns the repulsion energy of the nuclei, $\sum_{A<B} Z_A Z_B / R_{AB}$, in Hartree.

        Exactly 0, with zero gradient, for one nucleus; ghosts do not count. Differentiable in the coordinates.
        """
        real = np.flatnonzero(np.array(self.numbers))
        if len(real) < 2:
            return jnp.zeros((), dtype=jnp.float64)
        coords = self.coords if len(real) == self.natm else self.coords[real]
        charges = jnp.asarray(np.array(self.numbers, dtype=np.float64)[real])
        squared = jnp.sum((coords[:, None, :] - coords[None, :, :]) ** 2, axis=-1)
        # The diagonal gets a harmless distance before the root, so that its derivative is 0 and not 0/0.
        same = jnp.eye(len(real), dtype=bool)
        inverse = jnp.where(same, 0.0, 1.0 / jnp.sqrt(jnp.where(same, 1.0, squared)))
        return 0.5 * jnp.einsum("a,ab,b->", charges, inverse, charges)

    # Other programs

    @classmethod
    def from_pyscf(cls, mole) -> "Molecule":
        """Builds a molecule from a PySCF `Mole` (see `jaxqc._interop.from_pyscf`)."""
        return _interop.from_pyscf(cls, mole)

    def to_pyscf(self) -> Any:
        """Returns a PySCF `Mole` with the same functions in the same order (see `jaxqc._interop.to_pyscf`)."""
        return _interop.to_pyscf(self)

    @classmethod
    def from_ase(
        cls, atoms, basis, charge: int | None = None, spin: int | None = None, cart: bool = False
    ) -> "Molecule":
        """Builds a molecule from ASE `Atoms` (see `jaxqc._interop.from_ase`)."""
        return _interop.from_ase(cls, atoms, basis, charge, spin, cart)

    def to_xyz(self, path=None, comment: str | None = None) -> str:
        """Returns the molecule as XYZ text, and writes it to `path` if one is given (see `jaxqc.io.write_xyz`)."""
        return write_xyz(self, path, comment)

    # People

    def __repr__(self):
        kind = ", Cartesian" if self.cart else ""
        return f"Molecule({self.formula}, {self.basis}{kind}, charge {self.charge}, spin {self.spin}, {self.nao} AOs)"

    def _repr_html_(self):
        return _interop.html(self)


_LEAVES = ("coords", "exponents", "coefficients")


def _unpickle(leaves, structure):
    return Molecule._make([jnp.asarray(x) for x in leaves], structure)


def _lay_out(keys, blocks: dict[Any, tuple[Block, ...]]):
    """Numbers the primitives and coefficients of all entries and lists the shells of all atoms.

    General contractions become one shell for each contraction; the shells of a contraction share its primitives, less
    the leading and trailing ones that it does not use.
    """
    exponents, coefficients, spans, layouts = [], [], [], {}
    for key, entry in blocks.items():
        layouts[key] = []
        for block in entry:
            spans.append((len(exponents), len(block.exponents)))
            for column in block.coefficients:
                used = np.flatnonzero(column)
                first, last = int(used[0]), int(used[-1]) + 1
                layouts[key].append((block.l, len(exponents) + first, last - first, len(coefficients)))
                coefficients.extend(column[first:last])
            exponents.extend(block.exponents)
    shells = tuple(Shell(atom, *layout) for atom, key in enumerate(keys) for layout in layouts[key])
    return shells, tuple(spans), np.array(exponents), np.array(coefficients)


def _components(l, cart):
    if cart:
        return ["x" * a + "y" * b + "z" * (l - a - b) for a in range(l, -1, -1) for b in range(l - a, -1, -1)]
    if l < len(_REAL_NAMES):
        return _REAL_NAMES[l]
    return [f"{m:+d}" for m in range(-l, l + 1)]
