"""Molecular integration grids: points, weights, and how they follow the nuclei."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc._checks import check_molecule
from jaxqc.elements import shorten
from jaxqc.xc._cuda_rules import on_gpu
from jaxqc.xc._grid_becke import PARTITIONS
from jaxqc.xc._grid_hilbert import hilbert_order
from jaxqc.xc._grid_partition import partition_fractions
from jaxqc.xc._grid_template import GridTemplate, check_choice, grid_template

SMALLEST_WEIGHT = 1e-16
_COPIES = 64
_PARTITION_MEANING = "how space is divided among the atoms"


@jax.tree_util.register_pytree_with_keys_class
class Grid:
    r"""Points and weights that integrate a function over all space, $\int f(r)\,d^3r \approx \sum_g w_g f(r_g)$.

    Around each atom stand Treutler-Ahlrichs radial points times Lebedev spheres, and the weights are divided among the
    atoms. Levels, points and weights are those of PySCF 2.14 (`pyscf.dft.gen_grid`); ghost atoms carry the points of
    their element, as there. Points are ordered along a Hilbert curve; points with weights below 1e-16 are left out.

    A frozen JAX pytree. Under `jit`, `grad` or `vmap` over the coordinates no point is left out (small weights
    become 0), and points and weights can be differentiated with respect to the coordinates.

    Args:
        mol: the `jaxqc.Molecule`.
        level: 0 (coarse) to 9 (very fine); or a pair `(n_radial, n_angular)` with n_angular the size of a Lebedev
            rule; or a dict of these by atom label, element, atomic number or `"default"` (3 if it has none).
        partition: `"becke"` (doi:10.1063/1.454033), which every atom has a say in, or `"ssf"` (Stratmann, Scuseria,
            Frisch, doi:10.1016/0009-2614(96)00600-8), whose cost grows linearly with the molecule.
        prune: fewer angular points near a nucleus and far away: `"nwchem"`, `"sg1"`, `"treutler"` or None.
        radii: how atomic radii shift the borders between atoms: `"treutler"` (doi:10.1063/1.469408), `"becke"` or None.

    Attributes:
        coords: (n, 3) points in Bohr.
        weights: (n,) in Bohr^3.
        atom: (n,) int32, the atom that each point belongs to and moves with.
        index: (n,) int32, the place of each point when points come atom after atom.
        template: the static `GridTemplate`; None for a grid from arrays.
        partition: `"becke"` or `"ssf"`; None for a grid from arrays.

    Raises:
        TypeError, ValueError: an argument has no meaning, or no point is left; the message says which and why.

    Example:
        >>> grid = Grid(jaxqc.Molecule("He 0 0 0", basis="sto-3g"), level=1)
        >>> r = jnp.linalg.norm(grid.coords, axis=1)
        >>> round(float(grid.weights @ jnp.exp(-r)) / (8 * np.pi), 3)
        1.0
    """

    coords: jax.Array
    weights: jax.Array
    atom: jax.Array
    index: jax.Array
    template: Any
    partition: Any

    def __init__(
        self,
        mol,
        level: Any = 3,
        *,
        partition: str = "becke",
        prune: str | None = "nwchem",
        radii: str | None = "treutler",
    ):
        check_molecule(mol, "jaxqc.xc.Grid")
        check_choice(partition, PARTITIONS, "partition", _PARTITION_MEANING)
        template = grid_template(mol, level, prune, radii)
        if isinstance(mol.coords, Tracer):
            leaves = _leaves(place(template, mol.coords, partition))
        else:
            leaves = _drop(_leaves(_place_eagerly(template, mol.coords, partition)))
        self._set(leaves, template, partition)

    @classmethod
    def from_arrays(cls, coords, weights, atom=None) -> "Grid":
        """A grid from points and weights of your own, in the order given.

        Args:
            coords: (n, 3) in Bohr.
            weights: (n,) in Bohr^3.
            atom: (n,) the atom of each point, or None.

        Raises:
            ValueError: shapes that do not fit, or no point.
        """
        coords, weights = jnp.asarray(coords, jnp.float64), jnp.asarray(weights, jnp.float64)
        if coords.ndim != 2 or coords.shape[1] != 3 or weights.shape != coords.shape[:1]:
            raise ValueError(
                "Arguments coords and weights must have the shapes (n, 3) and (n,), but they have "
                f"{coords.shape} and {weights.shape}."
            )
        if not len(weights):
            raise ValueError("Arguments coords and weights hold no point; an empty grid integrates everything to 0.")
        if not any(isinstance(x, Tracer) for x in (coords, weights)):
            bad = int(np.sum(~np.isfinite(np.asarray(coords)).all(1) | ~np.isfinite(np.asarray(weights))))
            if bad:
                raise ValueError(
                    f"Arguments coords and weights must be finite, but {bad} of {len(weights)} points are not."
                )
        atom = jnp.zeros(len(weights), jnp.int32) if atom is None else jnp.asarray(atom).astype(jnp.int32)
        if atom.shape != weights.shape:
            raise ValueError(f"Argument atom must have the shape {weights.shape}, but it has {atom.shape}.")
        return cls._make((coords, weights, atom, jnp.arange(len(weights), dtype=jnp.int32)), None, None)

    def _set(self, leaves, template, partition):
        values = (*leaves, template, partition)
        for name, value in zip((*_LEAVES, "template", "partition"), values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def _make(cls, leaves, template, partition):
        self = object.__new__(cls)
        self._set(leaves, template, partition)
        return self

    def __setattr__(self, name, value):
        raise AttributeError("A Grid cannot be changed; build another one.")

    def __delattr__(self, name):
        raise AttributeError("A Grid cannot be changed; build another one.")

    def __reduce__(self):
        return _unpickle, (tuple(np.asarray(x) for x in _leaves(self)), self.template, self.partition)

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey(n), getattr(self, n)) for n in _LEAVES], (self.template, self.partition)

    def tree_flatten(self):
        return _leaves(self), (self.template, self.partition)

    @classmethod
    def tree_unflatten(cls, static, children):
        return cls._make(tuple(children), *static)

    @property
    def size(self) -> int:
        """The number of points."""
        return self.weights.shape[-1]

    def __len__(self) -> int:
        return self.size

    def by_atom(self) -> jax.Array:
        """The permutation (n,) that puts the points atom after atom, in PySCF's order (`sort_grids=False`)."""
        return jnp.argsort(self.index)

    def __repr__(self):
        parts = [f"{self.size} points"]
        if self.template is not None:
            parts += [f"{self.template.natm} atom{'s' * (self.template.natm != 1)}", str(self.partition)]
            parts.append(f"prune {self.template.prune}")
        return f"Grid({', '.join(parts)})"


_LEAVES = ("coords", "weights", "atom", "index")


def _leaves(grid):
    return tuple(getattr(grid, name) for name in _LEAVES)


def _unpickle(leaves, template, partition):
    return Grid._make(tuple(jnp.asarray(x) for x in leaves), template, partition)


def _place_eagerly(template, coords, partition):
    """On a GPU with kernels if JAX computes there by default, otherwise on the CPU: both look at near atoms only."""
    if on_gpu():
        return place(template, coords, partition)
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return place(template, coords, partition)
    # Within the context of a mesh, arrays on one device of it meet no program: a mesh of that device takes its place.
    outside = jax.sharding.get_abstract_mesh().empty
    context = contextlib.nullcontext() if outside else jax.set_mesh(jax.sharding.Mesh(np.array([cpu]), ("grid",)))
    with jax.default_device(cpu), context:
        return place(template, jax.device_put(coords, cpu), partition)


def _drop(leaves):
    """Leaves out the points with small weights; the rest goes to the device where JAX computes by default."""
    arrays = [np.asarray(x) for x in leaves]
    (keep,) = np.nonzero(arrays[1])
    if not len(keep):
        raise ValueError(
            "The grid is empty: no point has a weight of at least 1e-16. Check the coordinates, or ask for more points "
            "by a higher level."
        )
    return tuple(jnp.asarray(x[keep]) for x in arrays)


def place(template: GridTemplate, coords, partition: str = "becke", moving: bool = True, index=None) -> Grid:
    """The grid of a template at given coordinates; pure, of static size, for use under `jit`, `grad` and `vmap`.

    Args:
        template: from `grid_template(mol, level, prune, radii)`.
        coords: (natm, 3) in Bohr.
        partition: `"becke"` or `"ssf"`.
        moving: whether derivatives with respect to the coordinates see points and weights move with the nuclei
            (grid response); otherwise they are constants.
        index: (n,) int32, which points of the template, in their order, such as the `index` of a `Grid` without those
            of small weight; ~k is point k without its weight. None for all points along a Hilbert curve. Fast where
            neighbours are near each other. Within jit, numbers that are too large give NaN.

    Returns:
        A `Grid` with these points; weights below 1e-16 are 0.

    Raises:
        ValueError: coordinates or an index of the wrong shape, or an unknown partition.

    Example:
        >>> template = grid_template(mol, 3)
        >>> jax.grad(lambda x: place(template, x).weights.max())(mol.coords).shape == mol.coords.shape
        True
    """
    check_choice(partition, PARTITIONS, "partition", _PARTITION_MEANING)
    coords = jnp.asarray(coords, jnp.float64)
    if coords.shape != (template.natm, 3):
        raise ValueError(
            f"Argument coords must have the shape {(template.natm, 3)} of the template's atoms, but it has "
            f"{coords.shape}."
        )
    if index is not None:
        index = jnp.asarray(index)
        if index.ndim != 1 or index.dtype != jnp.int32 or not len(index):
            raise ValueError(
                "Argument index must be the numbers of points of the template, (n,) int32 such as the index of a Grid, "
                f"but it is {index.dtype} {index.shape}."
            )
        _check_numbers(index, template.size)
    return _place(template, coords, partition, bool(moving), index)


def _check_numbers(index, size):
    if isinstance(index, Tracer):
        return
    numbers = np.asarray(index)
    if numbers.max() >= size or numbers.min() < -size:
        raise ValueError(
            f"Argument index has numbers from {numbers.min()} to {numbers.max()}, but the template has {size} points."
        )


def _owner(ends, index):
    """The atom of each point, from where the points of each atom end."""
    return jnp.searchsorted(ends, index, side="right", method="scan_unrolled").astype(jnp.int32)


def _along_a_curve(offsets, coords, ends, shift, n):
    """The numbers of all n points of a template in the order of a Hilbert curve."""
    index = jnp.arange(n, dtype=jnp.int32)
    owner = _owner(ends, index)
    return hilbert_order(offsets[index + shift[owner]] + jax.lax.stop_gradient(coords)[owner])


def _of_owner(coords, owner):
    """coords[owner], of copies that neighbours take in turn: in the transpose, few points of a GPU add to one place."""
    copies = jnp.broadcast_to(coords[:, None], (len(coords), _COPIES, 3)).reshape(-1, 3)
    return copies[owner * _COPIES + jnp.arange(len(owner), dtype=jnp.int32) % _COPIES]


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _place(template, coords, partition, moving, index):
    if not moving:
        coords = jax.lax.stop_gradient(coords)
    # From tables of the kinds of atoms, not of all atoms: constants of a compiled function should be small, and behind
    # a barrier, so that the compiler does not work out at length what they lead to.
    ends = np.cumsum(template.counts)
    shift = template.table_starts + template.counts - ends
    constants = (*template.tables, template.size_radii, ends.astype(np.int32), shift.astype(np.int32))
    offsets, local, radii, ends, shift = jax.lax.optimization_barrier(tuple(map(jnp.asarray, constants)))
    if index is None:
        index = _along_a_curve(offsets, coords, ends, shift, template.size)
    number = jnp.maximum(index, ~index)
    owner = _owner(ends, number)
    row = number + shift[owner]
    points = _of_owner(coords, owner) + offsets[row]
    fraction = partition_fractions(coords, points, owner, radii, partition=partition)
    weights = jnp.where(number < template.size, local[row] * fraction, jnp.nan)
    dropped = (index < 0) | (jnp.abs(weights) < SMALLEST_WEIGHT)
    return Grid._make((points, jnp.where(dropped, 0.0, weights), owner, index), template, partition)


def check_grid(mol, grid: Grid) -> None:
    """Raises `ValueError` where a grid from a template is that of other atoms, or of the same at other places.

    Where coordinates are traced, only the atoms are compared. A sample of the points is looked at.
    """
    if grid.template is None:
        return
    if tuple(atom[0] for atom in grid.template.atoms) != tuple(label.number for label in mol.structure.labels):
        raise ValueError(
            "Argument grid is the Grid of another molecule; build it with jaxqc.xc.Grid(mol) for this one."
        )
    if any(isinstance(x, Tracer) for x in (mol.coords, grid.coords)) or grid.coords.ndim != 2:
        return
    some = np.unique(np.linspace(0, grid.size - 1, 1000).astype(int))
    with jax.ensure_compile_time_eval():
        points, owner, index = (np.asarray(x[some]) for x in (grid.coords, grid.atom, grid.index))
    known = (index >= 0) & (index < grid.template.size)  # the rest is padding
    template, owner, index = grid.template, owner[known], index[known]
    starts = np.concatenate([[0], np.cumsum(template.counts)[:-1]])
    offsets = template.tables[0][index - starts[owner] + template.table_starts[owner]]
    moved = np.abs(points[known] - offsets - np.asarray(mol.coords)[owner]).max(initial=0.0)
    if moved > 1e-6:
        raise ValueError(
            f"Argument grid was built for other coordinates: its points are {moved:.2g} Bohr away from where those of "
            "this molecule are. Build it again with jaxqc.xc.Grid(mol)."
        )


def pad(grid: Grid, multiple: int) -> Grid:
    """Appends copies of the last point, of weight 0, until the size is a multiple of `multiple`.

    Raises:
        ValueError: `multiple` is no positive integer.
    """
    if isinstance(multiple, bool) or not hasattr(multiple, "__index__") or multiple < 1:
        raise ValueError(f"Argument multiple must be a positive integer, but it is {shorten(multiple)}.")
    extra = -grid.size % int(multiple)
    if not extra:
        return grid
    coords = jnp.pad(grid.coords, ((0, extra), (0, 0)), mode="edge")
    weights = jnp.pad(grid.weights, (0, extra))
    atom = jnp.pad(grid.atom, (0, extra), mode="edge")
    index = jnp.concatenate([grid.index, grid.index.max() + 1 + jnp.arange(extra, dtype=jnp.int32)])
    return Grid._make((coords, weights, atom, index), grid.template, grid.partition)
