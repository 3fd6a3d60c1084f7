"""Run by test_nnqs_core_deduplicate.py with 8 virtual devices: de-duplication over meshes, against NumPy.

With the argument `ragged` messages have lengths of their own on 4 CPUs, by a stand-in for JAX's exchange, which XLA's
CPU back end lacks.
"""

import json
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import jaxqc  # noqa: F401
from jaxqc.nnqs import _deduplicate, deduplicate
from jaxqc.nnqs._bits import SENTINEL

jax.config.update("jax_numpy_dtype_promotion", "strict")


def inputs():
    """Keys, numbers of devices, whether the inverse is wanted; equal shapes share their compiled programs."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**63, 20000, dtype=np.uint64)[:, None]
    yield "random", words, (1, 2, 4, 8)
    skewed = np.concatenate([np.repeat(words[:100], 150), words[:5000, 0] >> np.uint64(40)])[:, None]
    yield "skewed", rng.permutation(skewed), (1, 2, 4, 8)
    yield "sorted", np.sort(rng.integers(0, 15000, 20000, dtype=np.uint64))[:, None], (8,)
    lumps = (rng.standard_normal(15000) ** 4 * 1e6).astype(np.uint64)[:, None]
    yield "lumps", np.concatenate([lumps, np.full((5000, 1), SENTINEL)]), (8,)
    yield "one of a kind", np.full((20000, 1), 7, np.uint64), (8,)
    two = np.stack([rng.integers(0, 50, 15000), rng.integers(0, 2**62, 15000)], axis=1).astype(np.uint64)
    yield "two words", np.concatenate([two, two[:5000]]), (8,)
    yield "few", words[:3], (4,)


def ragged_all_to_all(operand, output, starts, sizes, places, arriving, *, axis_name):
    """As `jax.lax.ragged_all_to_all`, from copies of everything; zero where its rules are broken."""
    me, rows = jax.lax.axis_index(axis_name), jnp.arange(operand.shape[0], dtype=jnp.int32)
    operands = jax.lax.all_gather(operand, axis_name)
    starts, sizes, places = (jax.lax.all_gather(x, axis_name)[:, me] for x in (starts, sizes, places))
    allowed = jnp.all((sizes == arriving) & (sizes >= 0) & (starts >= 0) & (places >= 0))
    allowed &= jnp.all((starts + sizes <= operand.shape[0]) & (places + sizes <= output.shape[0]))

    def receive(k, output):
        inside = (rows >= starts[k]) & (rows < starts[k] + sizes[k])
        at = jnp.where(inside, rows - starts[k] + places[k], output.shape[0])
        return output.at[at].set(operands[k], mode="drop")

    return jnp.where(allowed, jax.lax.fori_loop(0, operands.shape[0], receive, output), 0)


def refuses_what_fails():
    """Without an exchange of messages of any length they are padded, and a warning says so."""
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert not _deduplicate._passes_ragged(mesh)
    assert "those of any length failed" in str(seen[0].message), seen


def main():
    stand_in = "ragged" in sys.argv
    if stand_in:
        jax.lax.ragged_all_to_all = ragged_all_to_all
        _deduplicate._has_ragged = lambda mesh: _deduplicate._passes_ragged(mesh)
    elif jax.default_backend() == "cpu":
        refuses_what_fails()
    result = {}
    for name, keys, numbers in inputs():
        used = keys[np.any(keys != SENTINEL, axis=1)]
        reference = np.unique(used, axis=0)
        shares = []
        for devices in sorted({min(number, jax.device_count()) for number in ((4,) if stand_in else numbers)}):
            mesh = jax.make_mesh((devices,), ("d",), devices=jax.devices()[:devices])
            found = deduplicate(jnp.asarray(keys), mesh, inverse=True)
            if stand_in:  # always, and where equal lengths do not suffice
                plain = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
                always = _deduplicate._over_mesh(jnp.asarray(keys), plain, True, True)
                for a, b in zip(always, found, strict=True):
                    np.testing.assert_array_equal(a, b)
            count = int(found.count)
            assert count == len(reference), (name, devices, count, len(reference))
            rows = np.asarray(found.keys)
            np.testing.assert_array_equal(rows[:count], reference)
            assert np.all(rows[count:] == SENTINEL)
            inverse = np.asarray(found.inverse)
            back = np.concatenate([rows, np.full((1, rows.shape[1]), SENTINEL)])[inverse]
            np.testing.assert_array_equal(back[np.any(keys != SENTINEL, axis=1)], used)
            assert np.all(inverse[np.all(keys == SENTINEL, axis=1)] == count)
            per_device = [
                int(np.sum(np.any(np.asarray(s.data) != SENTINEL, axis=1))) for s in found.keys.addressable_shards
            ]
            shares.append(max(per_device) / max(1, min(per_device)))
        result[name] = {"count": len(reference), "balance": shares}
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
