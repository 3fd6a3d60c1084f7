"""Kernels of two-electron integrals in single precision, and the division of quartets between two precisions."""

import jax.numpy as jnp
import numpy as np
import pytest
import test_cuda_eri as double
import two_electron_cases as cases
from test_cuda_eri import change, emulated, label  # noqa: F401

import jaxqc
from jaxqc.integrals import _cuda_classes as cuda_classes
from jaxqc.integrals import _cuda_jk as cuda_jk
from jaxqc.integrals import _cuda_pairs as cuda_pairs
from jaxqc.integrals._cuda_classes import Quartets, Variant

# Error of an integral of functions that are not contracted, in parts of its Schwarz bound, on which the choice of
# quartets relies; and that with f functions, whose horizontal recurrences lose a digit.
ERROR, HIGH = 1e-6, 1e-5
MIXED = Variant(False, mixed=True)


def in_single_precision(case, density, variant, classes):
    """J and K of some classes, all quartets in single precision."""
    bounds = cuda_pairs.density_bounds(case.plan.ls, case.cart, jnp.asarray(density))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_classes, "classes", lambda pairs: classes)
        sums = cuda_jk.blocked(
            case.plan, case.pairs, jnp.asarray(density), bounds, variant, case.omega, 1e-16, test=False, single=1e30
        )
    sums = [cuda_jk.floating(x, variant) for x in sums]
    return [np.asarray(cuda_pairs.unblock(case.plan.ls, case.cart, x, 1)) for x in sums]


def check_class(case, bra, ket, variant=MIXED):
    density = case.densities("s" * variant.sets)
    got = in_single_precision(case, density, variant, [(bra, ket)])
    first = cuda_pairs._first_functions(case.plan.ls, case.cart)
    schwarz = np.sqrt(np.einsum("ijij->ij", case.eri))
    # The largest of each block of shells, as kernels have it.
    largest = np.maximum.reduceat(np.maximum.reduceat(schwarz, first[:-1], 0), first[:-1], 1)
    schwarz = np.repeat(np.repeat(largest, np.diff(first), 0), np.diff(first), 1)
    for n, d in enumerate(np.abs(density)):
        bounds = (schwarz * np.sum(schwarz * d), schwarz @ d @ schwarz)
        for found, expected, bound in zip(got, case.reference(density, bra, ket), bounds, strict=True):
            error = np.abs(found[n] - expected[n])
            assert np.all(error <= (HIGH if max(*bra, *ket) > 2 else ERROR) * bound)
            assert np.max(error) > 1e-12 * np.max(bound)  # it was single precision


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("omega", [0.0, 0.4])
@pytest.mark.parametrize(
    ("tier", "bra", "ket"),
    [
        ("registers", (0, 0), (0, 0)),
        ("registers", (1, 0), (1, 0)),
        ("registers", (1, 1), (1, 1)),
        ("lanes", (1, 1), (1, 0)),
    ],
    ids=label,
)
def test_integrals_in_single_precision_keep_to_their_bounds(tier, bra, ket, omega, change):  # noqa: F811
    change("shape", lambda *_: (tier == "registers", 1))
    check_class(double.case(0, 1, most=1, omega=omega), bra, ket)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("tier", "bra", "ket", "cart", "sets"),
    [("registers", (2, 0), (1, 0), True, 2), ("lanes", (2, 1), (2, 0), False, 2)],
    ids=label,
)
def test_d_functions_and_two_densities_in_single_precision(tier, bra, ket, cart, sets, change):  # noqa: F811
    change("shape", lambda *_: (tier == "registers", 1))
    check_class(double.case(0, 1, 2, ncenter=2, most=1, cart=cart), bra, ket, Variant(cart, sets=sets, mixed=True))


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("bra", "ket"), double.all_classes(0, 1, 2, 3), ids=label)
def test_each_class_to_f_in_single_precision(bra, ket):
    check_class(double.Case(tuple(dict.fromkeys((*bra, *ket))), ncenter=2, most=1), bra, ket)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("l", [0, 1])
def test_each_quartet_is_computed_in_one_precision(l, deterministic, change, monkeypatch):  # noqa: F811
    """Shells far apart and near: with any limit, both precisions together give all integrals."""
    change("shape", lambda *_: (l == 0, 1))
    monkeypatch.setattr(cuda_jk, "deterministic", lambda: deterministic)
    places = np.array([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [5.0, 1.0, 0.0], [8.0, 0.0, 2.0]])
    mole = cases.mole(places, [[[l, [0.9, 1.0]], [l, [0.4, 1.0]]]] * 4)
    host = cases.shell_list(mole)
    centers, exponents, coefficients = map(jnp.asarray, (host.centers, host.exponents, host.coefficients))
    density = cases.densities(np.random.default_rng(3), mole.nao, "s")
    want = cases.reference(mole, density)
    errors = []
    for limit in (1e-7, 1e-3):
        monkeypatch.setattr(cuda_jk, "SINGLE", limit)
        got = cuda_jk.lowered(
            centers,
            exponents,
            coefficients,
            jnp.asarray(density),
            jnp.zeros(1, jnp.int32),
            layout=(host.ls, host.nprims),
            cart=False,
            coulomb=True,
            exchange=True,
            omega=0.0,
            threshold=1e-13,
            symmetric=True,
            parts=1,
            mixed=True,
        )
        errors.append(max(float(np.max(np.abs(np.asarray(g) - w))) for g, w in zip(got, want, strict=True)))
    assert errors[0] < 1e-12 and 1e-12 < errors[1] < 1e-8


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("tier", ["registers", "lanes"])
def test_quartets_of_single_primitives_have_their_own_kernel(tier, change):  # noqa: F811
    p = double.case(0, 1)
    change("other_shapes", lambda kind: {} if kind == "single" else {"1010": (tier, 1), "1111": (tier, 1)})
    for coulomb in (False, True):
        made = cuda_classes.kernels((1, 1), (1, 1), Variant(False, coulomb=coulomb))
        assert [dict(k.unit.defines)["QUARTETS"] for k in made] == [Quartets.CONTRACTED, Quartets.UNCONTRACTED]
        for pair in ((1, 0), (1, 1)):
            assert {n * m for n in p.plan.nprims for m in p.plan.nprims} > {1}
            double.check_class(p, pair, pair, coulomb=coulomb)


def test_an_unknown_precision_is_refused():
    mol = jaxqc.Molecule("He 0 0 0", basis="sto-3g")
    with pytest.raises(
        ValueError, match="precision of jaxqc.integrals.jk must be 'double' or 'mixed'.*'mixt'.*mean 'mixed'"
    ):
        jaxqc.integrals.jk(mol, jnp.ones((1, 1)), precision="mixt")
    with pytest.raises(ValueError, match="precision of jaxqc.scf must be 'double' or 'mixed', but it is 32"):
        jaxqc.scf(mol, precision=32)


def test_on_cpus_mixed_precision_is_double_precision():
    mol = jaxqc.Molecule("H 0 0 0; F 0 0 0.9", basis="sto-3g")
    assert float(jaxqc.energy(mol, precision="mixed")) == float(jaxqc.energy(mol))
