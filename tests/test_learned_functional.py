"""The example that trains a functional: its derivatives, its exact limits, and going on from a checkpoint."""

import importlib.util
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxqc.xc import Features, functional

SCRIPT = Path(__file__).resolve().parent.parent / "experiments" / "learned_functional.py"
# Whatever the libraries for training warn about.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def learned():
    for name in ("flax", "optax", "orbax.checkpoint"):
        pytest.importorskip(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = importlib.util.spec_from_file_location("learned_functional", SCRIPT)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def random_features(n=50, seed=3):
    rng = np.random.default_rng(seed)
    rho = np.exp(rng.uniform(-8, 3, size=(2, n)))
    grad = rng.normal(size=(2, 3, n)) * rho[:, None] ** (4 / 3) * 3
    return Features.of(jnp.asarray(rho), jnp.asarray(grad))


def random_parameters(learned, seed=0, scale=0.3):
    """Parameters away from those of PBE."""
    start = learned.initial_parameters(width=4)
    leaves, tree = jax.tree.flatten(start)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [x + scale * jnp.asarray(rng.normal(size=x.shape)) for x in leaves])


def test_starts_at_pbe(learned):
    features = random_features()
    start = learned.with_parameters(learned.initial_parameters())
    assert start.kind == "gga"
    expected = functional("pbe").energy_density(features)
    np.testing.assert_allclose(start.energy_density(features), expected, rtol=1e-13)


def test_symmetry_and_uniform_gas(learned):
    features = random_features()
    xc = learned.with_parameters(random_parameters(learned))
    value = xc.energy_density(features)
    assert float(jnp.max(jnp.abs(value / functional("pbe").energy_density(features) - 1))) > 1e-2
    swapped = Features.of(features.rho[::-1], features.grad[::-1])
    np.testing.assert_allclose(xc.energy_density(swapped), value, rtol=1e-13)
    flat = Features.of(features.rho, jnp.zeros_like(features.grad))
    np.testing.assert_allclose(xc.energy_density(flat), functional("pbe").energy_density(flat), rtol=1e-13)


def test_finite_where_there_is_no_density(learned):
    xc = learned.with_parameters(random_parameters(learned))
    rho = jnp.asarray([[0.0, 0.3, 1e-20, 0.5], [0.0, 0.0, 1e-20, 0.5]])
    grad = jnp.zeros((2, 3, 4)).at[0, 0, 1].set(0.1)

    def total(rho, grad):
        return jnp.sum(xc.energy_density(Features.of(rho, grad)))

    assert jnp.isfinite(total(rho, grad))
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.grad(total, (0, 1))(rho, grad))


def test_training(learned, tmp_path):
    # One molecule, so that one SCF is compiled: its total energy is trained on.
    training, held_out = {"H2": {"H2": 1}}, {"2 H2": {"H2": 2}}
    settings = {"basis": "sto-3g", "grid": 0, "rate": 1e-2, "steps": 3, "checkpoints": tmp_path}
    trainer = learned.Trainer(training, held_out, **settings)
    params = random_parameters(learned, scale=0.1)

    # The derivative of the loss along a direction in the space of parameters, through the converged SCF.
    direction = random_parameters(learned, seed=5, scale=1.0)

    def loss(shift):
        moved = jax.tree.map(lambda x, d: x + shift * d, params, direction)
        return learned.loss_and_gradient(trainer.functions, moved, training)[0]

    _, gradient, found = learned.loss_and_gradient(trainer.functions, params, training)
    slope = sum(float(jnp.vdot(g, d)) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    step = 1e-4
    differences = (loss(step) - loss(-step)) / (2 * step), (loss(2 * step) - loss(-2 * step)) / (4 * step)
    expected = (4 * differences[0] - differences[1]) / 3
    assert abs(slope - expected) < 1e-6 * abs(expected)
    assert found.keys() == training.keys()

    state = trainer.start(params)
    history = []
    for _ in range(2):
        state, record = trainer.step(state)
        history.append(record)
    trainer.save(state, history)
    after, record = trainer.step(state)
    assert record["loss"] < history[0]["loss"]
    assert record["held out"]["2 H2"] == pytest.approx(2 * record["training"]["H2"], rel=1e-9)
    trainer.close()

    again = learned.Trainer(training, held_out, **settings)
    again.functions, again.others = trainer.functions, trainer.others  # compiled already
    restored = again.restore(again.start(learned.initial_parameters(width=4)))
    assert restored is not None
    found_state, found_history = restored
    assert found_history == history
    found_after, found_record = again.step(found_state)
    assert found_record == record
    for a, b in zip(jax.tree.leaves(found_after), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
    again.close()
