"""J, K and whole calculations over several devices: virtual ones of the CPU, and those of several processes."""

import pickle

import jax
import numpy as np
import pytest
from scf_mesh_worker import calculation
from worker_processes import free_port, result, start

import jaxqc

WORKER = "scf_mesh_worker.py"


def agrees(found, expected):
    energy, gradient = found
    assert abs(energy - expected[0]) < 1e-10
    assert np.max(np.abs(np.asarray(gradient) - np.asarray(expected[1]))) < 1e-8


def test_devices():
    found = result(start(WORKER, "devices", devices=4))
    assert found["devices"] == [4, 4]
    assert max(found["matrices"]) < 1e-12
    agrees(found["rhf"], calculation(None))
    agrees(found["uks"], calculation(None, xc="pbe0", grid=0, charge=1))
    assert abs(found["explicit"] - calculation(None, xc="pbe", grid=0)[0]) < 1e-10


def test_processes():
    port = free_port()
    both = [start(WORKER, "processes", port, 2, index, devices=2) for index in range(2)]
    found = [result(process) for process in both]
    for one in found:
        assert one["devices"] == [2, 4]
        agrees(one["rhf"], calculation(None))
    assert found[0] == found[1]


def test_a_result_is_kept_without_its_mesh():
    mol, mesh = jaxqc.Molecule("He 0 0 0", basis="sto-3g"), jax.make_mesh((1,), ("devices",))
    kept = pickle.loads(pickle.dumps(jaxqc.scf(mol, mesh=mesh)))
    assert kept.method.mesh is None and abs(float(kept.energy) - float(jaxqc.scf(mol).energy)) < 1e-12


def test_a_mesh_that_is_none():
    mol = jaxqc.Molecule("He 0 0 0", basis="sto-3g")
    with pytest.raises(TypeError, match="The argument mesh of jaxqc.scf must be a jax.sharding.Mesh or None"):
        jaxqc.scf(mol, mesh=4)
    with pytest.raises(TypeError, match="The argument mesh of jaxqc.integrals.jk must be"):
        jaxqc.integrals.jk(mol, np.eye(1), mesh="all")  # pyright: ignore[reportArgumentType]
