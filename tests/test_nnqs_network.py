"""The neural wave function and its energies, against sums over all configurations and dense linear algebra."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import fci

from jaxqc.nnqs import Hamiltonian, all_configurations, element, lowest, unpack

pytest.importorskip("flax")
pytest.importorskip("optax")

from jaxqc.nnqs._ansatz import Transformer  # noqa: E402
from jaxqc.nnqs._energy import (  # noqa: E402
    Links,
    distillation,
    energy,
    estimate,
    infidelity,
    local_energies,
    rayleigh_quotient,
)
from jaxqc.nnqs._train import Sector, TrainState, batch_size, evaluate, make_steps, value_and_grad  # noqa: E402
from jaxqc.nnqs._train_sr import Spring, make_spring_steps  # noqa: E402

SMALL = {"width": 8, "layers": 2, "heads": 2, "phase_layers": (12,)}


def random_hamiltonian(norb, nalpha, nbeta, seed=0):
    random = np.random.default_rng(seed)
    one = random.normal(size=(norb, norb))
    factors = random.normal(size=(3, norb, norb))
    factors = factors + factors.transpose(0, 2, 1)
    two = 0.2 * np.einsum("kpq,krs->pqrs", factors, factors)
    return Hamiltonian.from_integrals(one + one.T, two, nalpha, nbeta, constant=0.7)


def dense(ham, keys):
    n = len(keys)
    i, j = np.divmod(np.arange(n * n), n)
    return np.asarray(element(ham, keys[i], keys[j])).reshape(n, n)


def links_of(matrix, members=None):
    rows, columns = np.nonzero(matrix)
    members = np.ones(len(matrix), bool) if members is None else members
    kept = members[rows]
    rows, columns = rows[kept], columns[kept]
    return Links(
        jnp.asarray(rows, jnp.int32),
        jnp.asarray(columns, jnp.int32),
        jnp.asarray(matrix[rows, columns]),
        jnp.asarray(members),
    )


def network(ham, **options):
    keys = all_configurations(ham.norb, ham.nalpha, ham.nbeta).keys
    module = Transformer(ham.norb, ham.nalpha, ham.nbeta, **SMALL | options)
    return module, jax.jit(module.init)(jax.random.key(1), unpack(keys[:1], ham.norb)), keys


@pytest.mark.parametrize("norb, nalpha, nbeta", [(5, 3, 1), (3, 3, 2), (1, 1, 0)], ids=str)
def test_probabilities_sum_to_one_over_the_sector(norb, nalpha, nbeta):
    ham = random_hamiltonian(norb, nalpha, nbeta)
    for dtype, bound in ((jnp.float64, 1e-13), (jnp.float32, 1e-6)):
        module, parameters, keys = network(ham, dtype=dtype)
        # Large weights: conditionals far from uniform.
        parameters = jax.tree.map(lambda x: 3 * x, parameters)
        log_amplitude, phase = jax.jit(module.apply)(parameters, unpack(keys, norb))
        assert log_amplitude.dtype == phase.dtype == jnp.float64
        np.testing.assert_allclose(jnp.sum(jnp.exp(2 * log_amplitude)), 1, atol=bound)


def test_ranks_are_not_promoted():
    ham = random_hamiltonian(4, 2, 1)
    matrix = dense(ham, all_configurations(4, 2, 1).keys)
    with jax.numpy_rank_promotion("raise"):
        module, parameters, keys = network(ham, dtype=jnp.float64)
        log_amplitude, phase = module.apply(parameters, unpack(keys, 4))
        psi = np.exp(np.asarray(log_amplitude) + 1j * np.asarray(phase))
        assert np.sum(np.abs(psi) ** 2) == pytest.approx(1.0, abs=1e-12)
        value = energy(log_amplitude, phase, links_of(matrix))
        assert float(value) == pytest.approx(np.real(np.vdot(psi, matrix @ psi)), abs=1e-10)
        lowest_state = lowest(ham, keys)
        assert float(lowest_state.energies[0]) == pytest.approx(np.linalg.eigvalsh(matrix)[0], abs=1e-8)
        vector = lowest_state.vectors[0][: len(keys)]
        outputs = log_amplitude, phase, vector, jnp.ones(len(keys), bool)
        distance, loss = float(infidelity(*outputs)), float(distillation(*outputs))
    c = np.asarray(vector)
    assert distance == pytest.approx(1 - np.abs(c @ psi) ** 2, abs=1e-10)
    angles = np.where(c * c[np.argmax(np.abs(c))] < 0, np.pi, 0.0)
    squares = (np.asarray(log_amplitude) - np.log(np.abs(c))) ** 2 + (np.asarray(phase) - angles) ** 2
    assert loss == pytest.approx(np.average(squares, weights=np.abs(c)), abs=1e-8)


def test_spin_flip_keeps_the_norm_and_ties_the_pairs():
    ham = random_hamiltonian(5, 2, 2)
    module, parameters, keys = network(ham, spin_flip=True, dtype=jnp.float64)
    occupations = unpack(keys, 5)
    log_amplitude, phase = module.apply(parameters, occupations)
    flipped = module.apply(parameters, occupations[:, ::-1])
    np.testing.assert_array_equal(phase, flipped[1])
    np.testing.assert_allclose(log_amplitude, flipped[0], rtol=1e-14)
    np.testing.assert_allclose(jnp.sum(jnp.exp(2 * log_amplitude)), 1, atol=1e-13)
    assert np.ptp(np.asarray(phase)) > 1e-3


def test_other_numbers_of_electrons_have_no_amplitude():
    module, parameters, _ = network(random_hamiltonian(4, 2, 2))
    others = [all_configurations(4, *numbers).keys for numbers in ((1, 2), (3, 2), (2, 4), (0, 0))]
    log_amplitude, _ = module.apply(parameters, unpack(jnp.concatenate(others), 4))
    assert np.all(np.exp(log_amplitude) == 0)


def test_real_networks_have_phases_0_and_pi_and_less_norm():
    module, parameters, keys = network(random_hamiltonian(4, 2, 2), real=True, dtype=jnp.float64)
    log_amplitude, phase = module.apply(parameters, unpack(keys, 4))
    assert set(np.asarray(phase).tolist()) <= {0.0, np.pi}
    assert 0 < np.sum(np.exp(2 * log_amplitude)) < 1


@pytest.mark.parametrize(
    "change, message",
    [
        ({"width": 6, "heads": 4}, "not a multiple of heads=4"),
        ({"spin_flip": True, "nbeta": 1}, "as many alpha as beta"),
        ({"nalpha": 5}, "must be from 0 to norb=4"),
        ({"nbeta": -1}, "nbeta .* at least 0"),
        ({"layers": 0}, "at least 1"),
        ({"width": 8.0}, "width .* whole number"),
        ({"phase_layers": 3}, "phase_layers .* tuple of widths.*it is 3"),
        ({"phase_layers": (8, 0)}, "phase_layers .* at least 1"),
        ({"dtype": "x"}, "dtype .* real numbers.*it is .x."),
        ({"dtype": np.int32}, "dtype .* real numbers"),
        ({"dtype": None}, "dtype .* real numbers"),
        ({"spin_flip": "no"}, "spin_flip .* True or False"),
        ({"real": None}, "real .* True or False"),
        ({"inference": "float8"}, "must be one of"),
    ],
)
def test_impossible_networks_are_refused(change, message):
    options = {"norb": 4, "nalpha": 2, "nbeta": 2} | SMALL | change
    with pytest.raises((TypeError, ValueError), match=message):
        Transformer(**options).init(jax.random.key(0), np.zeros((1, 2, 4), bool))


def random_psi(n, seed):
    random = np.random.default_rng(seed)
    return random.normal(size=n) - 50, random.uniform(-4, 4, size=n)


def test_energies_are_those_of_dense_linear_algebra():
    ham = random_hamiltonian(4, 2, 1)
    matrix = dense(ham, all_configurations(4, 2, 1).keys)
    log_amplitude, phase = random_psi(len(matrix), 1)
    psi = np.exp(log_amplitude + 1j * phase)
    found = estimate(log_amplitude, phase, links_of(matrix))
    norm = np.vdot(psi, psi).real
    expected = np.vdot(psi, matrix @ psi).real / norm
    np.testing.assert_allclose(found.energy, expected, rtol=1e-13)
    np.testing.assert_allclose(found.weight, norm, rtol=1e-12)
    np.testing.assert_allclose(found.variance, np.linalg.norm(matrix @ psi - expected * psi) ** 2 / norm, rtol=1e-12)
    local = (matrix @ psi) / psi
    np.testing.assert_allclose(local_energies(log_amplitude, phase, links_of(matrix)), [local.real, local.imag], 1e-11)
    # On the ground state all local energies are the energy.
    values, vectors = np.linalg.eigh(matrix)
    ground = jnp.log(jnp.abs(vectors[:, 0])), jnp.where(vectors[:, 0] < 0, jnp.pi, 0.0)
    expected = fci.direct_spin1.kernel(np.asarray(ham.one), np.asarray(ham.two), 4, (2, 1))[0] + 0.7
    found = estimate(*ground, links_of(matrix))
    np.testing.assert_allclose([found.energy, found.variance], [expected, 0], atol=1e-9)


def test_projected_energy_has_the_gradient_of_the_rayleigh_quotient():
    ham = random_hamiltonian(4, 2, 2)
    matrix = dense(ham, all_configurations(4, 2, 2).keys)
    members = np.random.default_rng(3).uniform(size=len(matrix)) < 0.6
    psi = random_psi(len(matrix), 4)
    inside = links_of(np.where(members, matrix, 0), members)
    exact = jax.grad(rayleigh_quotient, argnums=(0, 1))(*psi, inside)
    found = jax.grad(energy, argnums=(0, 1))(*psi, inside)
    np.testing.assert_allclose(found, exact, atol=1e-10)
    assert np.max(np.abs(exact)) > 1e-2
    # Forward mode, and finite differences of the plain quotient.
    random = np.random.default_rng(5)
    way = random.normal(size=(2, len(matrix)))
    _, slope = jax.jvp(lambda a, p: energy(a, p, inside), psi, (way[0], way[1]))
    ends = [rayleigh_quotient(psi[0] + h * way[0], psi[1] + h * way[1], inside) for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-7)


def test_connected_is_projected_on_the_whole_space_and_no_bound_on_a_part():
    ham = random_hamiltonian(3, 2, 1)
    matrix = dense(ham, all_configurations(3, 2, 1).keys)
    psi = random_psi(len(matrix), 6)
    whole = links_of(matrix)
    for function in (energy, rayleigh_quotient):
        assert np.allclose(function(*psi, whole), estimate(*psi, whole).energy, rtol=1e-14)
    found = jax.grad(energy, argnums=(0, 1))(*psi, whole)
    np.testing.assert_allclose(found, jax.grad(rayleigh_quotient, argnums=(0, 1))(*psi, whole), atol=1e-10)
    # One configuration and what it is coupled to: the energy goes down with their amplitudes, without a limit.
    alone = np.zeros(len(matrix), bool)
    alone[0] = True
    coupled = links_of(matrix, alone)
    sign = jnp.where(jnp.asarray(matrix[0]) > 0, jnp.pi, 0.0).at[0].set(0.0)
    large = jnp.full(len(matrix), 10.0).at[0].set(0.0)
    assert estimate(large, sign, coupled).energy < np.linalg.eigvalsh(matrix)[0] - 100


def test_gradients_through_a_network_are_those_of_automatic_differentiation():
    ham = random_hamiltonian(4, 2, 2)
    module, parameters, keys = network(ham, dtype=jnp.float64)
    links = links_of(dense(ham, keys))
    sector = Sector(4, 2, 2)

    def plain(parameters):
        log_amplitude, phase = module.apply(parameters, unpack(keys, 4))
        return rayleigh_quotient(log_amplitude, phase, links)

    value, exact = jax.value_and_grad(plain)(parameters)
    for batch in (36, 16, 5):  # one batch, and several with padding
        (found, _), gradient = value_and_grad(
            lambda a, p: energy(a, p, links), module.apply, parameters, keys, sector, batch
        )
        np.testing.assert_allclose(found, value, rtol=1e-13)
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)
        whole: Any = module.apply(parameters, unpack(keys, 4))
        found = evaluate(module.apply, parameters, keys, sector, batch)
        np.testing.assert_allclose(found, whole, atol=1e-13)


@pytest.mark.parametrize("number", [0, 7])
def test_gradients_where_few_configurations_count(number):
    ham = random_hamiltonian(4, 2, 2)
    module, parameters, keys = network(ham, dtype=jnp.float64)
    members = np.isin(np.arange(36), np.random.default_rng(2).choice(36, number, replace=False))
    links = links_of(dense(ham, keys), members)

    def loss(log_amplitude, phase):
        found = energy(log_amplitude, phase, links) if number else jnp.sum(0 * log_amplitude)
        return found, None

    exact = jax.grad(lambda p: loss(*module.apply(p, unpack(keys, 4)))[0])(parameters)
    _, gradient = value_and_grad(loss, module.apply, parameters, keys, Sector(4, 2, 2), 5)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_losses_that_learn_a_vector():
    random = np.random.default_rng(7)
    vector = random.normal(size=6)
    members = np.array([True] * 5 + [False])
    psi = random_psi(6, 8)
    numbers = np.exp(psi[0] + 1j * psi[1])[:5]
    c = vector[:5]
    overlap = abs(c @ numbers) ** 2 / (c @ c) / np.vdot(numbers, numbers).real
    np.testing.assert_allclose(infidelity(*psi, jnp.asarray(vector), jnp.asarray(members)), 1 - overlap, rtol=1e-12)
    log_size = np.log(np.abs(c) / np.sqrt(c @ c))
    theta = np.where(c * c[np.argmax(np.abs(c))] < 0, np.pi, 0)
    expected = np.abs(c) @ ((psi[0][:5] - log_size) ** 2 + (psi[1][:5] - theta) ** 2) / np.sum(np.abs(c))
    for sign in (1, -1):  # that of an eigenvector means nothing
        learned = distillation(*psi, sign * jnp.asarray(vector), jnp.asarray(members))
        np.testing.assert_allclose(learned, expected, rtol=1e-12)
    same = 0.5 * jnp.log(jnp.asarray(vector**2 / (c @ c))), jnp.append(jnp.asarray(theta), 0.0)
    for loss in (infidelity, distillation):
        np.testing.assert_allclose(loss(*same, jnp.asarray(vector), jnp.asarray(members)), 0, atol=1e-14)


def test_steps_of_any_optimiser_and_their_number():
    import optax

    ham = random_hamiltonian(3, 2, 1)
    module, parameters, keys = network(ham, dtype=jnp.float64)
    links = links_of(dense(ham, keys))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))

    def objective(log_amplitude, phase, data):
        value = energy(log_amplitude, phase, data)
        return value, {"energy": value}

    steps = make_steps(objective, module.apply, optimizer, Sector(3, 2, 1), length=4)
    state = TrainState(parameters, optimizer.init(parameters), jnp.int32(0))
    state, seen = steps(state, keys, links, jnp.int32(3))
    assert int(state.step) == 3 and seen["energy"].shape == (4,) and seen["energy"][3] == 0
    # The same steps by hand.

    def plain(parameters):
        log_amplitude, phase = module.apply(parameters, unpack(keys, 3))
        return rayleigh_quotient(log_amplitude, phase, links)

    value = jax.value_and_grad(plain)
    for k in range(3):
        found, gradient = value(parameters)
        np.testing.assert_allclose(seen["energy"][k], found, rtol=1e-12)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        parameters = jax.tree.map(lambda p, g, n=norm: p - 0.1 * g / jnp.maximum(n, 1), parameters, gradient)
    for a, b in zip(jax.tree.leaves(state.parameters), jax.tree.leaves(parameters), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_spring_takes_the_steps_of_the_natural_gradient(momentum):
    from jax.flatten_util import ravel_pytree

    ham = random_hamiltonian(3, 1, 1)
    module, parameters, keys = network(ham, dtype=jnp.float64)
    matrix = dense(ham, keys)
    spring = Spring(learning_rate=0.05, damping=1e-2, momentum=momentum, largest=1e9)
    flat, restore = ravel_pytree(parameters)

    def log_psi(x):
        outputs: Any = module.apply(restore(x), unpack(keys, 3))
        return jnp.stack(outputs)

    before = np.zeros(len(flat))
    expected = np.asarray(flat)
    for _ in range(2):
        real, imaginary = np.asarray(log_psi(expected))
        rows = np.asarray(jax.jacrev(log_psi)(expected))
        psi = np.exp(real + 1j * imaginary)
        p = np.abs(psi) ** 2 / np.sum(np.abs(psi) ** 2)
        local = (matrix @ psi) / psi
        deviation = np.sqrt(p) * (local - np.sum(p * local).real)
        rows = (rows - np.einsum("n,snp->sp", p, rows)[:, None]) * np.sqrt(p)[:, None]
        x, e = rows.reshape(-1, len(flat)), np.concatenate([deviation.real, deviation.imag])
        # In the space of parameters, where the other form inverts in the space of configurations.
        metric = x.T @ x + spring.damping * np.eye(len(flat))
        before = np.linalg.solve(metric, x.T @ (e - momentum * x @ before)) + momentum * before
        expected = expected - spring.learning_rate * before
    steps = make_spring_steps(spring, module.apply, Sector(3, 1, 1), length=2)
    data = links_of(matrix), jnp.zeros(len(keys)), jnp.asarray(0.0)
    state, _ = steps(TrainState(parameters, spring.init(parameters), jnp.int32(0)), keys, data, jnp.int32(2))
    np.testing.assert_allclose(ravel_pytree(state.parameters)[0], expected, atol=1e-9)


def test_phases_of_real_networks_need_no_rows():
    ham = random_hamiltonian(3, 1, 1)
    module, parameters, keys = network(ham, dtype=jnp.float64, real=True)
    data = links_of(dense(ham, keys)), jnp.zeros(len(keys)), jnp.asarray(0.0)
    spring, found = Spring(), []
    for real in (False, True):
        steps = make_spring_steps(spring, module.apply, Sector(3, 1, 1), length=2, real=real)
        state, _ = steps(TrainState(parameters, spring.init(parameters), jnp.int32(0)), keys, data, jnp.int32(2))
        found.append(jax.tree.leaves(state.parameters))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_batches_of_large_networks_are_smaller():
    sizes = [batch_size(Sector(norb, 2, 2), width) for norb, width in ((128, 512), (42, 32), (28, 32), (4, 32))]
    assert sizes[0] == 64 and sizes[-1] == 4096 and sizes == sorted(sizes)
