"""The figures of the MakoXC paper on this machine: `python experiments/xc_figures.py [--parts scaling ...] [--quick]`.

One exchange-correlation step is number of electrons, energy and potential matrix from a density matrix; grid and lists
are made before. Parts, each a table and a plot:

- `scaling` (figure 6): time against size for polyglycine, beside a linear and a cubic line, and the exponent of 100 to
  800 atoms. Densities are superpositions of atoms: times depend on no more than the largest element of the density.
- `speedup` (figure 5): over the dense baseline (DenseXC: matrix of orbitals, matrix products, no screening, in plain
  JAX) and over PySCF's `nr_rks` on the same points with the same orbitals (a Hueckel guess), in one process.
- `accuracy` (figure 7): exchange-correlation energy at each grid level against PySCF at level 7, for one density.
- `breakdown` (figure 8): the dense baseline; the kernels without screening; lists by values; lists by values and
  weights; and products cut with sorted bounds.
- `activation` (figure 9): making the lists against the exchange-correlation steps of an SCF of so many cycles.
- `kernels` (figure 10): density, functional and potential apart, with and without the cuts.

Results are kept in `experiments/xc_figures.json`, so that parts can run one by one, and shown in `xc_figures.md`. Wall
and CPU times are the least of several; on a machine with other work compare CPU times. With an NVIDIA GPU the same
command measures it (wall times; no PySCF); give it an `--output` of its own.
"""

import argparse
import datetime
import functools
import json
import os
import platform
from pathlib import Path

HERE = Path(__file__).resolve().parent
CYCLES = 10


def show(part, row):
    facts = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print(f"{part}: {facts}", flush=True)


def systems_of(options, quick, full):
    return options.systems or (quick if options.quick else full)


def size(mol, grid):
    return {"atoms": mol.natm, "functions": mol.nao, "points": int(grid.size)}


def scaling(options):
    import xc_measure as m

    residues = (2, 4, 8) if options.quick else (2, 4, 7, 14, 28, 57, 114)
    for n in residues:
        mol = m.molecule(f"glycine {n}", options.basis)
        if mol.natm > options.atoms:
            continue
        grid = m.grid_of(mol, options.level_scaling)
        density = m.atomic_density(mol)
        layout = m.layout_of(mol, grid)
        _, ours = m.timed(m.step(mol, layout, options.xc, density), repeat=options.repeat)
        row = {"system": f"glycine {n}", **size(mol, grid), "wall": ours["wall"], "cpu": ours["cpu"]}
        if mol.natm <= options.dense_atoms:
            _, dense = m.timed(m.step(mol, m.dense_layout(mol, grid), options.xc, density), repeat=1)
            row.update(dense_wall=dense["wall"], dense_cpu=dense["cpu"])
        yield row


def speedup(options):
    import jax
    import numpy as np
    import xc_measure as m

    for what in systems_of(options, ("water 5", "glycine 4"), SPEEDUP):
        mol = m.molecule(what, options.basis)
        grid = m.grid_of(mol, options.level)
        mole = mol.to_pyscf()
        c = m.orbitals(mole)
        density = 2.0 * c @ c.T
        layout = m.layout_of(mol, grid)
        row = {"system": what, **size(mol, grid)}
        (_, energy, vxc), ours = m.timed(m.step(mol, layout, options.xc, density), repeat=options.repeat)
        row.update(wall=ours["wall"], cpu=ours["cpu"])
        if mol.natm * mol.nao**2 <= options.dense:
            ((exact, _), _), dense = m.timed(m.unfused_step(mol, grid, options.xc, density), repeat=1, warm=False)
            row.update(dense_wall=dense["wall"], dense_cpu=dense["cpu"], error=float(abs(energy - exact)) / mol.natm)
        if jax.default_backend() == "cpu":
            (_, other, vother), theirs = m.timed(m.pyscf_step(mole, grid, options.xc, c), repeat=1, warm=False)
            row.update(pyscf_wall=theirs["wall"], pyscf_cpu=theirs["cpu"])
            row.update(difference=float(abs(energy - other)), vdifference=float(np.max(np.abs(vxc - vother))))
        yield row


SPEEDUP = ("water 5", "vitamin C", "water 20", "boron nitride 3", "glycine 10", "glycine 30")


def accuracy(options):
    import xc_measure as m
    from pyscf import dft

    for what in systems_of(options, ("water 3",), ("water 5", "glycine 2", "boron nitride 1")):
        mol = m.molecule(what, options.basis)
        mole = mol.to_pyscf()
        c = m.orbitals(mole)

        def theirs(level, mole=mole, c=c):
            mf = dft.RKS(mole, xc=options.xc)
            mf.grids.level = level
            mf.grids.build()
            density = 2.0 * c @ c.T
            return float(mf._numint.nr_rks(mole, mf.grids, options.xc, density)[1])

        best = theirs(7)
        for level in range(0, 5 if options.quick else 8):
            grid = m.grid_of(mol, level)
            energy = float(m.step(mol, m.layout_of(mol, grid), options.xc, 2.0 * c @ c.T)()[1])
            reference = best if level == 7 else theirs(level)
            yield {
                "system": what,
                "level": level,
                "points": int(grid.size),
                "error": abs(energy - best) / mol.natm,
                "pyscf_error": abs(reference - best) / mol.natm,
                "difference": abs(energy - reference),
            }


def breakdown(options):
    import xc_measure as m

    for what in systems_of(options, ("glycine 4",), ("water 20", "boron nitride 3", "glycine 10")):
        mol = m.molecule(what, options.basis)
        grid = m.grid_of(mol, options.level)
        c = m.orbitals(mol.to_pyscf())
        density = 2.0 * c @ c.T
        stages = {
            "DenseXC": None,
            "fused": m.dense_layout(mol, grid),
            "values": m.value_filter(mol, grid),
            "weights": m.without_cuts(m.layout_of(mol, grid)),
            "cuts": m.layout_of(mol, grid),
        }
        exact = None
        for stage, layout in stages.items():
            if layout is None:
                function = m.unfused_step(mol, grid, options.xc, density)
            else:
                function = m.step(mol, layout, options.xc, density)
            slow = stage in ("DenseXC", "fused")
            result, time = m.timed(function, repeat=1 if slow else options.repeat, warm=stage != "DenseXC")
            energy = float(result[0][0] if layout is None else result[1])
            exact = energy if exact is None else exact
            per_row = mol.nao if layout is None else m.functions_per_point(layout, mol)
            error = abs(energy - exact) / mol.natm
            yield {"system": what, **size(mol, grid), "stage": stage, "listed": per_row, **time, "error": error}


def activation(options):
    import jax
    import xc_measure as m

    for what in systems_of(options, ("water 5", "glycine 4"), ACTIVATION):
        mol = m.molecule(what, options.basis)
        grid = m.grid_of(mol, options.level_scaling)
        density = m.atomic_density(mol)
        layout = m.layout_of(mol, grid)
        _, one = m.timed(m.step(mol, layout, options.xc, density), repeat=options.repeat)
        build = functools.partial(m.build_layout, mol, capacity=layout.density.capacity)
        _, lists = m.timed(lambda build=build, grid=grid: jax.tree.leaves(build(grid.coords, grid.weights)), repeat=3)
        share = {k: lists[k] / (options.cycles * one[k] + lists[k]) for k in one}
        row = {"system": what, **size(mol, grid), "step_wall": one["wall"], "step_cpu": one["cpu"]}
        yield {
            **row,
            "lists_wall": lists["wall"],
            "lists_cpu": lists["cpu"],
            "wall": share["wall"],
            "cpu": share["cpu"],
        }


ACTIVATION = ("water 5", "water 20", "boron nitride 2", "boron nitride 4", "glycine 28", "glycine 57")


def kernels(options):
    import jax
    import jax.numpy as jnp
    import xc_measure as m

    from jaxqc.xc import density_features, functional
    from jaxqc.xc._density import potential_matrix
    from jaxqc.xc._potential import point_features

    for what in systems_of(options, ("glycine 4",), ("water 20", "glycine 10")):
        mol = m.molecule(what, options.basis)
        grid = m.grid_of(mol, options.level)
        c = m.orbitals(mol.to_pyscf())
        density = jnp.asarray(2.0 * c @ c.T)[None]
        layout = m.layout_of(mol, grid)
        for name in ("svwn", "pbe", "r2scan"):
            xc = functional(name)
            row = {"system": what, **size(mol, grid), "functional": name, "kind": xc.kind}

            def f(features, layout, xc=xc):
                return jnp.dot(layout.weights, xc.energy_density(point_features(features, xc.kind)))

            for label, lists in (("", layout), ("_uncut", m.without_cuts(layout))):
                make = jax.jit(functools.partial(density_features, mol, kind=xc.kind))
                features, time = m.timed(make, lists, density, repeat=options.repeat)
                row[f"density{label}"] = time["cpu"] if options.cpu else time["wall"]
                cotangent, time = m.timed(jax.jit(jax.grad(f)), features, lists, repeat=options.repeat)
                row["functional_time"] = time["cpu"] if options.cpu else time["wall"]
                back = jax.jit(functools.partial(potential_matrix, mol))
                _, time = m.timed(back, lists, cotangent, repeat=options.repeat)
                row[f"potential{label}"] = time["cpu"] if options.cpu else time["wall"]
            yield row


PARTS = {f.__name__: f for f in (scaling, speedup, accuracy, breakdown, activation, kernels)}


def describe(options):
    import jax

    device = jax.devices()[0].device_kind if jax.default_backend() != "cpu" else None
    if device is None:
        with open("/proc/cpuinfo") as file:
            device = next((x.split(":")[1].strip() for x in file if x.startswith("model name")), platform.processor())
        device = f"{device}, {options.threads} thread{'s' * (options.threads > 1)}"
    return {
        "device": device,
        "on_cpu": options.cpu,
        "date": str(datetime.date.today()),
        "basis": options.basis,
        "xc": options.xc,
        "level": options.level,
        "level_scaling": options.level_scaling,
        "cycles": options.cycles,
        "load": round(os.getloadavg()[0], 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="small systems, written beside the full results")
    parser.add_argument("--systems", nargs="+", help='such as "water 10" "glycine 7"; for all parts but scaling')
    parser.add_argument("--threads", type=int, default=1, help="processors to use")
    parser.add_argument("--basis", default="def2-svp")
    parser.add_argument("--xc", default="b3lyp")
    parser.add_argument("--level", type=int, default=3, help="of the grid")
    parser.add_argument("--level-scaling", type=int, default=1, help="of the grid, in scaling and activation")
    parser.add_argument("--atoms", type=int, default=1000, help="largest system of scaling")
    parser.add_argument("--dense-atoms", type=int, default=60, help="largest system of scaling without screening")
    parser.add_argument("--dense", type=float, default=3e7, help="largest atoms x functions^2 of the dense baseline")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="SCF cycles that share the lists")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "xc_figures.json")
    parser.add_argument("--report-only", action="store_true", help="write the page again, measure nothing")
    options = parser.parse_args()
    if options.quick and options.output == HERE / "xc_figures.json":
        options.output = HERE / "xc_figures_quick.json"
    # Before anything that counts processors is imported.
    os.environ.update(OMP_NUM_THREADS=str(options.threads), JAXQC_NUM_THREADS=str(options.threads))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])
    import jax

    options.cpu = jax.default_backend() == "cpu"
    found = json.loads(options.output.read_text()) if options.output.is_file() else {}
    for part in [] if options.report_only else options.parts:
        rows = []
        for row in PARTS[part](options):
            show(part, row)
            rows.append(row)
            found[part] = {"settings": describe(options), "rows": rows}
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    import xc_report

    xc_report.write(found, options.output.with_suffix(".md"))
    print(f"written: {options.output.with_suffix('.md')}")


if __name__ == "__main__":
    main()
