"""Whole calculations shared by the devices of this process, or of several; prints what it found as JSON.

`python scf_mesh_worker.py devices`, or `python scf_mesh_worker.py processes PORT COUNT INDEX`.
"""

import json
import sys

import jax
import numpy as np

import jaxqc

jax.config.update("jax_numpy_dtype_promotion", "strict")
WATER = "O 0 0 0.1; H 0 0.75 -0.47; H 0 -0.75 -0.47"


def matrices(mesh):
    """J and K of general densities against one device; and derivatives with respect to the centres and the density."""
    mol = jaxqc.Molecule(WATER, basis="6-31g*")
    density = jax.numpy.asarray(np.random.default_rng(0).normal(size=(2, mol.nao, mol.nao)))

    def norm(coords, density, devices):
        moved = mol.with_coords(coords)
        built = jaxqc.integrals.jk(moved, density, omega=0.3, mesh=devices)
        return sum((jax.numpy.sum(x * x) for x in jax.tree.leaves(built)), jax.numpy.zeros(()))

    one = jaxqc.integrals.jk(mol, density), jax.grad(norm, (0, 1))(mol.coords, density, None)
    many = jaxqc.integrals.jk(mol, density, mesh=mesh), jax.grad(norm, (0, 1))(mol.coords, density, mesh)
    parts = zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True)
    return [float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(a))) for a, b in parts]


def calculation(mesh, **options):
    """Energy and gradient of a calculation."""
    charge = options.pop("charge", 0)
    mol = jaxqc.Molecule(WATER, basis="sto-3g", charge=charge, spin=charge)
    result = jaxqc.scf(mol, mesh=mesh, **options)
    return [float(result.energy), np.asarray(jaxqc.gradient(result)).tolist()]


def main():
    kind, *rest = sys.argv[1:]
    if kind == "processes":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        port, count, index = rest
        jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    found = {"devices": [jax.local_device_count(), jax.device_count()], "rhf": calculation(mesh)}
    if kind == "devices":
        found["matrices"] = matrices(mesh)
        found["uks"] = calculation(mesh, xc="pbe0", grid=0, charge=1)
        with jax.set_mesh(mesh):  # in the context of a mesh whose axes are of the type Explicit
            mol = jaxqc.Molecule(WATER, basis="sto-3g")
            found["explicit"] = float(jaxqc.energy(mol, xc="pbe", grid=0, mesh=mesh))
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
