"""Run by test_nnqs_mesh.py: whole runs of neural selected CI over meshes; prints what came out, to the bit.

`python nnqs_solve_worker.py devices`, or `python nnqs_solve_worker.py processes PORT COUNT INDEX`.
"""

import hashlib
import json
import sys

import jax
import numpy as np
import optax
from nnqs_cases import random_integrals

from jaxqc.nnqs import Hamiltonian, solve
from jaxqc.nnqs._ansatz import Transformer

jax.config.update("jax_numpy_dtype_promotion", "strict")
MODES = {
    "projected": {"target_size": 90, "growth": 4, "memory": 1 << 20},
    "connected": {"target_size": 60, "energy": "connected", "select": "amplitude", "memory": 1 << 20},
    "three states": {"target_size": 90, "growth": 4, "memory": 1 << 20, "nroots": 3, "steps": 12, "refresh": 6},
}


def hamiltonian():
    """Diagonally dominant, without symmetry."""
    one, two = random_integrals(6, 3, 0.02)
    return Hamiltonian.from_integrals(0.05 * one + np.diag(np.arange(6.0) - 4), two, 3, 2, 0.5)


def outcome(mesh, mode, **changes):
    layers = 1 if mode == "connected" else 2  # compilers unroll one, but loop over more
    module = Transformer(6, 3, 2, width=8, layers=layers, heads=2, phase_layers=(16,), real=True)
    options = {"steps": 24, "pretrain": 6, "refresh": 8, "optimizer": optax.adamw(3e-3)} | MODES[mode] | changes
    out = solve(hamiltonian(), module=module, mesh=mesh, **options)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((out.parameters, out.configurations, out.coefficients)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    numbers = [out.energy, out.variance, out.weight, out.e_ci, out.e_pt2, out.e_extrapolated]
    numbers += [x for state in out.states for x in (state.e_ci, state.e_pt2)]
    return {"numbers": [x.hex() for x in numbers], "digest": digest.hexdigest(), "size": int(out.configurations.count)}


def mesh_of(count):
    return jax.make_mesh((count,), ("d",), devices=jax.devices()[:count])


def main(kind, *arguments):
    if kind == "processes":
        port, count, index = arguments
        jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
        result = {mode: outcome(mesh_of(jax.device_count()), mode) for mode in MODES}
    else:
        result = {}
        for mode in MODES:
            found: dict[str, dict] = {str(n): outcome(mesh_of(n), mode) for n in (1, 2, 4, 8)}
            found["one device"] = outcome(None, mode)
            with jax.set_mesh(mesh_of(4)):
                found["in the context of a mesh"] = outcome(mesh_of(4), mode)
            found["memory"] = outcome(mesh_of(4), mode, memory=1 << 31)
            result[mode] = found
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
