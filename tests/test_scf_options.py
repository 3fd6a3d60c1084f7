"""Arguments, guesses, stability, reports and compilation of the self-consistent field."""

import contextlib
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from pyscf import gto, scf

import jaxqc
from jaxqc.scf import ConvergenceError
from jaxqc.scf._fock import _SHELLS, short_range, two_electron


@pytest.fixture(scope="module")
def stretched():
    return jaxqc.Molecule("H 0 0 0; H 0 0 2.5", basis="6-31g")


@pytest.fixture(scope="module")
def solved(hydrogen_fluoride):
    return jaxqc.scf(hydrogen_fluoride)


# Arguments


@pytest.mark.parametrize(
    ("options", "error", "pattern"),
    [
        ({"xc": "b3lip"}, ValueError, "'b3lip'.*b3lyp"),
        ({"guess": "atoms"}, ValueError, "did you mean 'atom'"),
        ({"guess": "huckel"}, ValueError, "must be 'atom', 'core'"),
        ({"guess": np.zeros((3, 3))}, ValueError, r"shape \(6, 6\).*\(3, 3\)"),
        ({"guess": np.full((6, 6), np.nan)}, ValueError, "not finite"),
        ({"guess": np.triu(np.ones((6, 6)))}, ValueError, "not symmetric"),
        ({"guess": np.ones((6, 6)) * 1j}, TypeError, "real density"),
        ({"guess": None}, TypeError, "guess must be"),
        ({"guess": [[1.0], [1.0, 2.0]]}, TypeError, "guess must be"),
        ({"max_cycles": 0}, ValueError, "max_cycles must be an integer between 1 and 10000"),
        ({"max_cycles": 10001}, ValueError, "max_cycles must be an integer between 1 and 10000"),
        ({"max_cycles": 10**12}, ValueError, "max_cycles must be an integer between 1 and 10000"),
        ({"max_cycles": 2.5}, ValueError, "max_cycles"),
        ({"max_cycles": True}, ValueError, "max_cycles"),
        ({"diis_space": 0}, ValueError, "diis_space"),
        ({"tolerance": 0.0}, ValueError, "tolerance must be above 0"),
        ({"tolerance": "tight"}, TypeError, "tolerance must be a number"),
        ({"gradient_tolerance": -1.0}, ValueError, "gradient_tolerance"),
        ({"threshold": 0.0}, ValueError, "threshold must be above 0"),
        ({"damping": 1.0}, ValueError, "damping must be at least 0 and below 1"),
        ({"level_shift": -0.1}, ValueError, "level_shift"),
        ({"level_shift": float("nan")}, ValueError, "level_shift"),
        ({"linear_dependence": -1.0}, ValueError, "linear_dependence"),
        ({"second_order": "always"}, ValueError, "second_order"),
        ({"second_order": 1}, ValueError, "second_order"),
        ({"restricted": "yes"}, TypeError, "restricted must be True"),
        ({"restricted": np.array([1, 0])}, TypeError, "restricted must be True"),
        ({"guess_mix": 0.5}, ValueError, "restricted=False"),
        ({"field": (0.0, 0.1)}, ValueError, "three finite numbers"),
        ({"field": (0.0, 0.0, np.inf)}, ValueError, "three finite numbers"),
        ({"field": "z"}, ValueError, "three finite numbers"),
        ({"throw": 1}, TypeError, "throw must be"),
        ({"max_cycle": 50}, TypeError, "did you mean 'max_cycles'"),
    ],
)
def test_arguments_without_meaning(hydrogen_fluoride, options, error, pattern):
    for function in (jaxqc.scf, jaxqc.energy, jaxqc.gradient):
        with pytest.raises(error, match=pattern):
            function(hydrogen_fluoride, **options)


def test_what_is_not_a_molecule():
    with pytest.raises(TypeError, match="jaxqc.Molecule"):
        jaxqc.scf("H 0 0 0")


def test_kinds(stretched):
    assert jaxqc.scf(stretched).kind == "RHF"
    assert jaxqc.scf(stretched, restricted=False).kind == "UHF"
    triplet = jaxqc.Molecule("H 0 0 0; H 0 0 2.5", basis="6-31g", spin=2)
    assert jaxqc.scf(triplet).kind == "UHF"
    assert jaxqc.scf(triplet, restricted=True).kind == "ROHF"


def test_callable_package():
    assert callable(jaxqc.scf)
    from jaxqc.scf import scf as function

    assert function is jaxqc.scf


# Ways to convergence


@pytest.mark.parametrize(
    "options",
    [
        {"guess": "core"},
        {"level_shift": 0.3},
        {"damping": 0.3},
        {"diis_space": 3},
        {"second_order": True},
        {"second_order": True, "guess": "core"},
        {"second_order": False},
        {"restricted": False},
        {"restricted": False, "second_order": True},
    ],
)
def test_all_ways_lead_to_the_same_energy(hydrogen_fluoride, solved, options):
    result = jaxqc.scf(hydrogen_fluoride, **options)
    assert abs(float(result.energy) - float(solved.energy)) < 1e-9
    if options.get("second_order") is True:
        assert int(result.second_order_cycles) == int(result.cycles) - 1


def test_guess_from_an_earlier_result(hydrogen_fluoride, solved):
    again = jaxqc.scf(hydrogen_fluoride, guess=solved)
    assert abs(float(again.energy) - float(solved.energy)) < 1e-10
    assert int(again.cycles) <= 3
    spins = jaxqc.scf(hydrogen_fluoride, guess=solved.density, restricted=False)
    assert abs(float(spins.energy) - float(solved.energy)) < 1e-10


def test_second_order_takes_over_where_diis_stalls():
    # The pi* level of NO is degenerate; DIIS wanders between its occupations.
    mol = jaxqc.Molecule("N 0 0 0; O 0 0 1.165", basis="6-31g", spin=1)
    result = jaxqc.scf(mol)
    assert bool(result.converged)
    traced = jax.jit(jaxqc.energy)(mol)
    assert abs(float(traced) - float(result.energy)) < 1e-9


# Two far fragments: their ionic state is stationary, and mirror images of it follow each other in DIIS.


@pytest.mark.parametrize("restricted", [True, False])
def test_far_hydrogen_atoms_do_not_end_as_ions(restricted):
    mole = gto.M(atom="H 0 0 0; H 0 0 20", basis="cc-pvdz", symmetry=True, verbose=0)
    mf: Any = scf.RHF(mole)
    mf.irrep_nelec, mf.conv_tol = {"A1g": 2}, 1e-12
    expected = mf.kernel()
    assert mf.converged
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 20", basis="cc-pvdz")
    result = jaxqc.scf(mol, restricted=restricted)
    assert abs(float(result.energy) - expected) < 1e-8
    np.testing.assert_allclose(result.charges, 0.0, atol=1e-6)
    np.testing.assert_allclose(float(result.gap), mf.mo_energy[1] - mf.mo_energy[0], atol=1e-6)
    traced = jax.jit(lambda m: jaxqc.energy(m, restricted=restricted))(mol)
    assert abs(float(traced) - expected) < 1e-8


def test_ions_are_refused_without_second_order():
    mol = jaxqc.Molecule("H 0 0 0; H 0 0 20", basis="cc-pvdz")
    with pytest.raises(ConvergenceError) as error:
        jaxqc.scf(mol, second_order=False)
    assert error.value.result is not None and not bool(error.value.result.converged)
    assert not bool(jaxqc.scf(mol, second_order=False, throw=False).converged)
    assert np.isnan(float(jax.jit(lambda m: jaxqc.energy(m, second_order=False))(mol)))


def test_saddle_point_of_the_guess_is_left():
    # The guess is the ionic state itself, stationary from the first cycle on and with crossed levels.
    mole = gto.M(atom="He 0 0 0; He 0 0 30", basis="6-31g", charge=2, verbose=0)
    atom = gto.M(atom="He 0 0 0", basis="6-31g", verbose=0)
    mf: Any = scf.RHF(atom)
    mf.kernel()
    ionic = np.zeros((mole.nao, mole.nao))
    ionic[:2, :2] = mf.make_rdm1()
    result = jaxqc.scf(jaxqc.Molecule.from_pyscf(mole), guess=ionic)
    symmetric: Any = scf.RHF(gto.M(atom="He 0 0 0; He 0 0 30", basis="6-31g", charge=2, symmetry=True, verbose=0))
    symmetric.irrep_nelec, symmetric.conv_tol = {"A1g": 2}, 1e-12
    assert abs(float(result.energy) - symmetric.kernel()) < 1e-8
    assert float(result.energy) < symmetric.energy_tot(ionic) - 0.1
    assert float(result.gap) > 0.0


def test_hard_cases_converge_or_raise():
    # Two far open shells described by one closed shell, a transition-metal atom, a stretched molecule.
    for atoms, basis, spin in (
        ("Cr 0 0 0", "sto-3g", 6),
        ("F 0 0 0; F 0 0 4", "6-31g", 0),
        ("C 0 0 0; C 0 0 1.24", "6-31g", 0),
    ):
        mol = jaxqc.Molecule(atoms, basis=basis, spin=spin)
        try:
            result = jaxqc.scf(mol)
        except ConvergenceError as error:
            assert error.result is not None
            assert not bool(error.result.converged)
            continue
        density = np.asarray(result.density)
        expected = (scf.UHF if spin else scf.RHF)(mol.to_pyscf()).energy_tot(density)
        assert abs(float(result.energy) - expected) < 1e-9
        assert float(result.gradient_norm) < 1e-6


# Broken symmetry and stability


def test_broken_symmetry_of_stretched_hydrogen(stretched):
    rhf = jaxqc.scf(stretched)
    uhf = jaxqc.scf(stretched, restricted=False, guess_mix=0.6)
    mole = stretched.to_pyscf()
    mf: Any = scf.UHF(mole)
    start = np.array(mf.get_init_guess())
    start[1][:2, :2], start[0][2:, 2:] = 0.0, 0.0
    mf.conv_tol = 1e-12
    assert abs(float(uhf.energy) - mf.kernel(start)) < 1e-9
    assert float(uhf.energy) < float(rhf.energy) - 1e-2
    assert float(uhf.spin_square) > 0.5
    np.testing.assert_allclose(np.abs(uhf.spin_populations), np.abs(uhf.spin_populations[0]), atol=1e-6)

    check = jaxqc.scf.stability(stretched, rhf)
    assert not check.stable and check.restricted is False and check.external < 0.0 < check.internal
    followed = jaxqc.scf(stretched, restricted=check.restricted, guess=check.density)
    assert abs(float(followed.energy) - float(uhf.energy)) < 1e-9
    assert jaxqc.scf.stability(stretched, uhf).stable


def test_stability_eigenvalue_is_that_of_the_energy(stretched):
    # Second differences of the energy over turned orbitals, by brute force in numpy.
    rhf = jaxqc.scf(stretched)
    check = jaxqc.scf.stability(stretched, rhf)
    mf: Any = scf.UHF(stretched.to_pyscf())
    orbitals = np.asarray(rhf.mo_coeff)
    nmo, pairs = orbitals.shape[1], [(a, 0) for a in range(1, orbitals.shape[1])]

    def energy(angles):
        densities = []
        for sign in (1.0, -1.0):
            generator = np.zeros((nmo, nmo))
            for (a, i), angle in zip(pairs, angles, strict=True):
                generator[a, i], generator[i, a] = sign * angle, -sign * angle
            values, vectors = np.linalg.eig(generator)
            turn = (vectors * np.exp(values)) @ np.linalg.inv(vectors)
            turned = orbitals @ turn.real
            densities.append(np.outer(turned[:, 0], turned[:, 0]))
        return mf.energy_tot(np.array(densities))

    step, size = 2e-3, len(pairs)
    units = step * np.eye(size)
    hessian = np.array(
        [
            [(energy(u + v) - energy(u - v) - energy(v - u) + energy(-u - v)) / (4 * step**2) for v in units]
            for u in units
        ]
    )
    # The vectors of `stability` hold both spins, so one angle of both together counts twice.
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian)[0] / 2, check.external, rtol=1e-4)


def test_stable_molecule(hydrogen_fluoride, solved):
    check = jaxqc.scf.stability(hydrogen_fluoride, solved)
    assert check.stable and check.density is None and check.internal > 0.1 and check.external > 0.1


def test_spin_flip_makes_an_antiferromagnet():
    triplet = jaxqc.scf(jaxqc.Molecule("H 0 0 0; H 0 0 2.5", basis="6-31g", spin=2))
    guess = jaxqc.scf.spin_flip(triplet, [1])
    singlet = jaxqc.scf(jaxqc.Molecule("H 0 0 0; H 0 0 2.5", basis="6-31g"), restricted=False, guess=guess)
    populations = np.asarray(singlet.spin_populations)
    assert populations[0] > 0.5 and populations[1] < -0.5
    with pytest.raises(ValueError, match="atoms"):
        jaxqc.scf.spin_flip(triplet, [5])
    with pytest.raises(ValueError, match="no spin density"):
        jaxqc.scf.spin_flip(jaxqc.scf(jaxqc.Molecule("He 0 0 0", basis="sto-3g")), [0])


# Reports


def test_live_report(hydrogen_fluoride, capsys):
    seen = []
    result = jaxqc.scf(hydrogen_fluoride, callback=lambda *row: seen.append(row))
    assert [row[0] for row in seen] == list(range(1, int(result.cycles) + 1))
    np.testing.assert_allclose([row[1] for row in seen], np.asarray(result.energies)[1 : len(seen) + 1], atol=1e-12)
    assert result.energies.shape == result.gradients.shape == (len(seen) + 1,)
    jaxqc.scf(hydrogen_fluoride, verbose=True)
    table = capsys.readouterr().err.splitlines()
    assert table[0].split()[0] == "cycle" and len(table) == len(seen) + 1


def test_callback_that_raises(hydrogen_fluoride, solved):
    seen = []

    def callback(cycle, *_):
        seen.append(cycle)
        if cycle == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        jaxqc.scf(hydrogen_fluoride, callback=callback)
    assert seen == [1, 2]
    with pytest.raises(TypeError, match="callback must be a function"):
        jaxqc.scf(hydrogen_fluoride, callback=3)
    assert abs(float(jaxqc.scf(hydrogen_fluoride).energy) - float(solved.energy)) < 1e-10


def test_views(solved):
    text = repr(solved)
    assert "RHF of FH, sto-3g, charge 0, spin 0: converged" in text
    assert f"{float(solved.energy):.10f} Hartree" in text and "Debye" in text
    assert "<table>" in solved._repr_html_() and "NOT CONVERGED" not in solved._repr_html_()
    assert "traced" in repr(jax.eval_shape(lambda m: jaxqc.scf(m), solved.mol))


def test_properties_against_pyscf():
    mole = gto.M(atom="N 0 0 0; H 0.8 0.6 0; H -0.8 0.6 0", basis="6-31g*", spin=1, verbose=0)
    mf: Any = scf.UHF(mole)
    mf.conv_tol = 1e-12
    mf.kernel()
    result = jaxqc.scf(jaxqc.Molecule.from_pyscf(mole))
    np.testing.assert_allclose(result.charges, mf.mulliken_pop(verbose=0)[1], atol=1e-5)
    np.testing.assert_allclose(result.dipole(), mf.dip_moment(verbose=0), atol=1e-5)
    np.testing.assert_allclose(result.dipole("au"), mf.dip_moment(unit="au", verbose=0), atol=1e-5)
    np.testing.assert_allclose(result.hcore, mf.get_hcore(), atol=1e-11)
    np.testing.assert_allclose(result.fock, mf.get_fock(dm=np.asarray(result.density)), atol=1e-9)
    summary = mf.scf_summary
    np.testing.assert_allclose(float(result.energy_one_electron), summary["e1"], atol=1e-5)
    np.testing.assert_allclose(float(result.energy_two_electron), summary["e2"], atol=1e-5)
    assert abs(float(result.gap)) > 0.1
    with pytest.raises(ValueError, match="debye"):
        result.dipole("statc")


def test_dipole_of_an_ion_depends_on_its_origin():
    mol = jaxqc.Molecule("He 0 0 0; H 0 0 0.77", basis="6-31g", charge=1)
    result = jaxqc.scf(mol)
    shift = np.array([0.3, -0.2, 1.0])
    np.testing.assert_allclose(result.dipole("au") - result.dipole("au", origin=shift), shift * 1.0, atol=1e-9)


# Compilation


@contextlib.contextmanager
def compilations():
    """A list of what is compiled meanwhile; JAX tells of each program three times, the last time of machine code."""
    events = []

    def listen(event, duration_secs, **kwargs):
        if "compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("guess, cycles", [("atom", 7), ("core", 8)])
def test_a_first_calculation_compiles_two_programs(guess, cycles):
    # GPUs take 20 ms for the smallest one, in each process
    mol = jaxqc.Molecule("He 0 0 0; He 0 0 3", basis={"He": [[0, [1.1, 1.0]], [1, [0.9, 1.0]]]})
    with compilations() as events:
        jaxqc.scf(mol, guess=guess, max_cycles=cycles, throw=False)
    assert sum("backend_compile" in event for event in events) == 2


def test_programs_of_known_functions_have_no_part_on_the_host(hydrogen_fluoride):
    program = jax.jit(lambda x: jaxqc.energy(hydrogen_fluoride.with_coords(x)))
    text = program.lower(hydrogen_fluoride.coords).as_text()
    assert "jaxqc_jk" in text and "callback" not in text


def test_second_geometry_compiles_nothing(hydrogen_fluoride):
    jaxqc.energy(hydrogen_fluoride)
    jaxqc.gradient(hydrogen_fluoride)
    jaxqc.scf(hydrogen_fluoride)
    other = hydrogen_fluoride.with_coords(hydrogen_fluoride.coords * 1.03)
    with compilations() as events:
        first = float(jaxqc.energy(other))
        jaxqc.gradient(other)
        second = float(jaxqc.scf(other).energy)
        assert events == []
        jax.jit(lambda x: x * 3.7)(1.0)
        assert events != []
    assert abs(first - second) < 1e-12
    assert abs(first - float(jaxqc.energy(hydrogen_fluoride))) > 1e-4


@pytest.mark.parametrize(
    "exchange", [((0.25, 0.0), (-0.25, 0.11)), ((0.65, 0.0), (-0.46, 0.33)), ((1.0, 0.0),), ((1.0, 0.4),), ()]
)
@pytest.mark.parametrize("nspin", [1, 2])
def test_short_range_exchange_is_full_less_long_range(exchange, nspin):
    mol = jaxqc.Molecule("H 0 0 0; F 0.1 0.2 0.9", basis="3-21g")
    density = np.random.default_rng(0).normal(size=(nspin, mol.nao, mol.nao))
    density += density.transpose(0, 2, 1)
    build = partial(jaxqc.integrals.jk, mol)
    assert short_range(exchange, _SHELLS - 1) == exchange
    terms = short_range(exchange, _SHELLS)
    # K(erf) is replaced where there is K(1/r), whose coefficient may vanish thereby.
    assert all(omega <= 0.0 for _, omega in terms) or exchange[0][1] > 0.0
    assert (0.25, 0.0) not in terms
    got, want = (np.asarray(two_electron(build, density, t)) for t in (terms, exchange))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())
