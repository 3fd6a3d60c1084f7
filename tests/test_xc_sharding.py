"""Exchange and correlation over several devices: virtual ones of the CPU, in processes of their own."""

import jax
import pytest
from worker_processes import free_port, result, start

import jaxqc
from jaxqc.xc import Grid, build_layout
from jaxqc.xc._sharding import shard_layout, sharded_potential

WORKER = "xc_sharding_worker.py"


def test_values():
    for name, (nelec, exc, vxc) in result(start(WORKER, "values", devices=8)).items():
        assert nelec < 1e-11 and exc < 1e-11 and vxc < 1e-11, name


def test_derivatives():
    for name, difference in result(start(WORKER, "derivatives", devices=4)).items():
        assert difference < 1e-11, name


def test_dealing():
    found = result(start(WORKER, "balance", devices=8))
    assert len(set(found["rows"])) == 1 and len(found["rows"]) == 8
    assert found["every point once"] and found["order"]
    least, most = found["work"]
    assert most < 1.05 * least
    least, most = found["slices"]  # what contiguous slices would give
    assert most > 1.5 * least


@pytest.mark.slow
def test_processes():
    port = free_port()
    both = [start(WORKER, "processes", port, 2, index, devices=2) for index in range(2)]
    found = [result(process) for process in both]
    assert found[0]["energy"] == found[1]["energy"]
    for one in found:
        assert one["devices"] == [2, 4]
        assert max(one["pbe"]) < 1e-11


@pytest.fixture(scope="module")
def helium():
    mol = jaxqc.Molecule("He 0 0 0", basis="sto-3g")
    return mol, Grid(mol, level=0), jax.numpy.ones((1, 1))


def test_bad_arguments(helium):
    mol, grid, density = helium
    mesh = jax.make_mesh((1,), ("grid",), devices=jax.devices()[:1])
    with pytest.raises(TypeError, match="Argument mesh must be a jax.sharding.Mesh, but it is NoneType"):
        sharded_potential(mol, grid, "pbe", density)
    with pytest.raises(ValueError, match="axis of the mesh, which has 'grid', but it is 'rows'"):
        sharded_potential(mol, grid, "pbe", density, mesh, axis="rows")
    with pytest.raises(TypeError, match="Argument grid must be a jaxqc.xc.Grid"):
        sharded_potential(mol, 3, "pbe", density, mesh)
    with pytest.raises(ValueError, match="Argument density must have the shape"):
        sharded_potential(mol, grid, "pbe", density[0], mesh)
    sharded = shard_layout(mol, build_layout(mol, grid.coords, grid.weights), mesh)
    other = jax.make_mesh((1,), ("rows",), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="Leave mesh out"):
        sharded_potential(mol, sharded, "pbe", density, other)
    assert sharded.devices == 1


def test_one_device_is_the_same(helium):
    mol, grid, density = helium
    mesh = jax.make_mesh((1,), ("grid",), devices=jax.devices()[:1])
    expected = jaxqc.xc.potential(mol, grid, "svwn", density)
    for a, b in zip(sharded_potential(mol, grid, "svwn", density, mesh), expected, strict=True):
        assert jax.numpy.max(jax.numpy.abs(a - b)) < 1e-14
