"""Exchange and correlation on the devices of this process, or of several; prints what it found as JSON.

`python xc_sharding_worker.py values|derivatives`, or `python xc_sharding_worker.py processes PORT COUNT INDEX`.
"""

import json
import sys

import jax
import numpy as np

import jaxqc
from jaxqc.systems import polyglycine
from jaxqc.xc import Grid, build_layout, functional, xc_energy
from jaxqc.xc import potential as one_device
from jaxqc.xc._grid import place
from jaxqc.xc._grid_template import grid_template
from jaxqc.xc._sharding import shard_layout, sharded_potential, sharded_step, sharded_xc_energy

jax.config.update("jax_numpy_dtype_promotion", "strict")
WATER = "O 0 0 0.1; H 0 0.75 -0.47; H 0 -0.75 -0.47"
FAR = "; O 3 0.2 0; H 3.4 0.9 0.5; H 3.5 -0.7 0.3"


def mesh_of(count, name="grid"):
    return jax.make_mesh((count,), (name,), devices=jax.devices()[:count])


def density_of(mol, nset):
    """Symmetric, of the size of a density, reproducible."""
    occupied = np.random.default_rng(1).normal(size=(nset, mol.nao, 4)) / mol.nao**0.5
    dm = occupied @ occupied.swapaxes(1, 2)
    return jax.numpy.asarray(dm[0] if nset == 1 else dm)


def difference(a, b):
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


def differences(results, expected):
    return [difference(a, b) for a, b in zip(results, expected, strict=True)]


def values():
    """Electrons, energy and potential against one device, for several numbers of devices."""
    mol = jaxqc.Molecule(WATER + FAR, basis="6-31g")
    layout = build_layout(mol, (grid := Grid(mol, level=0)).coords, grid.weights, row=96)
    out = {}
    for xc, nset, counts in (("r2scan", 2, (8,)), ("pbe", 1, (1, 2, 3, 8))):
        expected = one_device(mol, layout, xc, density := density_of(mol, nset))
        for count in counts:
            results = sharded_potential(mol, layout, xc, density, mesh_of(count))
            out[f"{xc} {count}"] = differences(results, expected)
    results = sharded_potential(mol, layout, "pbe", density, jax.make_mesh((4, 2), ("grid", "model")))
    out["one axis of two"] = differences(results, expected)
    both = shard_layout(mol, layout, jax.make_mesh((4, 2), ("a", "b")), axis=("a", "b"))
    out["both axes"] = differences(sharded_potential(mol, both, "pbe", density), expected)
    with jax.set_mesh(jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Explicit,))):
        inside = Grid(mol, level=0)
    expected = (grid.coords, grid.weights, grid.atom)
    out["grid in the context of a mesh"] = differences((inside.coords, inside.weights, inside.atom), expected)
    return out


def balance():
    """How many rows each of 8 devices has, and the largest and smallest number of products of orbitals."""
    mol = jaxqc.Molecule(polyglycine(4), basis="sto-3g")
    layout = build_layout(mol, (grid := Grid(mol, level=0)).coords, grid.weights, row=96)
    sharded = shard_layout(mol, layout, mesh_of(8))
    rows = [s.data.shape[0] for s in sharded.layout.density.count.addressable_shards]
    counts = np.asarray(sharded.layout.density.count).reshape(8, -1)
    work = (counts.astype(float) ** 2).sum(axis=1)
    contiguous = np.asarray(layout.density.count)
    contiguous = np.pad(contiguous, (0, -len(contiguous) % 8)).reshape(8, -1).astype(float)
    slices = (contiguous**2).sum(axis=1)
    points = np.asarray(sharded.layout.permutation)[np.asarray(sharded.real)]
    return {
        "rows": rows,
        "work": [work.min(), work.max()],
        "slices": [slices.min(), slices.max()],
        "every point once": bool(np.array_equal(np.sort(points), np.arange(grid.size))),
        "order": bool(np.all(np.sort(np.asarray(sharded.layout.density.order).reshape(8, -1)) == np.arange(rows[0]))),
    }


def derivatives():
    """Derivatives over 4 devices against those on one."""
    mol = jaxqc.Molecule(WATER, basis="sto-3g")
    mesh = mesh_of(4)
    template = grid_template(mol, 0)
    grid = place(template, mol.coords)
    layout = build_layout(mol, grid.coords, grid.weights, row=96)
    sharded = shard_layout(mol, layout, mesh)
    density, direction = density_of(mol, 1), density_of(mol, 2)[1]

    def scaled(factor):
        """A function of the user's, which closes over a number with respect to which it is differentiated."""
        return functional(lambda features: -factor * features.rho.sum(0) ** (4 / 3))

    def gradients(energy, lists):
        """With respect to density, coordinates (lists made there, or kept) and a number inside of the functional."""

        def at(density, coords, factor):
            grid = place(template, coords)
            moved = mol.with_coords(coords)
            return energy(moved, lists(moved, grid), scaled(factor), density)[1]

        return jax.jit(jax.grad(at, (0, 1, 2)))(density, mol.coords, 0.7)

    def rebuilt(mol, grid):
        return build_layout(mol, grid.coords, grid.weights, row=96)

    expected = gradients(xc_energy, rebuilt)
    made = gradients(sharded_xc_energy, lambda m, g: shard_layout(m, rebuilt(m, g), mesh))
    kept = gradients(sharded_xc_energy, lambda m, g: sharded.moved(g.coords, g.weights))
    xc = functional("svwn")

    def one(density):
        return xc_energy(mol, layout, xc, density)[1]

    def many(density):
        return sharded_step(mol, sharded, density, xc)[2]

    potential, kernel = jax.jvp(jax.jit(jax.grad(one)), (density,), (direction,))
    forward = jax.jvp(jax.jit(many), (density,), (direction,))
    reverse = jax.jit(jax.grad(lambda d: jax.numpy.vdot(many(d), direction)))(density)
    return {
        **dict(zip(("density", "coordinates", "number"), differences(made, expected), strict=True)),
        **dict(zip(("density, kept", "coordinates, kept"), differences(kept[:2], expected[:2]), strict=True)),
        "step": difference(forward[0], potential),
        "kernel": difference(forward[1], kernel),
        "kernel, reverse": difference(reverse, kernel),
    }


def processes(port, count, index):
    """The same over the devices of several processes, which talk to each other."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    mol = jaxqc.Molecule(WATER, basis="sto-3g")
    grid = Grid(mol, level=0)
    density = density_of(mol, 1)
    mesh = jax.make_mesh((jax.device_count(),), ("grid",))
    layout = build_layout(mol, grid.coords, grid.weights)
    results = sharded_potential(mol, layout, "pbe", density, mesh)
    found = {
        "devices": [jax.local_device_count(), jax.device_count()],
        "pbe": differences(results, one_device(mol, layout, "pbe", density)),
        "energy": float(results[1]),
    }
    jax.distributed.shutdown()
    return found


if __name__ == "__main__":
    print("RESULT " + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
