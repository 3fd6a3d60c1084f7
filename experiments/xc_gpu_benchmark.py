"""Times one exchange-correlation step on an NVIDIA GPU, stage by stage, and checks it.

    python experiments/xc_gpu_benchmark.py water.xyz:def2-svp chain.xyz:def2-tzvp [--xc b3lyp] [--level 5]

Densities are idempotent, from PySCF's Hueckel guess, or, with --density DIR, read from DIR/NAME.npz (array C of
occupied orbitals), where NAME is given as NAME=FILE:BASIS.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxqc
from jaxqc._bound_functional import bind
from jaxqc.xc import Grid, build_layout, density_features, functional, xc_energy
from jaxqc.xc._density import potential_matrix
from jaxqc.xc._grid import place
from jaxqc.xc._potential import _compiled


def seconds(function, *arguments, repeat=10):
    """Median over 3 of the mean time of calls enqueued one after the other, and the first call."""
    begin = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    first = time.perf_counter() - begin
    jax.block_until_ready(function(*arguments))
    times, host = [], []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(repeat):
            out = function(*arguments)
        host.append((time.perf_counter() - begin) / repeat)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - begin) / repeat)
    return float(np.median(times)), first, float(np.median(host))


def kernels(title, function, *arguments):
    """Prints the time of each kernel in one call of a compiled function, as JAX's profiler sees it."""
    jax.block_until_ready(function(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(function(*arguments))
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
    lines = [line for plane in planes if "GPU" in plane.name for line in plane.lines if line.name.startswith("Stream")]
    times = {}
    for event in (event for line in lines for event in line.events):
        times.setdefault(event.name, []).append(event.duration_ns / 1e6)
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:12]:
        print(f"{title:10} {sum(each):8.3f} ms  {name[:50]:50} {' '.join(f'{t:.2f}' for t in each[:8])}", flush=True)


def orbitals(mol, path):
    """Occupied orbitals of an idempotent density."""
    if path is not None and path.is_file():
        return np.load(path)["C"]
    from pyscf.scf import hf

    mole = mol.to_pyscf()
    energies, coefficients = hf._init_guess_huckel_orbitals(mole)[:2]
    c = coefficients[:, np.argsort(energies)[: mol.nelec // 2]]
    w, u = np.linalg.eigh(c.T @ mole.intor("int1e_ovlp") @ c)
    return c @ (u / np.sqrt(w)) @ u.T


def compiled_step(xc):
    """One step of a functional as a function of molecule, layout and density."""
    bound, parameters = bind(xc)
    return lambda mol, layout, density: _compiled(mol, layout, density, parameters, bound=bound)


def gradient(mol, grid, density, xc, options):
    """Time of the derivative of the energy with respect to the nuclei, through orbitals, points and weights."""
    layout = build_layout(mol, grid.coords, grid.weights, epsilon=options.epsilon)

    def energy(coords, layout, density):
        moved = place(grid.template, coords, options.partition, index=grid.index)
        return xc_energy(mol.with_coords(coords), layout.moved(moved.coords, moved.weights), xc, density)[1]

    derivative = jax.jit(jax.grad(energy))
    force = derivative(mol.coords, layout, density)
    net = float(jnp.max(jnp.abs(jnp.sum(force, axis=0))))
    assert net < 1e-9, f"the net force is {net}, but every part of the derivative does not change when all atoms move"
    if options.kernels:
        kernels("gradient", derivative, mol.coords, layout, density)
    return 1e3 * seconds(derivative, mol.coords, layout, density, repeat=3)[0]


def run(name, file, basis, options):
    """All figures of one molecule."""
    mol = jaxqc.Molecule(file, basis=basis)
    path = Path(options.density) / f"{name}.npz" if options.density else None
    c = orbitals(mol, path)
    density = jnp.asarray(2.0 * c @ c.T)
    begin = time.perf_counter()
    grid = jax.block_until_ready(Grid(mol, level=options.level, partition=options.partition))
    row = {
        "name": name,
        "natm": mol.natm,
        "nao": mol.nao,
        "points": int(grid.coords.shape[0]),
        "grid_s": time.perf_counter() - begin,
    }
    layout = build_layout(mol, grid.coords, grid.weights, epsilon=options.epsilon)
    row["capacity"] = [layout.density.capacity, layout.potential.capacity]
    row["shells"] = [float(jnp.mean(x.count)) for x in (layout.density, layout.potential)]
    row["functions_first"] = [
        np.asarray(x.order[x.count.shape[0] :])[[0, 12, 20, 24, 28, 32, 44, 52, 72, 80]].tolist()
        for x in (layout.density, layout.potential)
    ]
    capacities = {"density": layout.density.capacity, "potential": layout.potential.capacity}

    def relist(mol, points, weights):
        from jaxqc.xc._cells import _build, shells_of

        shells, cart = shells_of(mol, None)
        d = _build(shells, points, weights, cart, layout.density.row, options.epsilon, capacities["density"])
        v = _build(shells, points, weights, cart, layout.potential.row, options.epsilon, capacities["potential"])
        return d.arrays, v.arrays

    row["layout_ms"] = 1e3 * seconds(jax.jit(relist), mol, layout.points, layout.weights, repeat=3)[0]
    xc = functional(options.xc)
    if path is not None and path.is_file() and "pts" in np.load(path):
        data = np.load(path)
        few = build_layout(mol, jnp.asarray(data["pts"]), jnp.ones(len(data["pts"])), epsilon=0.0, ordered=False)
        got = few.to_grid(density_features(mol, few, density[None], "mgga"))[0]
        row["error"] = np.abs(np.asarray(got) - data["ref"]).max(1).tolist()
    rho = jax.jit(lambda layout, d: density_features(mol, layout, d, "gga"))
    t, first, _ = seconds(rho, layout, density[None])
    row["rho_ms"], row["rho_first_s"] = 1e3 * t, first
    features = rho(layout, density[None])
    row["nelec"], row["electrons"] = float(jnp.vdot(features[0, 0], layout.weights)), mol.nelec
    cotangent = features * layout.weights
    pot = jax.jit(lambda layout, c: potential_matrix(mol, layout, c))
    row["v_ms"] = 1e3 * seconds(pot, layout, cotangent)[0]
    lhs, rhs = jnp.vdot(pot(layout, cotangent)[0], density), jnp.vdot(cotangent, features)
    row["adjoint"] = float(abs(lhs / rhs - 1.0))
    step = compiled_step(xc)
    t, first, host = seconds(step, mol, layout, density)
    row["step_ms"], row["step_first_s"], row["host_ms"] = 1e3 * t, first, 1e3 * host
    row["exc"] = float(step(mol, layout, density)[1])
    if options.kernels:
        kernels("step", step, mol, layout, density)
    if options.gradient:
        row["gradient_ms"] = gradient(mol, grid, density, xc, options)
    if options.more:
        half = jnp.stack([density, density]) / 2
        row["uks_step_ms"] = 1e3 * seconds(step, mol, layout, half)[0]
        tpss = compiled_step(functional("tpss"))
        row["mgga_step_ms"] = 1e3 * seconds(tpss, mol, layout, density)[0]
        if options.kernels:
            kernels("UKS step", step, mol, layout, half)
            kernels("TPSS step", tpss, mol, layout, density)
        exact = build_layout(mol, grid.coords, grid.weights, epsilon=0.0) if mol.nao < 600 else None
        if exact is not None:
            n0, e0, v0 = step(mol, exact, density)
            n1, e1, v1 = step(mol, layout, density)
            row["screening"] = [float(n1 - n0), float(e1 - e0), float(jnp.max(jnp.abs(v1 - v0)))]
    print(json.dumps(row), flush=True)


def main():
    """Reads the arguments and runs each molecule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+")
    parser.add_argument("--xc", default="b3lyp")
    parser.add_argument("--level", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1e-12)
    parser.add_argument("--partition", default="becke")
    parser.add_argument("--density")
    parser.add_argument("--gradient", action="store_true", help="with grid response")
    parser.add_argument("--more", action="store_true", help="unrestricted, meta-GGA and screening errors")
    parser.add_argument("--kernels", action="store_true", help="times of the kernels of each call, by JAX's profiler")
    options = parser.parse_args()
    for system in options.systems:
        name, _, rest = system.rpartition("=")
        file, _, basis = rest.rpartition(":")
        run(name or Path(file).stem, file, basis, options)


if __name__ == "__main__":
    main()
