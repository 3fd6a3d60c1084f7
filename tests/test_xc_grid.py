"""Molecular grids against PySCF's, and as JAX objects."""

import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf import dft

import jaxqc
from jaxqc.elements import NUMBERS
from jaxqc.systems import water_cluster
from jaxqc.xc._grid import Grid, pad, place
from jaxqc.xc._grid_atom import LEBEDEV, atom_grid
from jaxqc.xc._grid_hilbert import hilbert_keys, hilbert_order, reference_order
from jaxqc.xc._grid_template import GridTemplate, grid_template

WATER = "O 0 0 0; H 0 0 0.96; H 0.93 0 -0.24"
PRUNINGS = {
    "nwchem": dft.gen_grid.nwchem_prune,
    "sg1": dft.gen_grid.sg1_prune,
    "treutler": dft.gen_grid.treutler_prune,
    None: None,
}
RADII = {"treutler": dft.radi.treutler_atomic_radii_adjust, "becke": dft.radi.becke_atomic_radii_adjust, None: None}


def molecule(atoms, **options):
    return jaxqc.Molecule(atoms, basis="sto-3g", **options)


def pyscf_grid(mol, level, partition="becke", prune="nwchem", radii="treutler"):
    """PySCF's grid, atom after atom."""
    grids = dft.gen_grid.Grids(mol.to_pyscf())
    grids.verbose = 0
    grids.alignment = 0
    if isinstance(level, int):
        grids.level = level
    else:
        grids.atom_grid = level
    if partition == "ssf":
        grids.becke_scheme = dft.gen_grid.stratmann
    grids.prune = PRUNINGS[prune]
    grids.radii_adjust = RADII[radii]
    return grids.build(sort_grids=False)


def check_same(grid, reference):
    """Point for point. PySCF's weights carry rounding errors of 1e-15 of what they are before the partition."""
    index = np.asarray(grid.index)
    left_out = np.setdiff1d(np.arange(len(reference.weights)), index)
    local = np.abs(reference.quadrature_weights)  # the Lebedev rule with 74 points has negative weights
    np.testing.assert_allclose(grid.coords, reference.coords[index], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(grid.atom, reference.atm_idx[index])
    error = np.abs(np.asarray(grid.weights) - reference.weights[index])
    assert (error <= 1e-12 * np.abs(reference.weights[index]) + 1e-14 * local[index]).all()
    assert (np.abs(reference.weights[left_out]) <= 2e-16 + 1e-14 * local[left_out]).all()
    assert len(np.unique(index)) == len(grid)
    assert (np.abs(np.asarray(grid.weights)) >= 1e-16).all()


@pytest.mark.parametrize("level", range(7))
def test_levels_are_those_of_pyscf(level):
    mol = molecule(WATER)
    check_same(Grid(mol, level), pyscf_grid(mol, level))


@pytest.mark.parametrize("level", [7, 8, 9])
def test_high_levels_are_those_of_pyscf(level):
    mol = molecule("H 0 0 0; F 0 0 0.917")
    check_same(Grid(mol, level), pyscf_grid(mol, level))


@pytest.mark.parametrize(
    "atoms",
    [
        "He 0.1 0.2 0.3",
        "I 0 0 0; H 0 0 1.6",
        "Kr 0 0 0; Na 0 2 2; Li 0 0 2.5",
        "Fe 0 0 0; C 0 0 1.8; O 0 0 2.9; Cl 2 2 0; H 3 3 0; H 0 3 0",
        "Ca 0 0 0; Br 0 0 2.5; Be 2 0 0; Mg -2 0 0; P 5 0 0",
        "H 0 0 0; H 0 0 500; He 0 300 0",
    ],
)
@pytest.mark.parametrize("partition", ["becke", "ssf"])
def test_elements_are_those_of_pyscf(atoms, partition):
    mol = molecule(atoms, spin=sum(NUMBERS[atom.split()[0].upper()] for atom in atoms.split(";")) % 2)
    for level in (0, 2):
        check_same(Grid(mol, level, partition=partition), pyscf_grid(mol, level, partition))


@pytest.mark.parametrize("partition", ["becke", "ssf"])
def test_ghost_atoms_are_those_of_pyscf(partition):
    """They carry the points of their element, and a share of space."""
    mol = molecule("GHOST-O 0 0 0; H 0 0 0.9; GHOST-H 0 2 0; F 1 1 1.8")
    grid = Grid(mol, 1, partition=partition)
    assert set(np.asarray(grid.atom).tolist()) == {0, 1, 2, 3}
    check_same(grid, pyscf_grid(mol, 1, partition))


@pytest.mark.parametrize("prune", ["nwchem", "sg1", "treutler", None])
@pytest.mark.parametrize("partition", ["becke", "ssf"])
def test_prunings_are_those_of_pyscf(prune, partition):
    mol = molecule("O 0 0 0; H 0 0 0.96; Cl 1.7 0 -0.24")
    check_same(Grid(mol, 2, prune=prune, partition=partition), pyscf_grid(mol, 2, partition, prune))


@pytest.mark.parametrize("radii", ["becke", None])
def test_radii_are_those_of_pyscf(radii):
    mol = molecule("O 0 0 0; H 0 0 0.96; Na 1.7 0 -0.24")
    check_same(Grid(mol, 1, radii=radii), pyscf_grid(mol, 1, radii=radii))


@pytest.mark.parametrize("level", [(30, 50), (20, 38), (40, 6), (7, 1202), (1, 14)])
def test_explicit_sizes_are_those_of_pyscf(level):
    mol = molecule(WATER)
    check_same(Grid(mol, level), pyscf_grid(mol, level))


def test_sizes_by_element_are_those_of_pyscf():
    mol = molecule("O 0 0 0; H1 0 0 0.96; H2 0.93 0 -0.24")
    grid = Grid(mol, {"O": (30, 110), "H1": (20, 86), 1: (25, 110)})
    check_same(grid, pyscf_grid(mol, {"O": (30, 110), "H1": (20, 86), "H2": (25, 110)}))
    check_same(Grid(mol, {"default": 1}), pyscf_grid(mol, 1))
    assert Grid(mol, {"H": 1}).template == GridTemplate(((8, 75, 302), (1, 30, 110), (1, 30, 110)))
    assert Grid(mol, {"h1": 1, "default": 0}).template == GridTemplate(((8, 15, 86), (1, 30, 110), (1, 10, 50)))


def test_a_large_molecule_is_that_of_pyscf():
    mol = molecule(water_cluster(12))
    for partition in ("becke", "ssf"):
        check_same(Grid(mol, 0, partition=partition), pyscf_grid(mol, 0, partition))


@pytest.mark.parametrize("partition", ["becke", "ssf"])
def test_integrals(partition):
    """Sums of Gaussians on the nuclei and between them, whose integrals are known; a ghost may sit on an atom."""
    mol = molecule("O 0 0 0; H 0 0 0.96; GHOST-H 0 0 0.96; C 1.2 0 -0.5", spin=1)
    grid = Grid(mol, 5, partition=partition)
    centres = np.concatenate([np.asarray(mol.coords), np.asarray(mol.coords[:1] + mol.coords[1:2]) / 2])
    for centre in centres:
        square = ((np.asarray(grid.coords) - centre) ** 2).sum(axis=1)
        for exponent in (0.3, 1.0, 2.5):
            value = np.asarray(grid.weights) @ np.exp(-exponent * square)
            np.testing.assert_allclose(value, (np.pi / exponent) ** 1.5, rtol=2e-5)


def test_an_atom_alone_keeps_its_weights():
    mol = molecule("Ne 1 2 3")
    grid = Grid(mol, 2)
    template = grid.template
    kept = np.asarray(grid.index)
    np.testing.assert_array_equal(grid.weights, template.weights[kept])


def test_the_owner_and_the_order_by_atom():
    mol = molecule(WATER)
    grid = Grid(mol, 1)
    order = np.asarray(grid.by_atom())
    assert (np.diff(np.asarray(grid.index)[order]) > 0).all()
    assert (np.diff(np.asarray(grid.atom)[order]) >= 0).all()
    offset = grid.coords - mol.coords[grid.atom]
    np.testing.assert_allclose(offset, grid.template.offsets[np.asarray(grid.index)], atol=1e-14)
    np.testing.assert_array_equal(grid.atom, grid.template.owner[np.asarray(grid.index)])


def test_neighbours_in_memory_are_neighbours_in_space():
    grid = Grid(molecule(water_cluster(4)), 1)
    in_order = np.linalg.norm(np.diff(grid.coords, axis=0), axis=1)
    by_atom = np.linalg.norm(np.diff(np.asarray(grid.coords)[np.asarray(grid.by_atom())], axis=0), axis=1)
    assert in_order.mean() < 0.5 * by_atom.mean()


def test_the_hilbert_curve_steps_from_cell_to_cell():
    side = 16
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    keys = np.asarray(hilbert_keys(jnp.asarray(cells, jnp.uint32), bits=4))
    order = np.argsort(keys)
    np.testing.assert_array_equal(keys[order], np.arange(side**3))
    np.testing.assert_array_equal(np.abs(np.diff(cells[order], axis=0)).sum(axis=1), 1)


@pytest.mark.parametrize("n", [1, 2, 1000, 20000])
def test_compiled_order(n):
    points = jnp.asarray(np.random.default_rng(n).normal(size=(n, 3)) * np.array([1.0, 5.0, 0.1]))
    np.testing.assert_array_equal(hilbert_order(points), reference_order(points))
    same = jnp.ones((n, 3))
    np.testing.assert_array_equal(hilbert_order(same), np.arange(n))


def test_points_of_an_index():
    """Points of a Grid, placed again without those of small weight, also where these move."""
    mol = molecule(WATER)
    grid = Grid(mol, 1)
    again = place(grid.template, mol.coords, index=grid.index)
    for name in ("coords", "atom", "index"):
        np.testing.assert_array_equal(getattr(again, name), getattr(grid, name))
    np.testing.assert_allclose(again.weights, grid.weights, rtol=1e-14)  # other groups of points are together

    def total(coords, index):
        some = place(grid.template, coords, index=index)
        return jnp.vdot(some.weights, jnp.exp(-jnp.sum((some.coords - 0.3) ** 2, axis=1)))

    want = jax.grad(total)(mol.coords, None)
    np.testing.assert_allclose(jax.grad(total)(mol.coords, grid.index), want, rtol=0, atol=1e-12)
    without = place(grid.template, mol.coords, index=jnp.concatenate([grid.index, ~grid.index[-40:]]))
    np.testing.assert_array_equal(without.coords[-40:], grid.coords[-40:])
    np.testing.assert_array_equal(without.weights[-40:], 0.0)
    np.testing.assert_allclose(total(mol.coords, without.index), total(mol.coords, grid.index), rtol=1e-14)
    too_large = jnp.full(3, grid.template.size, jnp.int32)
    assert np.isnan(jax.jit(lambda i: place(grid.template, mol.coords, index=i).weights)(too_large)).all()


@pytest.mark.parametrize(
    "index",
    [
        np.zeros(0, np.int32),
        np.zeros((2, 2), np.int32),
        np.zeros(3),
        np.array([10**6], np.int32),
        -np.array([10**6], np.int32),
    ],
)
def test_an_index_of_the_wrong_kind(index):
    mol = molecule(WATER)
    with pytest.raises(ValueError, match="Argument index"):
        place(Grid(mol, 1).template, mol.coords, index=index)


def test_inside_a_trace():
    mol = molecule(WATER)
    eager = Grid(mol, 1)
    traced = jax.jit(lambda m: Grid(m, 1))(mol)
    assert traced.size == traced.template.size > eager.size
    keep = np.asarray(traced.weights) != 0
    for name in ("coords", "weights", "atom", "index"):
        np.testing.assert_array_equal(np.asarray(getattr(traced, name))[keep], getattr(eager, name))


def test_over_a_batch_of_coordinates():
    mol = molecule(WATER)
    template = grid_template(mol, 0)
    batch = jnp.stack([mol.coords, mol.coords * 1.1, mol.coords[:, ::-1]])
    together = jax.vmap(lambda x: place(template, x))(batch)
    assert together.size == template.size
    for k in range(len(batch)):
        one = place(template, batch[k])
        np.testing.assert_array_equal(together.weights[k], one.weights)
        np.testing.assert_array_equal(together.coords[k], one.coords)


def test_one_compilation_for_all_coordinates():
    mol = molecule("H 0 0 0; F 0 0 0.9")
    template = grid_template(mol, 0)
    count = 0

    @jax.jit
    def total(coords):
        nonlocal count
        count += 1
        return place(template, coords).weights.sum()

    total(mol.coords)
    total(mol.coords * 1.2)
    assert count == 1
    assert grid_template(mol, 0) == template and hash(grid_template(mol, 0)) == hash(template)


def test_on_other_devices_it_is_plain_jax():
    """What is lowered for devices without kernels of their own calls none of the CPU's."""
    mol = molecule(WATER)
    template = grid_template(mol, 0)

    def value_and_gradient(coords):
        return jax.value_and_grad(lambda x: place(template, x).weights.max())(coords)

    lowered = jax.export.export(jax.jit(value_and_gradient), platforms=["tpu"])(mol.coords)
    assert "@jaxqc" not in lowered.mlir_module()
    assert "@jaxqc_grid_partition" in jax.jit(value_and_gradient).lower(mol.coords).as_text()


def test_padding():
    grid = Grid(molecule(WATER), 0)
    padded = pad(grid, 128)
    n = grid.size
    assert padded.size % 128 == 0 and 0 < padded.size - n < 128
    np.testing.assert_array_equal(padded.coords[:n], grid.coords)
    np.testing.assert_array_equal(padded.coords[n:], np.broadcast_to(grid.coords[-1], (padded.size - n, 3)))
    np.testing.assert_array_equal(padded.weights[n:], 0)
    np.testing.assert_array_equal(padded.by_atom()[:n], grid.by_atom())
    assert pad(padded, 128) is padded
    with pytest.raises(ValueError, match="multiple must be a positive integer, but it is 0"):
        pad(grid, 0)


def test_a_grid_is_a_frozen_pytree():
    grid = Grid(molecule(WATER), 0)
    leaves, tree = jax.tree.flatten(grid)
    assert len(leaves) == 4
    again = jax.tree.unflatten(tree, leaves)
    assert again.template == grid.template and again.partition == "becke"
    assert repr(grid) == f"Grid({len(grid)} points, 3 atoms, becke, prune nwchem)"
    with pytest.raises(AttributeError, match="cannot be changed"):
        grid.weights = grid.weights
    with pytest.raises(AttributeError, match="cannot be changed"):
        del grid.weights
    copy = pickle.loads(pickle.dumps(grid))
    np.testing.assert_array_equal(copy.weights, grid.weights)
    assert copy.template == grid.template


def test_a_grid_from_arrays():
    grid = Grid.from_arrays([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [0.5, 0.25])
    assert len(grid) == 2 and repr(grid) == "Grid(2 points)"
    with pytest.raises(ValueError, match=r"shapes \(n, 3\) and \(n,\), but they have \(2, 2\) and \(2,\)"):
        Grid.from_arrays([[0.0, 0.0], [0.0, 1.0]], [0.5, 0.25])
    with pytest.raises(ValueError, match="hold no point"):
        Grid.from_arrays(np.zeros((0, 3)), np.zeros(0))
    with pytest.raises(ValueError, match=r"atom must have the shape \(1,\), but it has \(2,\)"):
        Grid.from_arrays([[0.0, 0.0, 0.0]], [1.0], atom=[0, 1])


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"level": 10}, ValueError, "between 0 .coarse. and 9 .very fine., but for O it is 10"),
        ({"level": -1}, ValueError, "but for O it is -1"),
        ({"level": 3.0}, TypeError, "for O it is 3.0"),
        ({"level": True}, TypeError, "for O it is True"),
        ({"level": "fine"}, TypeError, "for O it is 'fine'"),
        ({"level": (75, 300)}, ValueError, "n_angular = 300 .* The nearest are 266 and 302"),
        ({"level": (75, 0)}, ValueError, "The nearest are 6"),
        ({"level": (75, 6000)}, ValueError, "The nearest are 5810"),
        ({"level": (0, 302)}, ValueError, "n_radial = 0 .* is empty"),
        ({"level": (75, 302, 1)}, TypeError, r"a pair of whole numbers"),
        ({"level": {"O": 3, "N": 2, "Q": 1}}, ValueError, "key 'Q', which is neither an element"),
        ({"level": {"H": 12}}, ValueError, "for H it is 12"),
        ({"partition": "beck"}, ValueError, "partition .* 'becke', 'ssf', but it is 'beck'.*Did you mean 'becke'"),
        ({"prune": "sg0"}, ValueError, "'nwchem', 'sg1', 'treutler', None, but it is 'sg0'"),
        ({"radii": 3}, ValueError, "radii .* but it is 3"),
    ],
)
def test_arguments_without_meaning(options, error, words):
    with pytest.raises(error, match=words):
        Grid(molecule(WATER), **options)


def test_other_mistakes():
    mol = molecule(WATER)
    with pytest.raises(TypeError, match="jaxqc.xc.Grid"):
        Grid(WATER)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"shape \(3, 3\) .* but it has \(2, 3\)"):
        place(grid_template(mol, 0), mol.coords[:2])
    with pytest.raises(ValueError, match="prune='sg1' is defined up to argon only"):
        Grid(molecule("K 0 0 0; H 0 0 2"), prune="sg1")


@pytest.mark.parametrize("n", LEBEDEV)
def test_lebedev_rules_around_an_atom(n):
    """Each integrates polynomials of degree 2 on the sphere."""
    offsets, weights = atom_grid(2, 40, n, None)
    assert len(weights) == 40 * n
    x, y, _ = offsets.T
    square = (offsets**2).sum(axis=1)
    value = weights * np.exp(-square) @ np.stack([np.ones(len(x)), x * x, x * y], axis=1)
    np.testing.assert_allclose(value, [np.pi**1.5, np.pi**1.5 / 2, 0], rtol=1e-9, atol=1e-9)
