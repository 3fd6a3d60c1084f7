"""Combined functions of general contractions: the same matrices over fewer primitives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxqc
from jaxqc.integrals._decontraction import two_electron_shells
from jaxqc.integrals._elimination import eliminated
from jaxqc.integrals._jk import jk
from jaxqc.integrals._shells import ShellList


@pytest.mark.parametrize(
    ("atom", "basis", "zeros"),
    [
        ("O 0 0 0; F 0.3 0.9 1.1", "cc-pvdz", 4),
        ("S 0 0 0; N 0 0.9 1.4", "cc-pvdz", 10),  # three functions s, two functions p
        ("H 0 0 0; H 0.3 0.9 1.1", "cc-pvtz", 0),
    ],
)
@pytest.mark.parametrize("cart", [False, True])
def test_same_matrices(atom, basis, zeros, cart):
    mol = jaxqc.Molecule(atom, basis=basis, spin=int(zeros > 0), cart=cart)
    plain = ShellList.from_molecule(mol)
    shells, matrix = two_electron_shells(mol)
    assert int(jnp.sum(shells.coefficients == 0.0)) == zeros and (matrix is None) == (zeros == 0)
    density = jnp.asarray(np.random.default_rng(0).normal(size=(2, mol.nao, mol.nao)))
    expected = jk(plain, density, cart=cart, coulomb=True, exchange=True, omega=0.0, threshold=1e-15)
    found = jaxqc.integrals.jk(mol, density, threshold=1e-15)
    for a, b in zip(jax.tree.leaves(found), expected, strict=True):
        assert jnp.max(jnp.abs(a - b)) < 2e-12 * jnp.max(jnp.abs(b))


def test_derivatives_with_respect_to_coefficients():
    mol = jaxqc.Molecule("O 0 0 0", basis="cc-pvdz", spin=2)
    density = jnp.asarray(np.random.default_rng(1).normal(size=(1, mol.nao, mol.nao)))

    def combined(exponents, coefficients):
        changed = mol.with_exponents(exponents).with_coefficients(coefficients)
        j, _ = jaxqc.integrals.jk(changed, density, exchange=False, threshold=1e-15)
        assert j is not None
        return jnp.sum(j**2)

    def plain(exponents, coefficients):
        shells = ShellList.from_molecule(mol.with_exponents(exponents).with_coefficients(coefficients))
        j, _ = jk(shells, density, cart=False, coulomb=True, exchange=False, omega=0.0, threshold=1e-15)
        return jnp.sum(j**2)

    point = mol.exponents, mol.coefficients
    for a, b in zip(jax.grad(combined, (0, 1))(*point), jax.grad(plain, (0, 1))(*point), strict=True):
        assert jnp.max(jnp.abs(a - b)) < 1e-10 * jnp.max(jnp.abs(b))


def test_functions_that_hardly_differ_are_left_alone():
    text = """
    He S
      8.0  0.3  0.3
      2.0  0.4  0.4000001
      0.5  0.5  0.5
    """
    mol = jaxqc.Molecule("He 0 0 0", basis={"He": text})
    shells = ShellList.from_molecule(mol)
    coefficients, matrix = eliminated(mol.shells, mol.cart, shells.exponents, shells.coefficients, mol.nao)
    assert matrix is not None and jnp.array_equal(matrix, jnp.eye(2))
    assert jnp.array_equal(coefficients, shells.coefficients)


@pytest.mark.parametrize(
    "columns", [[(0.3, 0.4, 0.5)] * 2, [(1.0, 0.9, 0.1), (1.0, 0.0, 0.05)], [(0.3, 0.4, 0.5), (-0.3, -0.4, -0.5)]]
)
def test_derivatives_are_numbers_where_nothing_can_be_combined(columns):
    rows = "".join(f"{e} {a} {b}\n" for e, a, b in zip((8.0, 2.0, 0.5), *columns, strict=True))
    mol = jaxqc.Molecule("He 0 0 0; He 0 0.3 1.2", basis={"He": "He S\n" + rows})

    def total(exponents, coefficients, direct):
        changed = mol.with_exponents(exponents).with_coefficients(coefficients)
        if direct:
            shells = ShellList.from_molecule(changed)
            keywords = dict(cart=False, coulomb=True, exchange=False, omega=0.0, threshold=1e-15)
            return jnp.sum(jk(shells, jnp.eye(4)[None], **keywords)[0])  # pyright: ignore[reportArgumentType]
        return sum(jnp.sum(x) for x in jax.tree.leaves(jaxqc.integrals.jk(changed, jnp.eye(4), exchange=False)))

    found, expected = (jax.grad(total, (0, 1))(mol.exponents, mol.coefficients, direct) for direct in (False, True))
    for a, b in zip(found, expected, strict=True):
        assert jnp.max(jnp.abs(a - b)) <= 1e-9 * jnp.max(jnp.abs(b))
