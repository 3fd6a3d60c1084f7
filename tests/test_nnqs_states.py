"""Excited states of selected CI and of whole runs, and where runs write what they find."""

import math
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nnqs_cases import as_set, fci_energy, fci_matrix, molecule, over_several_words, random_hamiltonian

import jaxqc
from jaxqc.nnqs import (
    Configurations,
    Hamiltonian,
    all_configurations,
    aufbau,
    deduplicate,
    density_matrices,
    lowest,
    make_mesh,
    plot,
    pt2,
    selected_ci,
)
from jaxqc.nnqs._bits import SENTINEL
from jaxqc.nnqs._davidson import Eigenstates
from jaxqc.nnqs._density_pairs import density_from_pairs
from jaxqc.nnqs._extrapolate import points_of, states_of

LITHIUM_HYDRIDE = "Li 0 0 0; H 0 0 1.6"


def test_excited_states_of_the_full_space():
    ham = random_hamiltonian(5, 2, 2, seed=3)
    found = selected_ci(ham, nroots=3)
    energies = np.array([state.e_ci for state in found.states])
    assert found.complete and int(found.configurations.count) == 100
    np.testing.assert_allclose(energies, fci_energy(ham, 3), atol=1e-9)
    assert found[:5] == found.states[0][:5]
    for state in found.states:
        assert state.e_extrapolated == state.e_ci and state.e_pt2 == 0.0 and state.residual < 1e-5
        assert min(abs(state.spin_square - s * (s + 1)) for s in range(3)) < 1e-6


def test_excited_states_are_corrected_and_extrapolated():
    _, _, ham = molecule(LITHIUM_HYDRIDE, basis="6-31g")
    found = selected_ci(ham, 400, growth=20.0, nroots=3)
    exact = fci_energy(ham, 3)
    for k, state in enumerate(found.states):
        assert exact[k] < state.e_ci < exact[k] + 2e-3
        assert abs(state.e_extrapolated - exact[k]) < 2e-4
        again = pt2(ham, found.configurations, state.vector, state.e_ci)
        assert state.e_pt2 == pytest.approx(again, rel=1e-9)
    assert len(found.history) > 1 and all(len(point.excited) == 2 for point in found.history)
    # One state alone gets all of the set.
    alone = selected_ci(ham, 400, growth=20.0)
    assert alone.e_ci < found.e_ci < alone.e_ci + 1e-4
    assert len(plot(found).axes) == 1
    with pytest.raises(ValueError, match="nroots .* whole number"):
        selected_ci(ham, nroots=0)


NITROGEN = "N 0 0 0; N 0 0 1.0977"
SECTORS = {
    "H2": ("H 0 0 0; H 0 0 .74", {}, 4, 10_000),
    "H": ("H 0 0 0", {"basis": "cc-pvdz", "spin": 1}, 3, 10_000),
    "LiH": (LITHIUM_HYDRIDE, {}, 6, 120),
    "Li": ("Li 0 0 0", {"basis": "6-31g", "spin": 1}, 4, 60),
    "BeH2": ("Be 0 0 0; H 0 0 1.33; H 0 0 -1.33", {}, 5, 300),
    "H2O": ("O 0 0 0; H 0 .757 .587; H 0 -.757 .587", {}, 4, 200),
}


@pytest.mark.parametrize("name", SECTORS)
def test_states_of_all_symmetries(name):
    atom, options, nroots, size = SECTORS[name]
    ham = Hamiltonian.from_molecule(jaxqc.Molecule(atom, **{"basis": "sto-3g", **options}))
    found = selected_ci(ham, size, nroots=nroots)
    exact = np.linalg.eigvalsh(fci_matrix(ham))[:nroots] + float(ham.constant)
    whole = math.comb(ham.norb, ham.nalpha) * math.comb(ham.norb, ham.nbeta)
    assert len(found.states) == nroots and found.complete == (whole <= size)
    for state, energy in zip(found.states, exact, strict=True):
        assert energy - 1e-9 < state.e_ci < energy + 5e-4
        assert abs(state.e_extrapolated - energy) <= 2 * state.error + 1e-9
        assert (state.error == 0.0) == found.complete


def test_degenerate_states_of_nitrogen():
    ham = Hamiltonian.from_molecule(jaxqc.Molecule(NITROGEN, basis="sto-3g"), frozen=2)
    found = selected_ci(ham, 300, nroots=3)
    exact = fci_energy(ham, 3)
    assert exact[2] == pytest.approx(exact[1], abs=1e-8)
    for state, energy in zip(found.states, exact, strict=True):
        assert energy < state.e_ci and abs(state.e_extrapolated - energy) <= 2 * state.error < 4e-3


def test_only_what_is_certain_is_called_exact():
    pytest.importorskip("flax")
    from jaxqc.nnqs import solve

    ham = Hamiltonian.from_molecule(jaxqc.Molecule(SECTORS["H2O"][0], basis="sto-3g"))
    for epsilon in (1e-2, 1.0):  # which end the growth
        found = selected_ci(ham, epsilon=epsilon)
        assert not found.complete and found.e_pt2 < 0 and found.error == abs(found.e_pt2)
    assert selected_ci(ham).complete
    # One symmetry, to the end: other states are not in it.
    found = selected_ci(ham, start=aufbau(7, 5, 5), nroots=2)
    assert int(found.configurations.count) < 441 and not found.complete and np.isnan(found.error)
    small = Hamiltonian.from_molecule(jaxqc.Molecule("H 0 0 0; H 0 0 .74", basis="sto-3g"))
    cases: Any = (
        (lambda: selected_ci(small, nroots=5), "only 4 configurations"),
        (lambda: selected_ci(ham, 3, nroots=4), "argument size is 3"),
        (lambda: selected_ci(ham, 440, nroots=430), "or make argument size 441"),
        (lambda: solve(ham, target_size=3, nroots=4), "argument target_size is 3"),
        (lambda: selected_ci(small, start=aufbau(2, 1, 1), nroots=3), "no more than 2 in all"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_stated_errors_of_runs_count_what_the_threshold_leaves_out():
    pytest.importorskip("optax")
    transformer = pytest.importorskip("jaxqc.nnqs._ansatz", exc_type=ImportError).Transformer
    from jaxqc.nnqs import solve

    ham = Hamiltonian.from_molecule(jaxqc.Molecule(NITROGEN, basis="sto-3g"))
    module = transformer(10, 7, 7, width=8, layers=1, heads=2, phase_layers=(8,), real=True)
    out = solve(ham, steps=0, target_size=7, epsilon=0.1, module=module)
    left_out = pt2(ham, out.configurations, out.coefficients, out.e_ci, 0.0) - out.e_pt2
    assert abs(left_out) > 0.05  # Hartree
    assert max(abs(left_out), abs(out.e_extrapolated - -107.6528287)) <= out.extrapolation_error  # pyscf.fci


def test_points_of_another_state_are_left_out():
    def found(energies):
        empty = np.zeros(len(energies))
        return Eigenstates(np.asarray(energies), np.eye(len(energies)), empty, empty)  # pyright: ignore

    pt2s = (-0.04, -0.02, -0.01)
    sets = [found([-5.0 - 1.2 * x, -4.0 - 1.1 * x]) for x in pt2s]
    points = [
        points_of(one, [x, x], None if k == 0 else np.eye(2)) for k, (one, x) in enumerate(zip(sets, pt2s, strict=True))
    ]
    first, second = states_of(sets[-1], points, [], 0.0)
    assert (first.e_extrapolated, second.e_extrapolated) == pytest.approx((-5.0, -4.0), abs=1e-12)
    # Before the last set the states had another order: the series of each goes over to the other's place.
    swapped = [[(*point[:2], 1 - k) for k, point in enumerate(of_set[::-1])] for of_set in points[1:]]
    swapped[1] = [(*point[:2], 1 - k) for k, point in enumerate(points[2])]
    first, _ = states_of(sets[-1], [points[0], swapped[0], swapped[1]], [], 0.0)
    assert first.e_extrapolated == pytest.approx(-5.0, abs=1e-12)
    # And where a state is new, there is no line.
    points[-1] = points_of(sets[-1], [-0.01, -0.01], np.full((2, 2), 0.5))
    first, _ = states_of(sets[-1], points, [], 0.0)
    assert (first.e_extrapolated, first.error) == pytest.approx((sets[-1].energies[0] - 0.01, 0.01))


def events_of(folder):
    """(step, tag, value) of all event files: records of a length, its checksum, the event and its checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(Path(folder).iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            at += 16 + length
    return found


def test_runs_compute_excited_states_and_write_scalars(tmp_path):
    pytest.importorskip("flax")
    optax = pytest.importorskip("optax")
    pytest.importorskip("tensorboardX")
    from jaxqc.nnqs import Transformer, solve

    _, _, ham = molecule(LITHIUM_HYDRIDE)
    module = Transformer(6, 2, 2, width=8, layers=1, heads=2, phase_layers=(8,), real=True)
    folder = tmp_path / "events"
    options: Any = {"target_size": 60, "refresh": 10, "pretrain": 10, "nroots": 5}
    out = solve(
        ham, module=module, optimizer=optax.adam(1e-3), steps=20, tensorboard=folder, checkpoint=tmp_path / "run",
        **options,
    )  # fmt: skip
    exact = fci_energy(ham, 5)  # two of them are of another symmetry than the others
    reference = lowest(ham, out.configurations, 5)
    for k, state in enumerate(out.states):
        assert exact[k] - 1e-9 < state.e_ci < exact[k] + 1e-3 and abs(state.e_extrapolated - exact[k]) < 1e-3
        assert state.e_ci == pytest.approx(float(reference.energies[k]), abs=1e-9)
        assert state.residual < 1e-6 and state.vector.shape == (int(out.configurations.count),)
    assert (out.e_ci, out.spin_square) == (out.states[0].e_ci, out.states[0].spin_square)
    found = {(step, tag): value for step, tag, value in events_of(folder)}
    last = [r for r in out.history if r["kind"] == "set"][-1]
    assert found[last["step"], "set/e_ci"] == pytest.approx(last["e_ci"], rel=1e-6)
    assert found[last["step"], "set/e_ci_1"] == pytest.approx(last["excited"][0][0], rel=1e-6)
    trained = {step: value for (step, tag), value in found.items() if tag == "train/energy"}
    assert trained == pytest.approx({r["step"]: r["energy"] for r in out.history if r["kind"] == "train"}, rel=1e-6)
    # A run that goes on writes what is new.
    more = solve(
        ham, module=module, optimizer=optax.adam(1e-3), steps=30, tensorboard=folder, checkpoint=tmp_path / "run",
        resume=True, **options,
    )  # fmt: skip
    steps = [step for step, tag, _ in events_of(folder) if tag == "train/energy"]
    assert steps == [10, 20, 30] and more.steps == 30
    plot(more, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("norb", [6, 34])
def test_density_matrices_from_pairs_are_those_of_the_kernel(norb):
    if norb == 6:
        ham, keys = random_hamiltonian(6, 3, 3, seed=4), all_configurations(6, 3, 3).keys[::3]
    else:
        _, ham, lift = over_several_words(norb)
        keys = lift(all_configurations(5, 2, 3).keys[::3])[0]
    keys, count = as_set(keys)
    padded = jnp.concatenate([keys, jnp.full((3, keys.shape[1]), SENTINEL)])
    used = np.arange(len(padded)) < int(count)
    bra, ket = jnp.asarray(np.random.default_rng(0).normal(size=(2, len(padded))) * used)
    found = density_from_pairs(ham, padded, count, bra, ket)
    for ours, kernel in zip(found, density_matrices(ham, Configurations(padded, count), bra, ket), strict=True):
        np.testing.assert_allclose(ours, kernel, atol=1e-12)


def test_meshes_of_all_devices():
    assert make_mesh().devices.size == jax.device_count() and make_mesh(1).axis_names == ("devices",)
    with pytest.raises(ValueError, match="number of jaxqc.nnqs.make_mesh is 0"):
        make_mesh(0)
    keys = jnp.asarray([[5], [3], [5]], jnp.uint64)
    with jax.set_mesh(jax.make_mesh((1,), ("other",))):  # whatever mesh the caller works in
        found = deduplicate(keys, make_mesh())
    assert int(found.count) == 2 and np.asarray(found.keys[:2, 0]).tolist() == [3, 5]


def test_states_of_higher_spin_have_no_stated_error():
    # On small sets of stretched N2 a quintet lies below the singlet, which is 12.9 mHartree lower in truth.
    ham = Hamiltonian.from_molecule(jaxqc.Molecule("N 0 0 0; N 0 0 2.2", basis="sto-3g"))
    found, exact = selected_ci(ham, 100), fci_energy(ham)
    assert found.spin_square > 5
    assert np.isnan(found.error) and found.e_ci > exact + 1e-3
    assert not np.isnan(selected_ci(ham, 100, nroots=3).states[0].error)
    # The singlet grows beside it until it is the lowest.
    larger = selected_ci(ham, 500)
    assert max(point.spin_square for point in larger.history) > 5
    assert larger.spin_square < 1e-3 and exact < larger.e_ci < exact + 1e-4
    assert abs(larger.e_extrapolated - exact) < 2 * larger.error < 1e-4
