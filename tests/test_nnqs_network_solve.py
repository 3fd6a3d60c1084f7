"""Whole runs of neural selected CI: accuracy against full CI, restarts, what users hand in, the shell command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import fci

import jaxqc
from jaxqc.nnqs import Hamiltonian, all_configurations, unpack

pytest.importorskip("flax")
optax = pytest.importorskip("optax")
pytest.importorskip("orbax.checkpoint")

from jaxqc.nnqs._ansatz import Transformer  # noqa: E402
from jaxqc.nnqs._energy import energy, estimate, rayleigh_quotient  # noqa: E402
from jaxqc.nnqs._solve import solve  # noqa: E402
from jaxqc.nnqs._solve_expand import connected_links  # noqa: E402
from jaxqc.nnqs._train_sr import Spring  # noqa: E402

# Geometries, in Angstrom, and full CI energies of the literature on neural quantum states (Barrett, Malyshev and
# Lvovsky, doi:10.1038/s42256-022-00461-z), computed again with PySCF.
SYSTEMS = {
    "LiH": ("Li 0 0 0; H 0 0 1.548", -7.882762),
    "H2O": ("O 0 0 0; H 0.2774 0.8929 0.2544; H 0.6068 -0.2383 -0.7169", -75.015530),
    "N2": ("N 0 0 0; N 0 0 1.0977", -107.652829),
    "C2": ("C 0 0 0; C 0 0 1.26", -74.690782),
    "LiF": ("Li 0 0 0; F 0 0 1.0", -105.166172),
    "LiCl": ("Li 0 0 0; Cl 0 0 1.0", -460.849618),
    "Li2O": ("O 2.866 -0.25 0; Li 3.732 0.25 0; Li 2 0.25 0", -87.892693),
}
CHEMICAL_ACCURACY = 1.6e-3  # Hartree
TINY: dict[str, Any] = {"width": 8, "layers": 1, "heads": 2, "phase_layers": (8,), "real": True}


def molecule(name):
    atoms, exact = SYSTEMS[name]
    return Hamiltonian.from_molecule(jaxqc.Molecule(atoms, basis="sto-3g")), exact


def annealed(rate, steps):
    return optax.adamw(optax.warmup_cosine_decay_schedule(0.0, rate, 20, steps, rate / 100), b2=0.99)


def check_accuracy(out, exact):
    assert exact - 1e-6 <= out.e_ci <= out.energy + 1e-9 <= exact + CHEMICAL_ACCURACY
    assert abs(out.e_ci + out.e_pt2 - exact) < 1e-4
    assert abs(out.e_extrapolated - exact) < 1e-4
    assert abs(out.spin_square) < 1e-3
    assert out.steps <= 3000


def test_lithium_hydride_with_spring():
    ham, exact = molecule("LiH")
    module = Transformer(ham.norb, ham.nalpha, ham.nbeta, layers=2, phase_layers=(64,), real=True)
    out = solve(ham, module=module, optimizer=Spring(), steps=80, pretrain=40, target_size=40)
    check_accuracy(out, exact)


def test_water_with_adamw():
    ham, exact = molecule("H2O")
    module = Transformer(ham.norb, ham.nalpha, ham.nbeta, phase_layers=(256, 256), real=True)
    out = solve(ham, module=module, optimizer=annealed(3e-3, 400), steps=400, pretrain=150, target_size=100)
    check_accuracy(out, exact)


@pytest.mark.slow
def test_nitrogen():
    ham, exact = molecule("N2")
    module = Transformer(ham.norb, ham.nalpha, ham.nbeta, layers=2, phase_layers=(64,), real=True)
    out = solve(ham, module=module, optimizer=Spring(), steps=160, pretrain=60, target_size=250)
    check_accuracy(out, exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, size, damping, steps",
    [("C2", 700, 1e-3, 240), ("LiF", 480, 1e-3, 160), ("LiCl", 520, 1e-2, 160)],
)
def test_larger_molecules_with_spring(name, size, damping, steps):
    ham, exact = molecule(name)
    module = Transformer(ham.norb, ham.nalpha, ham.nbeta, layers=2, phase_layers=(64,), real=True)
    # The eigenvector of the whole set is learned before the energy is lowered.
    options: Any = {"pretrain": 20, "refresh": 20, "distill": 110 if damping > 5e-3 else 80, "steps": steps}
    out = solve(ham, module=module, optimizer=Spring(damping=damping), target_size=size, **options)
    check_accuracy(out, exact)


@pytest.mark.slow
def test_lithium_oxide_with_adamw():
    ham, exact = molecule("Li2O")
    module = Transformer(ham.norb, ham.nalpha, ham.nbeta, layers=1, phase_layers=(128, 128), spin_flip=True)
    options: Any = {"pretrain": 10, "refresh": 10, "distill": 700, "growth": 3, "target_size": 1600, "steps": 900}
    out = solve(ham, module=module, optimizer=annealed(1e-2, 900), **options)
    check_accuracy(out, exact)


def chain(natoms):
    """A chain of hydrogen atoms with random, symmetric changes of its integrals: no symmetry is left."""
    random = np.random.default_rng(natoms)
    atoms = "; ".join(f"H 0 0 {1.1 * k}" for k in range(natoms))
    ham = Hamiltonian.from_molecule(jaxqc.Molecule(atoms, basis="sto-3g"))
    noise = 0.02 * random.normal(size=ham.one.shape)
    return Hamiltonian.from_integrals(ham.one + noise + noise.T, ham.two, ham.nalpha, ham.nbeta, float(ham.constant))


def full_ci(ham):
    return (
        fci.direct_spin1.kernel(np.asarray(ham.one), np.asarray(ham.two), ham.norb, (ham.nalpha, ham.nbeta))[0]
        + float(ham.constant)
    )  # fmt: skip


def test_connected_energy_on_the_whole_space_is_the_projected_one():
    ham = chain(4)
    space = all_configurations(4, 2, 2)
    keys, links = connected_links(ham, space, 0.0, 1 << 20)
    assert int(jnp.sum(links.members)) == 36
    module = Transformer(4, 2, 2, width=8, layers=1, heads=2, phase_layers=(8,), dtype=jnp.float64)
    parameters = module.init(jax.random.key(3), unpack(space.keys, 4))
    n = keys.shape[0]
    found = jnp.where(jnp.arange(n) < 36, 0.0, -1e3), jnp.zeros(n)
    log_amplitude, phase = module.apply(parameters, unpack(space.keys, 4))
    psi = found[0].at[:36].set(log_amplitude), found[1].at[:36].set(phase)
    # The same with PySCF.
    number = np.exp(np.asarray(log_amplitude) + 1j * np.asarray(phase)).reshape(6, 6)
    strings = fci.cistring.make_strings(range(4), 2)
    assert [int(key) >> 4 for key in space.keys[::6, 0]] == list(strings)
    two = fci.direct_spin1.absorb_h1e(
        np.asarray(ham.one),
        np.asarray(ham.two),
        4,
        (2, 2),
        0.5,  # pyright: ignore[reportArgumentType]
    )
    image = sum(
        factor * fci.direct_spin1.contract_2e(two, np.ascontiguousarray(part), 4, (2, 2))
        for factor, part in ((1, np.real(number)), (1j, np.imag(number)))
    )
    expected = np.vdot(number, image).real / np.vdot(number, number).real + float(ham.constant)
    np.testing.assert_allclose(estimate(*psi, links).energy, expected, atol=1e-10)
    slopes = jax.grad(energy, argnums=(0, 1))(*psi, links)
    np.testing.assert_allclose(slopes, jax.grad(rayleigh_quotient, argnums=(0, 1))(*psi, links), atol=1e-10)


@pytest.mark.slow
def test_selection_by_amplitude_and_connected_energy():
    ham = chain(6)
    module = Transformer(6, 3, 3, **TINY)
    out = solve(
        ham, module=module, optimizer=optax.adam(1e-2), steps=60, target_size=400, growth=20, refresh=20,
        select="amplitude", energy="connected",
    )  # fmt: skip
    exact = full_ci(ham)
    assert int(out.configurations.count) == 400 and abs(out.energy - exact) < 0.5
    # Both are of the full space, of which the set has all.
    assert out.e_ci == pytest.approx(exact, abs=1e-8) and out.e_pt2 == 0


class Table:
    """A network that is none: a logarithm and a phase for each configuration of four orbitals."""

    def init(self, key, occupations):
        return {"size": jnp.zeros(256), "phase": jax.random.normal(key, (256,))}

    def apply(self, parameters, occupations):
        place = occupations.reshape(-1, 8).astype(jnp.int32) @ (2 ** jnp.arange(8, dtype=jnp.int32))
        return parameters["size"][place], parameters["phase"][place]


def test_other_networks_and_callbacks_are_taken():
    ham, seen = chain(4), []
    out = solve(ham, module=Table(), optimizer=optax.adam(0.1), steps=250, pretrain=60, callback=seen.append)
    assert out.e_ci == pytest.approx(full_ci(ham), abs=1e-9)
    assert abs(out.energy - out.e_ci) < CHEMICAL_ACCURACY and out.e_extrapolated == out.e_ci
    assert seen == out.history and [record["kind"] for record in (seen[0], seen[-1])] == ["set", "end"]


# Runs in processes of their own, of which the later ones load what the first has compiled.
SCRIPT = """
import jax, numpy as np, optax
from jaxqc.nnqs import Hamiltonian
from jaxqc.nnqs._ansatz import Transformer
from jaxqc.nnqs._solve import solve
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
options = dict(width=8, layers=1, heads=2, phase_layers=(8,), real=True)
def run(fcidump, folder, log, resume):
    ham = Hamiltonian.from_fcidump(fcidump)
    return solve(ham, module=Transformer(6, 3, 3, **options), optimizer=optax.adamw(3e-3), steps=120, refresh=40,
                 target_size=395, growth=2, pretrain=20, checkpoint=folder, checkpoint_every=10, log=log, resume=resume)
def write(out, path):
    numbers = [out.energy, out.e_pt2, out.steps]
    np.savez(path, numbers, out.configurations.keys, *jax.tree.leaves(out.parameters))
"""


def process(line):
    source = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, "-c", f"{SCRIPT}\n{line}"], env=environment)


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    fcidump, log, whole_log = (str(tmp_path / name) for name in ("h6.fcidump", "killed.jsonl", "whole.jsonl"))
    whole, killed = (str(tmp_path / name) for name in ("whole", "killed"))
    found = {name: str(tmp_path / f"{name}.npz") for name in ("whole", "resumed", "finished", "again")}
    chain(6).to_fcidump(fcidump)
    assert process(f"write(run({fcidump!r}, {whole!r}, {whole_log!r}, False), {found['whole']!r})").wait() == 0
    with process(f"run({fcidump!r}, {killed!r}, {log!r}, False)") as running:
        while running.poll() is None and (not Path(log).exists() or len(Path(log).read_text().splitlines()) < 7):
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    steps = sorted(int(path.name) for path in Path(killed).iterdir() if path.name.isdigit())
    assert 30 < steps[-1] < 120
    # The newest checkpoint is cut short, as by a machine that failed while it was written.
    damaged = [p for p in (Path(killed) / str(steps[-1]) / "arrays").rglob("*") if p.is_file()]
    for path in damaged:
        os.truncate(path, path.stat().st_size // 2)
    # A finished run resumes to its end. What ran before in a process does not matter.
    lines = (
        f"write(run({fcidump!r}, {killed!r}, {log!r}, True), {found['resumed']!r})",
        f"write(run({fcidump!r}, {whole!r}, None, True), {found['finished']!r})",
        f"write(run({fcidump!r}, {str(tmp_path / 'again')!r}, None, False), {found['again']!r})",
    )
    assert process("\n".join(lines)).wait() == 0
    arrays = {name: list(np.load(path).values()) for name, path in found.items()}
    assert arrays["whole"][0][2] == 120
    for name in ("resumed", "finished", "again"):
        for a, b in zip(arrays[name], arrays["whole"], strict=True):
            np.testing.assert_array_equal(a, b)
    logs = [[json.loads(line) for line in Path(path).read_text().splitlines()] for path in (log, whole_log)]
    without_time = [[{k: v for k, v in record.items() if k != "seconds"} for record in run] for run in logs]
    assert without_time[0] == without_time[1]
    # Another problem is not taken up.
    with pytest.raises(ValueError, match="is of another run"):
        solve(
            chain(6), module=Transformer(6, 3, 3, **TINY), optimizer=optax.adamw(3e-3), checkpoint=whole,
            resume=True,
        )  # fmt: skip


@pytest.mark.parametrize(
    "change, message",
    [
        ({"steps": -1}, "steps .* at least 0"),
        ({"target_size": 2.5}, "target_size .* whole number"),
        ({"energy": "local"}, "must be one of"),
        ({"select": "random"}, "must be one of"),
        ({"resume": True}, "directory to read"),
        ({"checkpoint_every": 0}, "checkpoint_every .* at least 1"),
        ({"memory": None}, "memory .* at least 16384"),
        ({"seed": 2**70}, "seed .* to 2.63 - 1"),
        ({"epsilon": float("nan")}, "epsilon .* not negative"),
        ({"epsilon": -1}, "epsilon .* not negative"),
        ({"tensorboard": ""}, "tensorboard .* names nothing"),
        ({"checkpoint": __file__}, "checkpoint .* give the name of a directory"),
        ({"log": "no/such/folder/log"}, "log .* there is no directory"),
        ({"module": Transformer(3, 1, 1, **TINY)}, "network for norb=3, but the Hamiltonian has norb=2"),
        ({"module": Transformer(2, 1, 0, **TINY)}, "network for nbeta=0, but the Hamiltonian has nbeta=1"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        solve(chain(2), **change)


class Vanishing:
    """A network for another number of electrons, which does not say so."""

    def init(self, random_key, occupations):
        del random_key
        return jnp.zeros(occupations.shape[2])

    def apply(self, parameters, occupations):
        return jnp.sum(occupations.astype(float) * parameters, axis=(1, 2)) - 1e30, jnp.zeros(len(occupations))


def test_a_network_that_vanishes_on_the_set_is_refused():
    with pytest.raises(ValueError, match="amplitude zero; it must be a network for 2 orbitals, 1 alpha and 1 beta"):
        solve(chain(2), module=Vanishing(), steps=10)


class OneOutput(Vanishing):
    def apply(self, parameters, occupations):
        return super().apply(parameters, occupations)[0]


class Column(Vanishing):
    def apply(self, parameters, occupations):
        return tuple(x[:, None] for x in super().apply(parameters, occupations))


@pytest.mark.parametrize("network", [OneOutput, Column])
def test_other_outputs_of_a_network_are_refused(network):
    with pytest.raises(ValueError, match="two real arrays .* but for n = 3 configurations it gives float64"):
        solve(chain(2), module=network(), steps=10)


def test_only_the_same_run_is_resumed(tmp_path):
    ham, first = chain(2), Transformer(2, 1, 1, **TINY)
    options: dict[str, Any] = {"module": first, "optimizer": optax.adam(1e-2), "checkpoint": tmp_path, "pretrain": 0}
    solve(ham, steps=10, **options)
    with pytest.raises(ValueError, match="has left checkpoints .* resume=True"):
        solve(ham, steps=10, **options)
    with pytest.raises(TypeError, match="resume .* True or False"):
        solve(ham, resume="no", **options)  # pyright: ignore[reportArgumentType]
    for change in ({"optimizer": optax.adam(1e-3)}, {"module": first.clone(heads=4)}):
        with pytest.raises(ValueError, match="is of another run"):
            solve(ham, steps=20, resume=True, **{**options, **change})
    assert solve(ham, steps=20, resume=True, **options, memory=1 << 20).steps == 20


@pytest.mark.parametrize(
    "change",
    [{"module": 3}, {"module": Transformer}, {"optimizer": "adam"}, {"optimizer": Spring}, {"callback": 3}],
)
def test_parts_without_the_methods_that_are_needed_are_refused(change):
    with pytest.raises(TypeError, match=f"Argument {next(iter(change))} of jaxqc.nnqs.solve must be"):
        solve(chain(2), **change)


def test_what_is_no_hamiltonian_is_refused():
    with pytest.raises(TypeError, match="must be a jaxqc.nnqs.Hamiltonian"):
        solve(np.eye(2))  # pyright: ignore[reportArgumentType]


def test_a_run_that_diverges_says_so():
    with pytest.raises(FloatingPointError, match="smaller learning rate"):
        solve(chain(2), module=Transformer(2, 1, 1, **TINY), optimizer=optax.sgd(1e30), steps=50, pretrain=0)


def test_shell_command(tmp_path, capsys):
    from jaxqc import cli

    fcidump, log = tmp_path / "h4.fcidump", tmp_path / "log.jsonl"
    chain(4).to_fcidump(fcidump)
    arguments = ["nnqs", str(fcidump), "--steps", "10", "--pretrain", "5", "--checkpoint", str(tmp_path / "run")]
    assert cli.main([*arguments, "--log", str(log)]) == 0
    shown = capsys.readouterr().out
    exact = full_ci(chain(4))
    assert "2 alpha and 2 beta electrons in 4 orbitals" in shown and f"{exact:.7f}" in shown and "upper bound" in shown
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert records[-1]["kind"] == "end" and records[-1]["e_ci"] == pytest.approx(exact, abs=1e-9)
    assert cli.main([*arguments, "--resume", "--quiet"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{xyz}"], "--basis is missing"),
        (["{fcidump}", "--basis", "sto-3g"], "leave out --basis"),
        (["{fcidump}", "--rate", "0"], "must be above 0"),
        (["{fcidump}", "--resume"], "directory to read"),
        (["{fcidump}", "--size", "0"], "Argument --size must be"),
        (["{fcidump}", "--roots", "0"], "Argument --roots must be"),
        (["{fcidump}", "--devices", "99"], "--devices is 99"),
        (["{fcidump}", "--memory", "inf"], "--memory is inf"),
        (["{fcidump}", "--seed", "99999999999999999999999"], "Argument --seed must be"),
        (["{fcidump}", "--plot", "figure.unknown"], "Argument --plot is 'figure.unknown'; it must be a file that ends"),
        (["{fcidump}", "--plot", "no/such/folder/figure.png"], "Argument --plot is"),
        (["{fcidump}", "--tensorboard", ""], "Argument --tensorboard is"),
        (["{xyz}", "--basis", "sto-3g", "--frozen", "7"], "Argument --frozen is 7"),
        (["missing.xyz", "--basis", "sto-3g"], "No such file"),
    ],
)
def test_shell_command_refuses_in_one_sentence(arguments, message, tmp_path, capsys):
    from jaxqc import cli

    names = {"xyz": tmp_path / "h2.xyz", "fcidump": tmp_path / "h2.fcidump"}
    names["xyz"].write_text("2\n\nH 0 0 0\nH 0 0 0.74\n")
    chain(2).to_fcidump(names["fcidump"])
    assert cli.main(["nnqs", *(part.format(**names) for part in arguments)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1
