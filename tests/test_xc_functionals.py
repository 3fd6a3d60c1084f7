"""Functionals against libxc (through PySCF), and their behaviour at the edges of their domain."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf.dft import libxc

from jaxqc.xc import Features
from jaxqc.xc.functionals import functional, names
from jaxqc.xc.functionals import wpbe as wpbe_module

NPOINTS = 100_000
NEDGE = 2560  # points of `edge_features`; one more shape is one more set of executables
# Names that PySCF's parser lacks.
LIBXC_NAME = {"svwn_rpa": "slater,vwn_rpa", "pw92": "spw92", "lc-wpbe": "lc_wpbe"}
ALL = [name for name in names() if name != "hf"]


def random_features(seed, n, closed_shell=False, floor=1e-8):
    """rho 1e-8 to 1e3, any polarisation, reduced gradient 1e-3 to 10, alpha 1e-3 to 30: (2, n), (2, 3, n), (2, n)."""
    rng = np.random.default_rng(seed)
    total = 10 ** rng.uniform(np.log10(2 * floor), 3, n)
    zeta = rng.uniform(-1, 1, n) * (0 if closed_shell else 1)
    rho = np.maximum(np.stack([total * (1 + zeta) / 2, total * (1 - zeta) / 2]), floor)
    size = 10 ** rng.uniform(-3, 1, (2, n)) * 2 * (6 * np.pi**2) ** (1 / 3) * rho ** (4 / 3)
    grad = rng.normal(size=(2, 3, n))
    grad *= size[:, None] / np.linalg.norm(grad, axis=1)[:, None]
    tau = 0.3 * (6 * np.pi**2) ** (2 / 3) * rho ** (5 / 3) * 10 ** rng.uniform(-3, 1.5, (2, n))
    if closed_shell:
        grad[1], tau[1] = grad[0], tau[0]
    tau = tau + (grad**2).sum(1) / (8 * rho)
    if closed_shell:
        tau[1] = tau[0]
    return rho, grad, tau


def energy_and_gradient(xc, rho, grad, tau):
    """f (n,) and its derivatives in rho (2, n), grad (2, 3, n), tau (2, n), as NumPy arrays.

    Not compiled as one: operation by operation, whose executables all functionals share.
    """

    def total(rho, grad, tau):
        density = xc.energy_density(Features.of(rho, grad, tau))
        return density.sum(), density

    # What the test gives are NumPy arrays; a functional sees JAX arrays.
    arguments = [jnp.asarray(a) for a in (rho, grad, tau)]
    (_, density), slopes = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(*arguments)
    return np.asarray(density), *(np.asarray(s) for s in slopes)


def reference(name, rho, grad, tau, closed_shell):
    """The same from libxc, in the same shapes; for a closed shell from its code for unpolarised densities."""
    name = LIBXC_NAME.get(name, name)
    rows = {"LDA": 1, "GGA": 4, "MGGA": 5}[libxc.xc_type(name)]
    x = np.concatenate([rho[:, None], grad, tau[:, None]], axis=1)[:, :rows]
    if closed_shell:
        x = x.sum(0)
    x = x[..., 0, :] if rows == 1 else x
    exc, slopes = (libxc.eval_xc_eff(name, x, deriv=order, spin=1 - closed_shell) for order in (0, 1))
    slopes = slopes.reshape(-1, rows, rho.shape[1])  # one spin's worth for a closed shell: it is that of both
    full = np.zeros((2, 5, rho.shape[1]))
    full[:, :rows] = slopes
    return exc * rho.sum(0), full[:, 0], full[:, 1:4], full[:, 4]


# Where libxc itself loses digits or screens, the comparison starts at a higher density of each spin.
FLOOR = {
    # Its closed form of the hole's integral cancels like (omega/k_F)^8; ours is compared with quadrature below.
    "hse06": 2e-5,
    "lc-wpbe": 1e-3,
}


@pytest.mark.parametrize("closed_shell", [False, True], ids=["polarised", "closed-shell"])
@pytest.mark.parametrize("name", ALL)
def test_equals_libxc(name, closed_shell):
    n = NPOINTS // 2
    rho, grad, tau = random_features(len(name) + closed_shell, n, closed_shell, FLOOR.get(name, 1e-8))
    got = energy_and_gradient(functional(name), rho, grad, tau)
    want = reference(name, rho, grad, tau, closed_shell)
    # Where f or a derivative passes through zero, its terms' rounding is what can be asked for.
    size = rho.sum(0) ** (4 / 3)
    np.testing.assert_array_less(abs(got[0] - want[0]), 1e-10 * abs(want[0]) + 1e-12 * size)
    scales = (rho ** (1 / 3), size / np.linalg.norm(grad, axis=1)[:, None], size / tau)
    for mine, theirs, scale in zip(got[1:], want[1:], scales, strict=True):
        np.testing.assert_array_less(abs(mine - theirs), 1e-8 * abs(theirs) + 1e-10 * scale)


def edge_features():
    """Empty, one-spin and vanishing densities with all kinds of gradient and tau, physical and not."""
    densities = (0.0, 1e-20, 1e-16, 1e-15, 2e-15, 1e-10, 0.3, 1e3)
    points = []
    for ra, rb, size, kinetic, direction in itertools.product(
        densities, densities, (0.0, 1e-15, 1.0, "tail"), (0.0, 1e-25, 1.0, "bound", "below"), (1, -1)
    ):
        ga, gb = (r if size == "tail" else size for r in (ra, rb))
        # tau on its bound |grad|^2 / (8 rho), half of it, and not at all
        factor = {"bound": 1.0, "below": 0.5}.get(str(kinetic))
        ta, tb = (
            (kinetic if factor is None else factor * g * g / (8 * r) if r else 0.0) for g, r in ((ga, ra), (gb, rb))
        )
        points.append((ra, rb, 0.6 * ga, 0.8 * ga, 0.0, direction * gb, 0.0, 0.0, ta, tb))
    x = np.array(points).T
    return x[:2], x[2:8].reshape(2, 3, -1), x[8:]


EDGE_NAMES = [n for n in ALL if n not in ("b3lyp5", "bhandhlyp", "pbe0", "blyp", "tpssh", "r2scan0")]
# One of each family in every run.
EDGE_QUICK = ("svwn", "bp86", "b3lyp", "tpss", "r2scan", "m06-2x", "wb97x", "lc-wpbe")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in EDGE_QUICK else [pytest.mark.slow]) for n in EDGE_NAMES]
)
def test_edges_are_finite_to_third_derivatives(name):
    xc = functional(name)
    x = tuple(jnp.asarray(a) for a in edge_features())
    direction = tuple(jnp.asarray(np.random.default_rng(7).uniform(0.5, 1.0, a.shape)) for a in x)

    def slope(x):
        return jax.grad(lambda *a: xc.energy_density(Features.of(*a)).sum(), argnums=(0, 1, 2))(*x)

    def second(x):
        return jax.jvp(slope, (x,), (direction,))[1]

    first, (two, three) = slope(x), jax.jvp(second, (x,), (direction,))
    energy = xc.energy_density(Features.of(*x))
    for order, values in enumerate(([energy], first, two, three)):
        for value in values:
            assert np.isfinite(np.asarray(value)).all(), f"derivative of order {order}"
    assert (np.asarray(energy)[np.asarray(x[0].sum(0)) == 0] == 0).all()


@pytest.mark.parametrize("name", ["b3lyp", "r2scan", "wb97x"])
def test_second_and_third_derivatives_equal_differences_of_lower_ones(name):
    """Along a line of densities: jvp of the gradient against central differences of the gradient, and once more."""
    xc = functional(name)
    x = tuple(jnp.asarray(a) for a in random_features(3, NEDGE, floor=1e-3))
    direction = tuple(0.1 * a for a in x)

    def energy(t):
        return xc.energy_density(Features.of(*(a + t * d for a, d in zip(x, direction, strict=True))))

    def derivative(f):
        return lambda t: jax.jvp(f, (t,), (1.0,))[1]

    functions = [energy]
    for _ in range(3):
        functions.append(derivative(functions[-1]))
    h = 1e-4
    for lower, upper in itertools.pairwise(functions):
        value = np.asarray(upper(0.0))
        difference = (np.asarray(lower(h)) - np.asarray(lower(-h))) / (2 * h)
        np.testing.assert_allclose(value, difference, rtol=2e-6, atol=1e-8 * abs(value).max())


@pytest.mark.parametrize("name", ["svwn", "pbe", "b3lyp", "bp86"])
def test_empty_channel_keeps_its_potential(name):
    """At full polarisation energy and potential, that of the empty spin too, are libxc's, and the latter not zero."""
    rho, grad, tau = np.zeros((2, NEDGE)), np.zeros((2, 3, NEDGE)), np.zeros((2, NEDGE))
    # Not denser: there 1 - zeta, which libxc computes from zeta, has no digits.
    rho[0], grad[0, 0] = np.geomspace(1e-2, 1, NEDGE), 0.1
    density, slope, _, _ = energy_and_gradient(functional(name), rho, grad, tau)
    want = reference(name, rho, grad, tau, False)
    np.testing.assert_allclose(density, want[0], rtol=1e-8)
    # The floor of the density, 1e-15 here and not the same for all of libxc, is 1e-4 of correlation potential.
    np.testing.assert_allclose(slope, want[1], rtol=2e-4, atol=1e-4)
    assert abs(slope[1]).mean() > 1e-2


def test_one_orbital_has_the_derivative_of_the_physical_side():
    """tau of one orbital is its bound up to rounding: a last digit below it must not change the potential."""
    rho, grad, _ = random_features(5, NEDGE, floor=1e-3)
    bound = (grad**2).sum(1) / (8 * rho)
    for name in ("tpss", "scan", "r2scan", "m06-l"):
        above = energy_and_gradient(functional(name), rho, grad, bound * (1 + 1e-15))
        below = energy_and_gradient(functional(name), rho, grad, bound * (1 - 1e-15))
        for a, b in zip(above, below, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * abs(a).max())


def test_short_range_pbe_equals_quadrature_of_the_hole():
    """F(s, w) against numerical integration over the hole, where libxc's closed form has no digits left."""
    from scipy.integrate import quad
    from scipy.special import erfc

    a, b, d = 1.0161144, -0.37170836, 0.57786348
    for w, s2 in itertools.product((0.05, 1.0, 5.0, 13.9, 14.1, 100.0), (0.01, 4.0, 1e3)):
        scaled = wpbe_module._scaled_s2(jnp.asarray(s2))
        sh, c, e = (float(v) for v in wpbe_module._hole(scaled))

        def erfc_fit(x, w=w):
            if w > 14:
                return np.exp(-2 * x * x)
            return np.exp(-wpbe_module._FIT_EXPONENT * x * x) * np.polyval(wpbe_module._FIT[::-1], x)

        def integrand(y, w=w, sh=sh, c=c, e=e):
            k = 4 * a / 9
            first = a / y * (np.expm1(-d * y * y) + k * y * y / (1 + k * y * y)) * erfc_fit(w * y)
            rest = (b * y + c * y**3 + e * y**5) * np.exp(-d * y * y) * erfc(w * y)
            return (first + rest) * np.exp(-sh * y * y)

        edges = np.array([0.0, 0.5, 1.0, 3.0, 8.0, 30.0]) / max(w, 0.3)
        pieces = [quad(integrand, lo, hi, epsabs=0, epsrel=1e-12, limit=200)[0] for lo, hi in itertools.pairwise(edges)]
        value = float(wpbe_module.short_range(jnp.asarray(s2), jnp.asarray(w)))
        np.testing.assert_allclose(value, -8 / 9 * sum(pieces), rtol=1e-11)


def test_compiled_result_is_that_of_single_operations():
    rho, grad, tau = random_features(11, NEDGE)
    for name in ("b3lyp", "scan"):
        xc = functional(name)
        compiled = jax.jit(lambda *x, xc=xc: xc.energy_density(Features.of(*x)))(rho, grad, tau)
        np.testing.assert_allclose(compiled, energy_and_gradient(xc, rho, grad, tau)[0], rtol=1e-12)


def test_closed_shell_is_compiled_once_for_both_spins():
    """The same density given for both spins costs one exchange evaluation: XLA merges the halves."""
    exchange = functional("slater,")

    def closed(rho):
        return exchange.energy_density(Features.of(jnp.stack([rho / 2, rho / 2])))

    def open_shell(rho):
        return exchange.energy_density(Features.of(rho))

    def roots(f, shape):
        text = jax.jit(f).lower(jax.ShapeDtypeStruct(shape, jnp.float64)).compile().as_text()
        return str(text).count("cbrt(")

    assert roots(open_shell, (2, 100)) == 2 * roots(closed, (100,)) > 0
