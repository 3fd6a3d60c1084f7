r"""Matrix-aligned cells: rows of grid points, each with the compacted, sorted list of the shells that reach it.

Points are ordered along a space-filling curve and cut into rows of a fixed number of points. A shell is in the list of
a row when the bound of its radial envelope at the row's points, times the largest such bound of the row, times the
row's largest weight, can matter at the threshold epsilon. Lists are sorted by falling bound, so that a kernel cuts
its products of orbitals with one limit for each block of functions. They depend on nothing but the geometry, and
derivatives do not pass through them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxqc.integrals._library import handler
from jaxqc.integrals._shells import ShellList
from jaxqc.molecule import Molecule
from jaxqc.xc import _cuda_rules
from jaxqc.xc._grid_hilbert import hilbert_order

_CAPACITY_STEP = 32
_ROWS = (192, 96, 48)
_NEAR_CENTRES = 12
_CACHE_BYTES = 2**19


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["count", "order", "shell", "bound", "weight_max", "overflow"],
    meta_fields=["row", "capacity"],
)
@dataclasses.dataclass(frozen=True, repr=False)
class RowLists:
    r"""The shells of each row of grid points.

    **Arguments:**

    - `row`: points a row; static.
    - `capacity`: the most shells that a row can list; static.
    - `count`: shells in the list of each row, 0 where all weights are 0; int32, shape `(nrow,)`.
    - `order`: rows by falling number of functions; int32, shape `(nrow,)`.
    - `shell`: index of the shell + 2^20 times its number of live primitives (those of the smallest exponents), by
      falling bound; int32, shape `(nrow, capacity)`.
    - `bound`: upper bounds of $|\phi|$ and $|\nabla\phi|$ at the points of the row; float32, shape `(nrow, capacity)`.
    - `weight_max`: largest weight of each row; float32, shape `(nrow,)`.
    - `overflow`: the longest list met; where it exceeds `capacity`, results are NaN; int32, shape `()`.
    """

    row: int
    capacity: int
    count: jax.Array
    order: jax.Array
    shell: jax.Array
    bound: jax.Array
    weight_max: jax.Array
    overflow: jax.Array

    def __repr__(self) -> str:
        return f"RowLists({self.count.shape[0]} rows of {self.row} points, at most {self.capacity} shells each)"

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        """The arrays in the order in which the kernels take them."""
        return (self.count, self.order, self.shell, self.bound, self.weight_max, self.overflow)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["points", "weights", "permutation", "density", "potential"],
    meta_fields=["npoint", "epsilon", "shells"],
)
@dataclasses.dataclass(frozen=True, repr=False)
class Layout:
    r"""A grid cut into rows, with the lists of shells that the kernels read.

    **Arguments:**

    - `npoint`: number of points of the grid; static. The n points of the layout are these, padded to whole rows.
    - `epsilon`: threshold of the screening, 0 for none; static.
    - `shells`: angular momenta and numbers of primitives of the shells that the lists number, and whether functions are
      Cartesian; static.
    - `points`: shape `(n, 3)`, Bohr; padding repeats the last point. Differentiable.
    - `weights`: shape `(n,)`; padding has weight 0. Differentiable.
    - `permutation`: which point of the grid each point of the layout is; int32, shape `(n,)`.
    - `density`, `potential`: the lists for density and for potential.
    """

    npoint: int
    epsilon: float
    shells: tuple
    points: jax.Array
    weights: jax.Array
    permutation: jax.Array
    density: RowLists
    potential: RowLists

    def __repr__(self) -> str:
        rows = self.density.count.shape[0]
        return f"Layout({self.npoint} points in {rows} rows of {self.density.row}, epsilon {self.epsilon:g})"

    def moved(self, points: jax.Array, weights: jax.Array) -> "Layout":
        """The same lists for points `(npoint, 3)` and weights `(npoint,)` of the grid, in the order of the grid."""
        return dataclasses.replace(
            self,
            points=jnp.take(points, self.permutation, axis=0),
            weights=_with_padding(jnp.take(weights, self.permutation), self.npoint),
        )

    def to_grid(self, values: jax.Array) -> jax.Array:
        """Values at the points of the layout, `(..., n)`, in the order of the grid: `(..., npoint)`."""
        out = jnp.zeros((*values.shape[:-1], self.npoint), values.dtype)
        return out.at[..., self.permutation[: self.npoint]].set(values[..., : self.npoint])


def row_size(nao: int, ncentre: int) -> int:
    """Points a row on the CPU, from the basis: as many as keep a row's orbitals and their images in cache.

    Long rows share their lists and gathered densities among more points. A point sees the functions of about a dozen
    centres; two arrays of these times the points of a row are to fit into half of a second-level cache of 1 MiB.
    """
    near = min(nao, -(-_NEAR_CENTRES * nao // max(ncentre, 1)))
    return next((row for row in _ROWS if 16 * near * row <= _CACHE_BYTES), _ROWS[-1])


def shells_of(mol: Molecule | ShellList, cart: bool | None) -> tuple[ShellList, bool]:
    """The shells of a molecule, and whether its functions are Cartesian; a list of shells needs `cart`."""
    if isinstance(mol, ShellList):
        return mol, bool(cart)
    return ShellList.from_molecule(mol), mol.cart


def layout_key(shells: ShellList, cart: bool) -> tuple:
    """What a `Layout` remembers of the shells that its lists number."""
    return (shells.ls, shells.nprims, bool(cart))


def build_layout(
    mol: Molecule | ShellList,
    points: jax.Array,
    weights: jax.Array,
    *,
    epsilon: float = 1e-12,
    cart: bool | None = None,
    row: int | None = None,
    capacity: int | None = None,
    ordered: bool = True,
    coarse: bool = False,
) -> Layout:
    r"""Cuts a grid into rows and lists the shells of each.

    Works inside `jit`, where the capacity is that of all shells unless one is given; outside, it is measured.
    Differentiable in `points` and `weights`, which the layout carries; the lists are constants.

    **Arguments:**

    - `mol`: the molecule, or a `ShellList` with `cart`.
    - `points`: shape `(npoint, 3)`, Bohr.
    - `weights`: shape `(npoint,)`.
    - `epsilon`: threshold of the screening; 0 for none.
    - `row`: points a row; None for a choice from basis. GPUs have their own, 64 for densities and 256 for potentials.
    - `capacity`: most shells that a row can list; None to measure it.
    - `coarse`: whether to round the number of rows up to coarse steps, so that few sizes occur.
    - `ordered`: whether the points already follow a space-filling curve; otherwise they are ordered here.

    **Returns:** the `Layout`.

    **Raises:** `ValueError` for points and weights whose shapes do not fit together.
    """
    shells, cart = shells_of(mol, cart)
    epsilon = float(epsilon)
    if points.ndim != 2 or points.shape[1] != 3 or weights.shape != points.shape[:1]:
        raise ValueError(
            "Arguments points and weights must have the shapes (n, 3) and (n,), but they have "
            f"{points.shape} and {weights.shape}."
        )
    ncentre = mol.natm if isinstance(mol, Molecule) else 1
    row_density, row_potential = (
        _cuda_rules.ROWS if _cuda_rules.on_gpu() else (row or row_size(shells.nao_sph, ncentre),) * 2
    )
    npoint = points.shape[0]
    nrow = -(-npoint // row_potential)
    # On a GPU XLA takes several points at a time where their number is a multiple of 1024; functionals at other numbers
    # of points take up to three times as long.
    step = 4 if _cuda_rules.on_gpu() else 1
    if coarse:
        # Geometries of a molecule differ in the points whose weights vanish: coarse steps spare another compilation.
        step = max(step, 2 ** max(0, nrow.bit_length() - 5))
    n = -(-nrow // step) * step * row_potential
    permutation = jnp.minimum(jnp.arange(n, dtype=jnp.int32), np.int32(max(npoint - 1, 0)))
    if not ordered and npoint > 1:
        permutation = jnp.take(hilbert_order(points), permutation)
    points = jnp.take(points, permutation, axis=0)
    weights = _with_padding(jnp.take(weights, permutation), npoint)
    shells, fixed_points, fixed_weights = jax.tree.map(jax.lax.stop_gradient, (shells, points, weights))
    fixed = (shells, fixed_points, fixed_weights, cart)
    lists = _row_lists(*fixed, row_density, epsilon, capacity)
    other = lists if row_potential == row_density else _row_lists(*fixed, row_potential, epsilon, capacity)
    return Layout(npoint, epsilon, layout_key(shells, cart), points, weights, permutation, lists, other)


def _with_padding(weights: jax.Array, npoint: int) -> jax.Array:
    return jnp.where(jnp.arange(weights.shape[0]) < npoint, weights, 0.0)


def _round_up(n: int) -> int:
    return max(_CAPACITY_STEP, -(-n // _CAPACITY_STEP) * _CAPACITY_STEP)


def _row_lists(shells, points, weights, cart, row, epsilon, capacity) -> RowLists:
    most = _round_up(shells.nshell)
    traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((shells, points, weights)))
    if capacity is not None or traced:
        return _build(shells, points, weights, cart, row, epsilon, capacity or most)
    lists = _build(shells, points, weights, cart, row, epsilon, min(most, 256 if _cuda_rules.on_gpu() else 96))
    longest = int(lists.overflow)
    if longest > most:  # no list is that long: input that is not finite, and the results will say so by NaN
        return lists
    if longest > lists.capacity:
        lists = _build(shells, points, weights, cart, row, epsilon, _round_up(longest))
    if _cuda_rules.on_gpu() and _round_up(longest) < lists.capacity:
        # Shorter descriptions leave more of the GPU's shared memory to orbital values.
        capacity = _round_up(longest)
        lists = dataclasses.replace(
            lists, capacity=capacity, shell=lists.shell[:, :capacity], bound=lists.bound[:, :capacity]
        )
    return lists


def _build(shells, points, weights, cart, row, epsilon, capacity) -> RowLists:
    if _cuda_rules.on_gpu():
        from jaxqc.xc import _cuda

        return _cuda.rows(shells, cart, points, weights, row, capacity, epsilon)
    nrow = points.shape[0] // row
    shapes = [
        jax.ShapeDtypeStruct((nrow,), jnp.int32),
        jax.ShapeDtypeStruct((nrow,), jnp.int32),
        jax.ShapeDtypeStruct((nrow, capacity), jnp.int32),
        jax.ShapeDtypeStruct((nrow, capacity), jnp.float32),
        jax.ShapeDtypeStruct((nrow,), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.int32),
    ]
    call = jax.ffi.ffi_call(handler("jaxqc_xc_rows"), shapes, vmap_method="sequential")
    arrays = call(
        shells.centers,
        shells.exponents,
        shells.coefficients,
        points,
        weights,
        ls=np.asarray(shells.ls, np.int32),
        nprims=np.asarray(shells.nprims, np.int32),
        cart=bool(cart),
        row=np.int64(row),
        epsilon=np.float64(epsilon),
    )
    return RowLists(row, capacity, *arrays)
