"""The memory of a build of J and K on a GPU: stated against what XLA assigns, and the setting that bounds it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc import systems
from jaxqc.integrals import _cuda_hermite, _cuda_jk, _cuda_memory, _cuda_pairs
from jaxqc.integrals._decontraction import two_electron_shells

GIB = 2**30


def _layout(n, basis):
    mol = jaxqc.Molecule(list(zip(*systems.water_cluster(n), strict=True)), basis=basis)
    shells, _ = two_electron_shells(mol)
    return (shells.ls, shells.nprims), mol


def _assigned(layout, nao, densities, exchange, symmetric):
    """Bytes of operands, results and everything between, of the program of a build."""
    nshell, nprim = len(layout[0]), sum(layout[1])
    shapes = [(nshell, 3), (nprim,), (nprim,), (densities, nao, nao)]
    operands = [jax.ShapeDtypeStruct(s, jnp.float64) for s in shapes] + [jax.ShapeDtypeStruct((1,), jnp.int32)]
    static = dict(layout=layout, cart=False, coulomb=True, exchange=exchange, omega=0.0, threshold=1e-13)
    run = functools.partial(_cuda_jk.lowered, **static, symmetric=symmetric, parts=1)
    found = jax.jit(run).lower(*operands).compile().memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes


@pytest.mark.parametrize(
    ("n", "basis", "densities", "exchange", "symmetric", "split"),
    [(6, "6-31g*", 1, True, True, True), (6, "6-31g*", 3, True, False, False), (4, "cc-pvdz", 2, False, True, True)],
)
def test_a_build_takes_no_more_than_is_stated(n, basis, densities, exchange, symmetric, split, emulator, monkeypatch):
    for module in (_cuda_jk, _cuda_pairs, _cuda_hermite):
        monkeypatch.setattr(module, "call", emulator.call)  # compiled by XLA, not run
    layout, mol = _layout(n, basis)
    monkeypatch.setattr(_cuda_memory, "by_hermite", lambda *_: split)
    stated = _cuda_memory.needed(layout, False, densities, 1 + exchange, symmetric, split)
    assigned = _assigned(layout, mol.nao, densities, exchange, symmetric)
    assert assigned <= stated <= 2.0 * assigned


def test_where_there_is_no_room_for_hermite_gaussians_quartets_serve(monkeypatch):
    layout, _ = _layout(6, "cc-pvdz")
    least, most = (_cuda_memory.needed(layout, False, 1, 2, True, split) for split in (False, True))
    assert least < most
    for room, expected in ((most, True), (most - 1, False), (least, False)):
        monkeypatch.setenv("JAXQC_MEMORY", repr(room / GIB))
        assert _cuda_memory.by_hermite(layout, False, 1, 2, True) == expected
    monkeypatch.setenv("JAXQC_MEMORY", repr((least - 1) / GIB))
    with pytest.raises(ValueError, match="takes up to .* GiB on the GPU, but may take"):
        _cuda_memory.by_hermite(layout, False, 1, 2, True)


def test_what_users_ask_for(monkeypatch):
    layout, mol = _layout(2, "cc-pvdz")
    least, most = (_cuda_memory.needed(layout, False, 1, 2, True, split) for split in (False, True))
    assert jaxqc.integrals.jk_memory(mol, symmetric=True) == most
    monkeypatch.setenv("JAXQC_MEMORY", repr((most - 1) / GIB))
    assert jaxqc.integrals.jk_memory(mol, symmetric=True) == least
    several = jaxqc.integrals.jk_memory(mol, np.int64(3))  # pyright: ignore[reportArgumentType]
    assert type(several) is int and several == jaxqc.integrals.jk_memory(mol, 3)
    wrong: Any = (
        ({"densities": 0}, "densities .* at least 1"),
        ({"densities": 1.5}, "densities .* whole number"),
        ({"coulomb": 1}, "coulomb .* True or False"),
        ({"symmetric": None}, "symmetric .* True or False"),
        ({"coulomb": False, "exchange": False}, "neither matrix"),
    )
    for options, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            jaxqc.integrals.jk_memory(mol, **options)
    monkeypatch.setenv("JAXQC_MEMORY", "1e-6")
    build = jax.jit(lambda d: jaxqc.integrals.jk(mol, d)).trace(jnp.zeros((3, mol.nao, mol.nao)))
    with pytest.raises(ValueError, match="for 3 densities takes up to .* fewer at a time"):
        build.lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("text", ["many", "0", "-1", "nan"])
def test_a_limit_without_meaning_is_refused(text, monkeypatch):
    monkeypatch.setenv("JAXQC_MEMORY", text)
    with pytest.raises(ValueError, match="JAXQC_MEMORY is .* must be a number above 0"):
        _cuda_memory.limit()


@pytest.mark.parametrize(
    "stats", [None, {}, {"bytes_limit": 0}, {"bytes_limit": 3 * GIB}, RuntimeError("no statistics")]
)
def test_without_a_limit_there_is_that_of_jax(stats, monkeypatch):
    class Device:
        def memory_stats(self):
            if isinstance(stats, Exception):
                raise stats
            return stats

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert _cuda_memory.limit() == (3 * GIB if isinstance(stats, dict) and stats.get("bytes_limit") else np.inf)
