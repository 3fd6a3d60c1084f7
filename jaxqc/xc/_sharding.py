r"""Exchange and correlation over many devices: the rows of a grid are dealt along an axis of a mesh.

The density matrix is on every device, each device reads its own rows, and the results are summed once:
$E = \sum_d E_d$, $V = \sum_d V_d$. A row with n functions costs about $c_1 n^2 + c_2 n$ (products of orbitals, and
making them). Units of whole rows are dealt in the order of falling cost, to and fro over the devices as in a card game,
so that all devices hold the same number of rows, which one program for all of them needs, and nearly the same cost.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxqc._bound_functional import bind
from jaxqc._checks import check_molecule
from jaxqc.xc._cells import Layout, RowLists, build_layout, shells_of
from jaxqc.xc._grid import Grid, check_grid
from jaxqc.xc._potential import _check_density, _check_epsilon, xc_energy
from jaxqc.xc.functionals import Functional, functional

# Cost of a row: c_1 n^2 + c_2 n for n functions. Making an orbital and its gradient at a point costs as much as
# multiplying it with about 60 others.
_COST_PRODUCTS, _COST_ORBITALS = 1.0, 60.0
_SHELL_MASK = np.int32(2**20 - 1)  # of `RowLists.shell`: the index of a shell


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layout", "real"], meta_fields=["mesh", "axis"])
@dataclasses.dataclass(frozen=True)
class ShardedLayout:
    r"""A `Layout` whose rows are dealt to the devices of a mesh; from `shard_layout`.

    **Arguments:**

    - `layout`: the rows, device after device, padded with empty ones to the same number on each.
    - `real`: whether a point is one of the grid rather than padding; bool, shape `(n,)`.
    - `mesh`, `axis`: the devices, and the name (or names) of the axis along which rows are dealt; static.
    """

    layout: Layout
    real: jax.Array
    mesh: Mesh
    axis: str | tuple[str, ...]

    @property
    def devices(self) -> int:
        """Number of parts into which the rows are dealt."""
        return _parts(self.mesh, self.axis)

    def moved(self, points: jax.Array, weights: jax.Array) -> "ShardedLayout":
        """The same lists for points `(npoint, 3)` and weights `(npoint,)` of the grid, in the order of the grid."""
        permutation = self.layout.permutation
        layout = dataclasses.replace(
            self.layout,
            points=jnp.take(points, permutation, axis=0),
            weights=jnp.where(self.real, jnp.take(weights, permutation), 0.0),
        )
        return dataclasses.replace(self, layout=layout)


def shard_layout(mol, layout: Layout, mesh, *, axis: str | tuple[str, ...] | None = None) -> ShardedLayout:
    """Deals the rows of a layout to the devices of a mesh.

    Works inside `jit`, too. In a program of several processes each calls it with the same layout.

    **Arguments:**

    - `mol`: the molecule (or `ShellList`) of the layout.
    - `layout`: from `jaxqc.xc.build_layout`.
    - `mesh`: a `jax.sharding.Mesh`, such as `jax.make_mesh((8,), ("grid",))`.
    - `axis`: name (or names) of the axis of the mesh along which rows are dealt; by default its only axis, or "grid".

    **Returns:** the `ShardedLayout`.

    **Raises:** `TypeError`, `ValueError` where `mesh` is no mesh or has no such axis.
    """
    axis = _check_axis(mesh, axis)
    shells, cart = shells_of(mol, False)
    ls = np.asarray(shells.ls)
    sizes = (ls + 1) * (ls + 2) // 2 if cart else 2 * ls + 1
    dealt, real = _deal(layout, _parts(mesh, axis), tuple(sizes.tolist()))
    if not isinstance(layout.points, Tracer):
        dealt, real = _put((dealt, real), _automatic(mesh), axis)
    return ShardedLayout(dealt, real, _automatic(mesh), axis)


def sharded_xc_energy(mol, sharded: ShardedLayout, xc: Functional, density: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`jaxqc.xc.xc_energy` over a mesh: the same arguments, values and derivatives."""

    def local(mol, layout, density):
        return jax.lax.psum(jnp.stack(xc_energy(mol, layout, xc, density)), sharded.axis)

    nelec, exc = _over_mesh(local, sharded, P())(mol, sharded.layout, density)
    return nelec, exc


def sharded_step(mol, sharded: ShardedLayout, density: jax.Array, xc: Functional):
    """Number of electrons, energy and potential; differentiable. One reduction of two numbers and one of a matrix."""

    def local(mol, layout, density):
        def energy(d):
            nelec, exc = xc_energy(mol, layout, xc, d)
            return exc, nelec

        (exc, nelec), potential = jax.value_and_grad(energy, has_aux=True)(density)
        return jax.lax.psum((jnp.stack([nelec, exc]), potential), sharded.axis)

    (nelec, exc), potential = _over_mesh(local, sharded, (P(), P()))(mol, sharded.layout, density)
    return nelec, exc, potential


@functools.partial(jax.jit, static_argnames="bound")
def _compiled(mol, sharded, density, parameters, bound):
    return sharded_step(mol, sharded, density, bound.apply(parameters))


def sharded_potential(
    mol, grid, xc, density, mesh=None, *, axis: str | tuple[str, ...] | None = None, epsilon: float = 1e-12
):
    r"""`jaxqc.xc.potential` over the devices of a mesh, which may belong to several processes.

    $N = \sum_g w_g \rho_g$, $E_{xc} = \sum_g w_g f_g$, $V_{\mu\nu} = \partial E_{xc} / \partial D_{\mu\nu}$.

    **Arguments:** those of `jaxqc.xc.potential`, and

    - `grid`: a `Grid`, a `Layout`, or a `ShardedLayout` from `jaxqc.xc.shard_layout` that many steps share.
    - `mesh`: a `jax.sharding.Mesh`, such as `jax.make_mesh((8,), ("grid",))`; a `ShardedLayout` brings its own.
    - `axis`: name (or names) of the axis along which rows are dealt; by default the only axis, or "grid".

    **Returns:** number of electrons, energy in Hartree, and the potential in the shape of the density, Hartree; all of
    them on every device.

    **Raises:** `TypeError`, `ValueError` for arguments without meaning, in a sentence that says which.

    >>> mesh = jax.make_mesh((jax.device_count(),), ("grid",))
    >>> nelec, exc, vxc = jaxqc.xc.sharded_potential(mol, jaxqc.xc.Grid(mol), "pbe", density, mesh)
    """
    check_molecule(mol, "jaxqc.xc.sharded_potential")
    functional_ = functional(xc)
    density = _check_density(mol, density)
    if not isinstance(grid, ShardedLayout):
        _check_axis(mesh, axis)
        if isinstance(grid, Grid):
            _check_epsilon(epsilon)
            check_grid(mol, grid)
            grid = build_layout(mol, grid.coords, grid.weights, epsilon=epsilon)
        elif not isinstance(grid, Layout):
            raise TypeError(
                "Argument grid must be a jaxqc.xc.Grid, a Layout or a ShardedLayout of one, but it is "
                f"{type(grid).__name__}. Make one with jaxqc.xc.Grid(mol, level=3)."
            )
        grid = shard_layout(mol, grid, mesh, axis=axis)
    elif mesh is not None and _automatic(mesh) != grid.mesh:
        raise ValueError(
            f"Argument mesh is {mesh}, but the ShardedLayout was made for {grid.mesh}. Leave mesh out, or make another "
            "ShardedLayout with jaxqc.xc.shard_layout."
        )
    bound, parameters = bind(functional_)
    return _compiled(mol, grid, density, parameters, bound=bound)


def _over_mesh(local, sharded, out_specs):
    """`local(mol, layout, density)` on each device, with its own rows."""
    specs = (P(), _specs(sharded.layout, sharded.axis), P())
    # The kernels' primitives do not say along which axes their results vary, so the check of that is off.
    mapped = jax.shard_map(local, mesh=sharded.mesh, in_specs=specs, out_specs=out_specs, check_vma=False)
    if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
        return mapped

    def dealt(mol, layout, density):  # in the context of such a mesh arrays must be dealt by name
        return mapped(mol, jax.tree.map(jax.sharding.reshard, layout, specs[1]), density)

    return dealt


def _specs(tree, axis):
    """Arrays over rows and points are dealt along their first axis; scalars are everywhere."""
    return jax.tree.map(lambda x: P(axis) if x.ndim else P(), tree)


def _put(tree, mesh, axis):
    """Puts arrays onto the devices of a mesh; each process only onto its own."""

    def put(x, spec):
        value = np.asarray(x)
        return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    return jax.tree.map(put, tree, _specs(tree, axis))


def _automatic(mesh):
    """The mesh with axes of the type Auto, unless the program runs in the context of a mesh of its own.

    Arrays over axes of the type Explicit, the default of `jax.make_mesh`, cannot meet others outside such a context.
    """
    return mesh if jax.sharding.get_abstract_mesh().axis_names else Mesh(mesh.devices, mesh.axis_names)


def _parts(mesh, axis):
    return int(np.prod([mesh.shape[name] for name in ((axis,) if isinstance(axis, str) else axis)]))


def _check_axis(mesh, axis):
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"Argument mesh must be a jax.sharding.Mesh, but it is {type(mesh).__name__}. "
            'Make one with jax.make_mesh((jax.device_count(),), ("grid",)).'
        )
    if axis is None:
        axis = mesh.axis_names[0] if len(mesh.axis_names) == 1 else "grid"
    names = (axis,) if isinstance(axis, str) else tuple(axis)
    missing = [name for name in names if name not in mesh.axis_names]
    if missing or not names:
        raise ValueError(
            f"Argument axis must name an axis of the mesh, which has {', '.join(map(repr, mesh.axis_names))}, but it "
            f"is {axis!r}. Name the axis along which rows of grid points are to be dealt."
        )
    return axis if isinstance(axis, str) else names


# Dealing.


def _functions(lists: RowLists, sizes: jax.Array) -> jax.Array:
    """Number of functions in the list of each row; float64, shape `(nrow,)`."""
    there = jnp.arange(lists.capacity, dtype=jnp.int32) < lists.count[:, None]
    return jnp.sum(jnp.where(there, sizes[jnp.where(there, lists.shell & _SHELL_MASK, 0)], 0.0), axis=1)


def _order(functions: jax.Array, classes: int) -> jax.Array:
    """`RowLists.order` of each device from the functions of its rows, `(parts, rows)`.

    GPU lists carry after the rows how many rows have more than 8 k functions, for k = 0, 1, ... (`classes` numbers).
    """
    order = jnp.argsort(-functions, axis=1).astype(jnp.int32)
    if not classes:
        return order
    keys = jnp.sort(jnp.minimum(jnp.ceil(functions / 8.0), classes - 1.0), axis=1)
    upto = jax.vmap(lambda k: jnp.searchsorted(k, jnp.arange(float(classes)), side="right"))(keys)
    return jnp.concatenate([order, (functions.shape[1] - upto).astype(jnp.int32)], axis=1)


def _hands(units: int, parts: int) -> np.ndarray:
    """Which ranks each device gets, to and fro; shape `(parts, units / parts)`."""
    ranks = np.arange(units).reshape(-1, parts)
    ranks[1::2] = ranks[1::2, ::-1]
    return ranks.T


@functools.partial(jax.jit, static_argnums=(1, 2))
def _deal(layout: Layout, parts: int, sizes: tuple[int, ...]) -> tuple[Layout, jax.Array]:
    table = jnp.asarray(sizes, jnp.float64)
    same = layout.density.row == layout.potential.row
    kinds = [layout.density] if same else [layout.density, layout.potential]
    unit = max(lists.row for lists in kinds)
    nunit = layout.points.shape[0] // unit
    functions = [_functions(lists, table) for lists in kinds]
    cost = sum(
        jnp.sum((_COST_PRODUCTS * f * f + _COST_ORBITALS * f).reshape(nunit, -1) * float(lists.row), axis=1)
        for f, lists in zip(functions, kinds, strict=True)
    )
    padded = -(-nunit // parts) * parts
    ranked = jnp.argsort(-jnp.pad(cost, (0, padded - nunit), constant_values=-1.0)).astype(jnp.int32)
    # Neighbours in space stay neighbours in memory on each device.
    units = jnp.sort(ranked[_hands(padded, parts)], axis=1).reshape(-1)
    source, there = jnp.minimum(units, np.int32(nunit - 1)), units < nunit

    def take(x):
        """Rows or points of the dealt units, from an array over all of them."""
        return x.reshape(nunit, -1, *x.shape[1:])[source].reshape(-1, *x.shape[1:])

    def repeat(n):
        return jnp.repeat(there, n, total_repeat_length=padded * n)

    def lists_of(lists, f):
        mine = repeat(unit // lists.row)
        f = jnp.where(mine, take(f), 0.0).reshape(parts, -1)
        return RowLists(
            row=lists.row,
            capacity=lists.capacity,
            count=jnp.where(mine, take(lists.count), 0),
            order=_order(f, lists.order.shape[0] - lists.count.shape[0]).reshape(-1),
            shell=take(lists.shell),
            bound=take(lists.bound),
            weight_max=jnp.where(mine, take(lists.weight_max), np.float32(0)),
            overflow=lists.overflow,
        )

    dealt = [lists_of(lists, f) for lists, f in zip(kinds, functions, strict=True)]
    real = take(jnp.arange(layout.points.shape[0]) < layout.npoint) & repeat(unit)
    return dataclasses.replace(
        layout,
        points=take(layout.points),
        weights=jnp.where(real, take(layout.weights), 0.0),
        permutation=take(layout.permutation),
        density=dealt[0],
        potential=dealt[-1],
    ), real
