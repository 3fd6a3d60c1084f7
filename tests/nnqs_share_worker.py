"""Run by test_nnqs_mesh.py with 8 virtual devices: a network of one layer, whose loops compilers take apart, in shares.

Prints outputs and gradients for 1 and 8 devices and from plain JAX, all to the bit.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxqc.nnqs import all_configurations, make_mesh
from jaxqc.nnqs._ansatz import Transformer
from jaxqc.nnqs._bits import padded_keys
from jaxqc.nnqs._mesh import fetch, put
from jaxqc.nnqs._mesh_train import MeshNetwork, _gradient
from jaxqc.nnqs._train import Sector, occupations_of

jax.config.update("jax_numpy_dtype_promotion", "strict")
SECTOR = Sector(10, 7, 7)


def flat(*trees):
    return [x.hex() for leaf in jax.tree.leaves(trees) for x in np.asarray(leaf, np.float64).ravel().tolist()]


def main():
    module = Transformer(*SECTOR, width=16, layers=1, heads=2, phase_layers=(16,))
    keys = all_configurations(*SECTOR).keys[::230]
    occupations = occupations_of(keys, SECTOR)
    parameters = module.init(jax.random.key(0), occupations)
    slopes = jnp.asarray(np.random.default_rng(1).normal(size=(2, len(keys))))
    found = {}
    for devices in (1, 8):
        network = MeshNetwork(make_mesh(devices), module.apply, SECTOR, 64)  # one batch a share
        outputs = network.evaluate(parameters, keys)
        # Shares take batches in turns, and leave out those of unused rows.
        many = network._replace(batch=4).evaluate(parameters, padded_keys(keys, 2 * len(keys)))
        for whole, some in zip(outputs, many, strict=True):
            np.testing.assert_allclose(some[: len(keys)], whole, rtol=1e-5, atol=1e-5)
        assert np.all(np.asarray(many[0])[-len(keys) // 2 :] == -1e30)
        dealt, total = network.deal(keys, derivatives=True)
        operands = put(network.mesh, (parameters, tuple(jnp.pad(slopes, ((0, 0), (0, total - len(keys)))))), P())
        gradient = _gradient(operands[0], dealt, operands[1], network=network)
        found[str(devices)] = {"outputs": flat(outputs), "gradient": flat(fetch(gradient))}
    outputs, pullback = jax.vjp(jax.jit(lambda p: module.apply(p, occupations)), parameters)
    found["plain"] = {"outputs": flat(outputs), "gradient": flat(pullback(tuple(slopes))[0])}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
