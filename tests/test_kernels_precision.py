"""Electron-repulsion integrals where digits are easily lost, against 60-digit arithmetic; libcint loses some itself.

A product of a tight and a diffuse function sits at the tight one's centre. Recurrences that start from the other
centre cancel then: the more, the larger the distance in units of the tight function's width.
"""

import numpy as np
import pytest
from two_electron_cases import (
    CENTERS,
    INSTRUCTION_SETS,
    build,
    contraction,
    densities,
    error,
    function_ls,
    instruction_set,
    mole,
    shell_list,
)
from two_electron_reference import Charge, Function, integral

import jaxqc
from jaxqc.integrals import eri

DIRECTION = np.array([0.48, 0.6, 0.64])
TOLERANCE = 1e-11


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request):
    with instruction_set(request.param) as there:
        if not there:
            pytest.skip(f"this processor has no {request.param}")
        yield request.param


def exact(case, places):
    """The integrals at the places (i, j, k, l) to 60 digits, as floats."""
    shells = shell_list(case)
    offsets = shells.cart_offsets if case.cart else shells.sph_offsets

    def function(i):
        shell = int(np.searchsorted(offsets, i, side="right")) - 1
        return Function(shells, shell, i - offsets[shell], case.cart)

    values = []
    for i, j, k, l in places:
        bra, ket = Charge(function(i), function(j)), Charge(function(k), function(l))
        values.append(float(integral(bra, ket)))
    return np.array(values)


def check(case, number=12):
    """The whole tensor, and J and K of a random density, where they differ most from libcint's and at random places."""
    ours = np.asarray(eri(jaxqc.Molecule.from_pyscf(case)))
    theirs = case.intor("int2e").reshape(ours.shape)
    worst = np.argsort(-np.abs(ours - theirs), axis=None)[: 8 * number : 8]  # of eight equal ones, about one
    places = np.concatenate([worst, np.random.default_rng(0).integers(0, ours.size, number // 2)])
    places = np.transpose(np.unravel_index(places, ours.shape))
    expected = exact(case, places)
    scale = max(1.0, np.max(np.abs(theirs)))
    assert np.max(np.abs(ours[tuple(places.T)] - expected)) <= TOLERANCE * scale
    density = densities(np.random.default_rng(1), case.nao, "g")
    j, k = build(case, density)
    assert error(j[0], np.einsum("ijkl,lk->ij", ours, density[0])) <= TOLERANCE
    assert error(k[0], np.einsum("ijkl,jk->il", ours, density[0])) <= TOLERANCE


def test_the_reference_against_libcint():
    rng = np.random.default_rng(2)
    case = mole([0 * DIRECTION, DIRECTION], [[contraction(rng, l, 2, 0.3, 3.0) for l in ls] for ls in ((0, 2), (1, 3))])
    theirs = case.intor("int2e").reshape((case.nao,) * 4)
    places = rng.integers(0, case.nao, (40, 4))
    assert np.max(np.abs(exact(case, places) - theirs[tuple(places.T)])) <= 1e-14


def tight_and_diffuse(ls, tight, diffuse, order, number=12):
    shells = [[[ls[0], [tight, 1.0]]], [[ls[1], [diffuse, 1.0]]]]
    check(mole([0 * DIRECTION, 1.8 * DIRECTION][::order], shells[::order]), number)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("tight", "diffuse"), [(50.0, 0.5), (1e3, 0.05), (1e6, 1e-2)])
@pytest.mark.parametrize("ls", [(1, 1), (2, 2), (3, 3), (4, 4), (2, 1), (1, 2), (3, 1), (1, 3), (4, 2), (2, 4), (3, 4)])
def test_tight_and_diffuse_functions(ls, tight, diffuse, order):
    tight_and_diffuse(ls, tight, diffuse, order)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("ls", [(2, 2), (4, 4), (1, 3)])
def test_tight_and_diffuse_functions_with_each_instruction_set(isa, ls, order):
    tight_and_diffuse(ls, 1e3, 0.05, order, number=4)


@pytest.mark.parametrize(("exponent", "distance"), [(0.3, 4.0), (1.0, 1.8)])
@pytest.mark.parametrize("ls", [(4, 4), (5, 4), (5, 5), (6, 5), (6, 6)])
def test_similar_functions_of_high_angular_momentum(ls, exponent, distance):
    shells = [[[ls[0], [exponent, 1.0]]], [[ls[1], [1.2 * exponent, 1.0]]]]
    check(mole([0 * DIRECTION, distance * DIRECTION], shells), number=4)


@pytest.mark.parametrize("cart", [False, True])
def test_contracted_with_tight_primitives(isa, cart):
    shells = [[[l, [300.0, 0.2], [20.0, 0.4], [1.0, 0.5]] for l in (0, 3)], [[l, [0.1, 1.0]] for l in (1, 2)]]
    check(mole([0 * DIRECTION, 2.2 * DIRECTION], shells, cart), number=2)


def test_contracted_functions_class_by_class():
    """To 1e-12 of the largest integral of each class; libcint has more digits of these."""
    ls, rng = range(5), np.random.default_rng(45)
    case = mole(CENTERS[:2], [[contraction(rng, l, (k + l) % 3 + 1, 0.3, 8.0) for l in ls] for k in range(2)])
    theirs = case.intor("int2e")
    errors = np.abs(np.asarray(eri(jaxqc.Molecule.from_pyscf(case))).reshape(theirs.shape) - theirs)
    of, pairs = function_ls(case), [(a, b) for a in ls for b in range(a + 1)]
    members = [np.nonzero((of[:, None] == a) & (of == b)) for a, b in pairs]
    for (i, j), bra in zip(members, pairs, strict=True):
        for (k, l), ket in zip(members, pairs, strict=True):
            at = i[:, None], j[:, None], k, l
            assert np.max(errors[at]) <= 1e-12 * np.max(np.abs(theirs[at])), (bra, ket)
