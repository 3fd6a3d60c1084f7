"""J, K and whole calculations over several devices: virtual ones of the CPU, and those of several processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scf_mesh_worker import calculation

import jaxqc

WORKER = Path(__file__).with_name("scf_mesh_worker.py")


def start(*arguments, devices):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([*sys.path, str(WORKER.parent.parent)])
    command = [sys.executable, "-W", "error", str(WORKER), *map(str, arguments)]
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process):
    output, errors = process.communicate(timeout=900)
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert lines, errors
    return json.loads(lines[-1].removeprefix("RESULT "))


def agrees(found, expected):
    energy, gradient = found
    assert abs(energy - expected[0]) < 1e-10
    assert np.max(np.abs(np.asarray(gradient) - np.asarray(expected[1]))) < 1e-8


def test_devices():
    found = result(start("devices", devices=4))
    assert found["devices"] == [4, 4]
    assert max(found["matrices"]) < 1e-12
    agrees(found["rhf"], calculation(None))
    agrees(found["uks"], calculation(None, xc="pbe0", grid=0, charge=1))


def test_processes():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    both = [start("processes", port, 2, index, devices=2) for index in range(2)]
    found = [result(process) for process in both]
    for one in found:
        assert one["devices"] == [2, 4]
        agrees(one["rhf"], calculation(None))
    assert found[0] == found[1]


def test_a_mesh_that_is_none():
    mol = jaxqc.Molecule("He 0 0 0", basis="sto-3g")
    with pytest.raises(TypeError, match="The argument mesh of jaxqc.scf must be a jax.sharding.Mesh or None"):
        jaxqc.scf(mol, mesh=4)
    with pytest.raises(TypeError, match="The argument mesh of jaxqc.integrals.jk must be"):
        jaxqc.integrals.jk(mol, np.eye(1), mesh="all")  # pyright: ignore[reportArgumentType]
