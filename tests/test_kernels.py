"""The compiled J/K kernels against libcint: every class, every instruction set, random dense densities."""

import itertools

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
    reference,
)

TOLERANCE = 1e-11  # of one integral
SUMS = 1e-10  # of J and K of random densities, which are sums of thousands


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request):
    with instruction_set(request.param) as there:
        if not there:
            pytest.skip(f"this processor has no {request.param}")
        yield request.param


def check(case, kinds="sag", omega=0.0, tolerance=SUMS, seed=1):
    density = densities(np.random.default_rng(seed), case.nao, kinds)
    value, expected = build(case, density, omega), reference(case, density, omega)
    errors = [error(v, e) for v, e in zip(value, expected, strict=True)]
    assert max(errors) <= tolerance, errors


def unit_densities(nao):
    """Symmetric densities of which J is each (ab|cd), c >= d, in turn."""
    c, d = np.tril_indices(nao)
    out = np.zeros((len(c), nao, nao))
    out[np.arange(len(c)), c, d] += 0.5
    out[np.arange(len(c)), d, c] += 0.5
    return out, c, d


def pair_densities(rng, mole, ls):
    """One density for each pair of angular momenta, nonzero only in their block."""
    of = function_ls(mole)
    pairs = list(itertools.combinations_with_replacement(ls, 2))
    out = []
    for a, b in pairs:
        block = (of[:, None] == a) & (of[None, :] == b)
        out.append(rng.normal(size=(mole.nao, mole.nao)) * (block | block.T))
    return pairs, np.array(out)


def class_errors(mole, ls, omega):
    """Errors of each class (ab|cd), from the block ab of J of a density that has only the block cd, and so for K."""
    of = function_ls(mole)
    pairs, density = pair_densities(np.random.default_rng(2), mole, ls)
    value, expected = build(mole, density, omega), reference(mole, density, omega)
    errors = {}
    for which in (0, 1):
        for n, ket in enumerate(pairs):
            for bra in pairs:
                block = np.ix_(of == bra[0], of == bra[1])
                v, e = value[which][n][block], expected[which][n][block]
                errors["JK"[which], bra, ket] = error(v, e)
    return errors


def test_each_integral_of_each_class_up_to_g(isa):
    rng = np.random.default_rng(0)
    shells = [[contraction(rng, l, 1 + (l + k) % 3, 0.3, 3.0) for l in ls] for k, ls in enumerate((range(5), range(5)))]
    case = mole(CENTERS, shells)
    density, c, d = unit_densities(case.nao)
    value, _ = build(case, density, exchange=False)
    expected = case.intor("int2e").reshape((case.nao,) * 4)[:, :, c, d]
    assert np.max(np.abs(value.transpose(1, 2, 0) - expected)) <= TOLERANCE


@pytest.mark.parametrize(("cart", "omega"), [(False, 0.4), (True, 0.0)])
def test_every_class_up_to_g(isa, cart, omega):
    rng = np.random.default_rng(0)
    # Three centres for spherical functions, two for Cartesian; 1 to 3 primitives.
    shells = [[contraction(rng, l, 1 + (l + k) % 3, 0.3, 3.0) for l in range(5)] for k in range(2 if cart else 3)]
    errors = class_errors(mole(CENTERS, shells, cart), range(5), omega)
    assert len(errors) == 450
    bad = {key: value for key, value in errors.items() if not value <= SUMS}
    assert not bad


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("ls", [((5, 1), (5, 0)), ((6, 0), (2,)), ((5, 3), (4, 1)), ((6,), (5,)), ((6, 1), (3,))])
def test_samples_with_h_and_i(isa, ls, cart):
    rng = np.random.default_rng(3)
    shells = [[contraction(rng, l, 1 + l % 2, 0.3, 1.0) for l in of_center] for of_center in ls]
    check(mole(0.6 * CENTERS, shells, cart))


@pytest.mark.slow
@pytest.mark.parametrize("omega", [0.0, 0.3])
@pytest.mark.parametrize("cart", [False, True])
def test_every_class_up_to_i(isa, cart, omega):
    rng = np.random.default_rng(4)
    shells = [[contraction(rng, l, 1, 0.3, 1.0) for l in range(7)] for _ in range(2)]
    errors = class_errors(mole(0.6 * CENTERS, shells, cart), range(7), omega)
    bad = {key: value for key, value in errors.items() if not value <= SUMS}
    assert not bad


@pytest.mark.parametrize(
    ("lmax", "nprims"),
    [(1, (1, 2, 3, 4, 5)), (1, (7, 6, 1, 1, 1)), (2, (5, 1, 4, 2, 3)), (2, (3, 3, 8)), (3, (5, 1, 3)), (4, (2, 4))],
)
def test_contractions_of_different_lengths(isa, nprims, lmax):
    rng = np.random.default_rng(5)
    shells = [[contraction(rng, l, n, 0.2, 4.0) for l in range(lmax + 1) for n in nprims[k::2]] for k in range(2)]
    check(mole(CENTERS, shells))


@pytest.mark.parametrize("cart", [False, True])
def test_general_contractions(isa, cart):
    rng = np.random.default_rng(6)
    shells = [[contraction(rng, l, 4, 0.1, 20.0, nctr=3) for l in range(3)] for _ in range(2)]
    check(mole(CENTERS, shells, cart))


@pytest.mark.parametrize("omega", [0.1, 0.33, 1.0, 5.0])
def test_attenuated_operator(isa, omega):
    rng = np.random.default_rng(7)
    shells = [[contraction(rng, l, 2, 0.2, 20.0) for l in range(4)] for _ in range(2)]
    check(mole(CENTERS, shells), omega=omega)


@pytest.mark.parametrize("cart", [False, True])
def test_exponents_from_1e_minus_2_to_1e6_on_one_center(isa, cart):
    exponents = [1e6, 3e4, 1e3, 40.0, 1.0, 1e-2]
    shells = [[[l, [e, 1.0]] for l in range(5) for e in exponents[l % 2 :: 2]]]
    check(mole(CENTERS, shells, cart))


@pytest.mark.parametrize("distance", [0.1, 1.8, 30.0])
def test_exponents_from_1e_minus_2_to_1e6_on_two_centers(isa, distance):
    exponents = [1e6, 1e3, 40.0, 1.0, 1e-2]
    shells = [[[l, [e, 1.0]] for l in range(2) for e in exponents] for _ in range(2)]
    check(mole(distance * np.array([[0, 0, 0], [0.48, 0.6, 0.64]]), shells))


@pytest.mark.parametrize("exponent", [0.02, 0.5])
@pytest.mark.parametrize("distance", [20.0, 50.0])
def test_distant_centers(isa, distance, exponent):
    rng = np.random.default_rng(8)
    shells = [[contraction(rng, l, 2, exponent, 4 * exponent) for l in range(5)] for _ in range(2)]
    check(mole(distance * np.array([[0, 0, 0], [0.48, 0.6, 0.64]]), shells))


def test_coincident_centers(isa):
    rng = np.random.default_rng(9)
    shells = [[contraction(rng, l, 2, 0.3, 3.0) for l in range(4)] for _ in range(3)]
    check(mole(np.array([[0.1, 0.2, 0.3]] * 2 + [[0.1, 0.2, 1.3]]), shells))


@pytest.mark.parametrize("axis", range(3))
def test_centers_on_an_axis(isa, axis):
    rng = np.random.default_rng(10)
    shells = [[contraction(rng, l, 2, 0.3, 3.0) for l in range(4)] for _ in range(3)]
    check(mole(np.array([0.0, 1.3, -1.7])[:, None] * np.eye(3)[axis], shells))


@pytest.mark.parametrize("n", range(1, 11))
@pytest.mark.parametrize("l", [0, 1])
def test_any_number_of_pairs(isa, l, n):
    rng = np.random.default_rng(11)
    check(mole(CENTERS, [[contraction(rng, l, 1 + k % 3, 0.2, 9.0) for k in range(n)]]))


@pytest.mark.parametrize("cart", [False, True])
@pytest.mark.parametrize("l", range(7))
def test_one_shell(isa, l, cart):
    check(mole(CENTERS, [[[l, [0.8, 1.0]]]], cart))


@pytest.mark.parametrize("kinds", ["s", "a", "g", "ga", "aaa", "sgsgs"])
def test_densities_of_any_symmetry(isa, kinds):
    rng = np.random.default_rng(12)
    check(mole(CENTERS, [[contraction(rng, l, 2, 0.3, 3.0) for l in range(3)] for _ in range(3)]), kinds)


def test_zero_densities_and_single_elements():
    case = mole(CENTERS, [[[0, [1.1, 1.0]], [2, [0.7, 1.0]]], [[1, [0.9, 1.0]]]])
    density = np.zeros((4, case.nao, case.nao))
    density[1, 0, 3] = 1.0
    density[3, 8, 8] = -2.0
    value, expected = build(case, density), reference(case, density)
    for v, e in zip(value, expected, strict=True):
        assert error(v, e) <= 1e-13
        assert np.all(v[0] == 0) and np.all(v[2] == 0)
    assert np.all(build(case, 0 * density)[0] == 0)


def test_one_matrix_alone_is_what_both_are():
    rng = np.random.default_rng(13)
    case = mole(CENTERS, [[contraction(rng, l, 2, 0.3, 3.0) for l in range(4)] for _ in range(2)])
    density = densities(rng, case.nao)
    j, k = build(case, density)
    only_j, no_k = build(case, density, exchange=False)
    no_j, only_k = build(case, density, coulomb=False)
    assert no_k.shape == no_j.shape == (0, case.nao, case.nao)
    assert error(only_j, j) <= 1e-14 and error(only_k, k) <= 1e-14


def test_symmetry_of_the_results_is_exact():
    rng = np.random.default_rng(14)
    case = mole(CENTERS, [[contraction(rng, l, 2, 0.3, 3.0) for l in range(4)] for _ in range(2)])
    j, k = build(case, densities(rng, case.nao, "sag"))
    assert np.all(j == j.transpose(0, 2, 1))
    assert np.all(k[0] == k[0].T) and np.all(k[1] == -k[1].T)
    assert np.max(np.abs(j[1])) == 0
