"""A training loop of one's own for a neural wave function, from the public pieces of `jaxqc.nnqs` only.

    python experiments/nnqs_training.py [--steps N]

LiH in STO-3G: configurations are selected without a network, which is then trained on them with JAX and Optax. The loss
is an ordinary function of the parameters; here the spread of local energies is lowered along with the energy.
"""

import argparse

import jax
import jax.numpy as jnp
import optax

import jaxqc
from jaxqc import nnqs


def main(steps):
    mol = jaxqc.Molecule("Li 0 0 0; H 0 0 1.548", basis="sto-3g")
    ham = nnqs.Hamiltonian.from_molecule(mol)
    found = nnqs.selected_ci(ham, 60)
    configurations = found.configurations
    members = jnp.arange(configurations.keys.shape[0]) < configurations.count
    links = nnqs.Links(*nnqs.sparse_hamiltonian(ham, *configurations), members)

    module = nnqs.Transformer(ham.norb, ham.nalpha, ham.nbeta, layers=2, phase_layers=(64,), real=True)
    lowest = nnqs.aufbau(ham.norb, ham.nalpha, ham.nbeta)
    occupations = nnqs.unpack(jnp.where(members[:, None], configurations.keys, lowest), ham.norb)
    parameters = module.init(jax.random.key(0), occupations)

    def loss(parameters, learning):
        log_amplitude, phase = module.apply(parameters, occupations)
        teacher = nnqs.infidelity(log_amplitude, phase, found.vector, members)
        energy = nnqs.rayleigh_quotient(log_amplitude, phase, links)
        spread = nnqs.estimate(log_amplitude, phase, links).variance
        return jnp.where(learning, teacher, energy + 0.1 * spread), energy

    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    @jax.jit
    def step(parameters, state, learning):
        (_, energy), gradient = jax.value_and_grad(loss, has_aux=True)(parameters, learning)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, energy

    state = optimizer.init(parameters)
    for k in range(steps):
        parameters, state, energy = step(parameters, state, jnp.asarray(k < steps // 4))
        if k % 50 == 49:
            above = 1e3 * (float(energy) - found.e_ci)
            print(f"step {k + 1:5d}  energy {float(energy):.8f}  above E_CI by {above:.3f} mHartree")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of the optimiser (default 400)")
    main(parser.parse_args().steps)
