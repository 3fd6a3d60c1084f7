"""Runs small cases of every kind of CUDA kernel under NVIDIA's compute-sanitizer.

    python experiments/gpu_sanitizer.py [--tools memcheck racecheck] [--limit SECONDS] [--only NAME ...]

Each case runs in processes of its own: first alone, so that kernels are compiled and tested, then under each tool. Each
array has memory of its own, so that memcheck sees where it ends. Reported: the summary of each tool, which kernels were
launched under all of them, and which of the sources were not. Ends with status 1 on an error.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxqc
from jaxqc import integrals, xc
from jaxqc.gpu._compile import source_folder
from jaxqc.integrals import _cuda_hermite, _cuda_memory
from jaxqc.integrals._shells import ShellList
from jaxqc.nnqs import Configurations, Hamiltonian, _cuda_coupling, all_configurations, couple, lowest, pt2
from jaxqc.nnqs._cuda_network import random_weights
from jaxqc.nnqs._network import Shape, log_probability
from jaxqc.xc._grid import place

SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
ATOMS = "O 0 0 0.1; H 0 0.7 -0.4"
CHARGE = -1
_BOUNDS = r"(?:__launch_bounds__\([^)]*\)\s+)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\(")


def molecule(basis="6-31g*", cart=False) -> jaxqc.Molecule:
    """Two atoms with s, p and d functions."""
    return jaxqc.Molecule(ATOMS, basis=basis, charge=CHARGE, cart=cart)


def f_shells() -> jaxqc.Molecule:
    """Two shells of f functions."""
    shells = [[0, [0.8, 1.0]], [3, [1.1, 1.0]]]
    return jaxqc.Molecule("He 0 0 0; He 0.2 0.5 0.7", basis={"He": shells})


def matrices(mol: jaxqc.Molecule, n: int, symmetric=True) -> jax.Array:
    """Random densities."""
    x = np.random.default_rng(n).normal(size=(n, mol.nao, mol.nao))
    return jnp.asarray(x + x.transpose(0, 2, 1) if symmetric else x)


def two_electron(mol: jaxqc.Molecule):
    """J and K of one and two densities, with and without symmetry, attenuated, one matrix alone."""
    yield integrals.jk(mol, matrices(mol, 1), symmetric=True)
    yield integrals.jk(mol, matrices(mol, 2), symmetric=True)
    yield integrals.jk(mol, matrices(mol, 1, False)[0], omega=0.3)
    yield integrals.jk(mol, matrices(mol, 1), exchange=False, symmetric=True)
    with mock.patch.dict(os.environ, JAXQC_DETERMINISTIC="1"):
        yield integrals.jk(mol, matrices(mol, 1), symmetric=True)


def short_range(mol: jaxqc.Molecule):
    """K of erfc(omega r)/r."""
    yield integrals.jk(mol, matrices(mol, 1), coulomb=False, omega=-0.3, symmetric=True)


def mixed(mol: jaxqc.Molecule):
    """J and K with small quartets in single precision: all that are below a large bound."""
    yield integrals.jk(mol, 1e-7 * matrices(mol, 1), symmetric=True, precision="mixed")


def from_quartets(mol: jaxqc.Molecule):
    """J from quartets, as where there is no room for Hermite Gaussians."""
    with mock.patch.object(_cuda_memory, "by_hermite", lambda *_: False):
        yield jax.jit(lambda d: integrals.jk(mol, d, symmetric=True))(matrices(mol, 1))


def gradient(mol: jaxqc.Molecule):
    """The gradient of a sum over J and K."""
    density = matrices(mol, 1)

    def energy(coords):
        j, k = integrals.jk(mol.with_coords(coords), density, symmetric=True)
        assert j is not None and k is not None
        return jnp.sum(density * (j - 0.5 * k))

    yield jax.grad(energy)(mol.coords)


def hermite(mol: jaxqc.Molecule):
    """J in Hermite Gaussians."""
    shells = ShellList.from_molecule(mol)
    plan = _cuda_hermite.plan(shells.ls, shells.nprims, mol.cart)
    pairs = _cuda_hermite.prepare(plan, shells.centers, shells.exponents, shells.coefficients)
    yield _cuda_hermite.coulomb(plan, pairs, matrices(mol, 1))
    yield _cuda_hermite.coulomb(plan, pairs, matrices(mol, 2))


def one_electron(mol: jaxqc.Molecule):
    """All one-electron integrals, and their derivatives."""
    weight = matrices(mol, 1)[0]
    for f in (integrals.overlap, integrals.kinetic, integrals.nuclear, integrals.dipole):
        yield f(mol)
        yield jax.grad(lambda x, f=f: jnp.sum(weight * f(mol.with_coords(x))))(mol.coords)


def partition():
    """Weights of a grid of six atoms, three of them in line, and their derivatives."""
    atoms = "O 0 0 0; H 0 0.76 0.59; H 0 -0.76 0.59; O 0 0 2.9; H 0 0 3.86; H 0.9 0 2.6"
    mol = jaxqc.Molecule(atoms, basis="sto-3g")
    for name in ("becke", "ssf"):
        template = xc.Grid(mol, level=(8, 14), partition=name).template

        def total(coords, template=template, name=name):
            weights = place(template, coords, name).weights
            return jnp.sum(jnp.sin(jnp.arange(weights.size)) * weights)

        yield jax.jit(jax.value_and_grad(total))(mol.coords)


def exchange_correlation(mol: jaxqc.Molecule, name: str, sets: int):
    """The grid, lists, features and potential of a functional, and the gradient of its energy."""
    partition = "becke" if sets == 1 else "ssf"
    template = xc.Grid(mol, level=(8, 14), partition=partition).template
    grid = place(template, mol.coords, partition)
    layout = xc.build_layout(mol, grid.coords, grid.weights)
    density = matrices(mol, sets)
    density = density if sets == 2 else density[0]
    functional = xc.functional(name)

    def energy(coords):
        moved = place(template, coords, partition)
        return xc.xc_energy(mol.with_coords(coords), layout.moved(moved.coords, moved.weights), functional, density)[1]

    yield xc.potential(mol, layout, functional, density)
    yield jax.grad(energy)(mol.coords)
    with mock.patch.dict(os.environ, JAXQC_DETERMINISTIC="1"):
        yield xc.potential(mol, layout, functional, density)


def selected_ci(norb: int, nalpha: int, nbeta: int, offset: int = 0):
    """Couplings, a sparse matrix and its lowest state, and perturbation theory."""
    rng = np.random.default_rng(norb)
    one, two = rng.normal(size=(norb,) * 2), 0.05 * rng.normal(size=(norb,) * 4)
    two = two + two.transpose(1, 0, 2, 3)
    two = two + two.transpose(0, 1, 3, 2)
    ham = Hamiltonian.from_integrals(one + one.T, two + two.transpose(2, 3, 0, 1), nalpha, nbeta, 0.0)
    keys = np.asarray(all_configurations(norb, nalpha, nbeta).keys)[offset::5]
    keys = keys[np.lexsort(keys.T[::-1])]
    some = Configurations(jnp.asarray(keys), jnp.int32(len(keys)))
    yield couple(ham, some, epsilon=1e-3)
    state = lowest(ham, some)
    yield state.energies
    yield pt2(ham, some, state.vectors[0], state.energies[0] - 100.0)


def network(inference: str):
    """Probabilities of a small transformer."""
    weights = jax.tree.map(jnp.asarray, random_weights(7, 2))
    orbitals = np.random.default_rng(0).permuted(np.tile(np.arange(7), (40, 2, 1)), axis=-1)
    yield log_probability(weights, jnp.asarray(orbitals < 3), Shape(7, 3, 3, 32, 2, 4, "float32", inference))


def sums_of_rows():
    """Sums of unequal runs of terms."""
    start = np.array([0, 3, 3, 40, 41, 300], np.int32)
    yield _cuda_coupling.row_sums(jnp.asarray(start), jnp.arange(300.0))


CASES = {
    "J and K, s to d": lambda: two_electron(molecule()),
    "J and K, Cartesian": lambda: two_electron(molecule("sto-3g", cart=True)),
    "J and K, f": lambda: two_electron(f_shells()),
    "K, short range": lambda: short_range(molecule()),
    "J and K, mixed precision": lambda: mixed(molecule()),
    "J from quartets": lambda: from_quartets(molecule()),
    "gradient, s to d": lambda: gradient(molecule()),
    "gradient, f": lambda: gradient(f_shells()),
    "Hermite": lambda: hermite(molecule()),
    "one-electron": lambda: one_electron(molecule()),
    "partition": partition,
    "LDA": lambda: exchange_correlation(molecule(), "lda,vwn", 1),
    "GGA": lambda: exchange_correlation(molecule(), "pbe", 1),
    "meta-GGA": lambda: exchange_correlation(molecule(), "tpss", 1),
    "meta-GGA, two spins": lambda: exchange_correlation(molecule(), "tpss", 2),
    "selected CI": lambda: selected_ci(6, 3, 2),
    "selected CI, two words": lambda: selected_ci(40, 1, 1),
    "sums of rows": sums_of_rows,
    "network": lambda: network("float32"),
    "network in halves": lambda: network("float16"),
}


def child(case: str) -> None:
    """Runs a case in this process and prints the kernels that it launched."""
    launched: set[str] = set()
    made = jax.ffi.ffi_call

    def recorded(*arguments, **options):
        function = made(*arguments, **options)

        def call(*operands, **attributes):
            launched.update(name.partition("/")[2] for name in str(attributes.get("kernels", "")).split(";"))
            return function(*operands, **attributes)

        return call

    with mock.patch.object(jax.ffi, "ffi_call", recorded):
        for result in CASES[case]():
            jax.block_until_ready(result)
    print("launched:", *sorted(launched - {""}), flush=True)


def checked(case: str, tools: dict[str, list[str]], limit: float) -> tuple[bool, set[str]]:
    """Runs a case alone, then under the tools at the same time; whether all is well, and what it launched."""
    command = [sys.executable, __file__, "--child", case]
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    begin = time.perf_counter()

    def finished(name, process):
        try:
            text = process.communicate(timeout=max(1.0, limit - (time.perf_counter() - begin)))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool and what it runs
            text = process.communicate()[0] + "\nkilled: out of time"
        lines = text.splitlines()
        took = time.perf_counter() - begin
        shown = [x for x in lines if "SUMMARY" in x] if process.returncode == 0 else lines[-40:]
        print(f"{case}, {name}: status {process.returncode}, {took:.0f} s", *shown, sep="\n  ", flush=True)
        return process.returncode == 0, {k for x in lines if x.startswith("launched: ") for k in x.split()[1:]}

    def started(prefix):
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(prefix + command, env=environment, start_new_session=True, **pipes)

    done = [finished("alone", started([]))]
    if done[0][0]:
        running = {name: started(prefix) for name, prefix in tools.items()}
        done += [finished(*item) for item in running.items()]
    return all(ok for ok, _ in done), set.intersection(*(found for _, found in done))


def main():
    """Reads the arguments; runs the cases alone and under each tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="*", default=["memcheck", "racecheck"])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of each case")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    path = next((found for name in SANITIZERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit("compute-sanitizer was not found; it comes with the CUDA toolkit.")
    tools = {name: [path, "--tool", name, "--error-exitcode", "9", "--print-limit", "10"] for name in options.tools}
    with concurrent.futures.ThreadPoolExecutor(len(options.only)) as pool:
        found = list(pool.map(lambda case: checked(case, tools, options.limit), options.only))
    every = {k for source in source_folder().glob("*.cu") for k in _KERNEL.findall(source.read_text())}
    launched = set.union(*(kernels for _, kernels in found))
    print("launched under all tools:", *sorted(launched), "\nnot launched:", *sorted(every - launched), flush=True)
    sys.exit(not all(ok for ok, _ in found))


if __name__ == "__main__":
    main()
