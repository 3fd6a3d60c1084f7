"""Names and descriptions of functionals against PySCF's parser; libxc on the host; users' functions; errors."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pyscf.dft import libxc

from jaxqc.xc import Features
from jaxqc.xc.functionals import Functional, functional, names

DESCRIPTIONS = [
    *("lda", "lda,", "LDA,VWN", "slater,vwn5", "svwn", "lda,vwn_rpa", "slater,vwn3", "lda,pw", "lda,pw_mod", "spw92"),
    *("pbe", "PBE,PBE", "pbe,", ",pbe", "revpbe", "rpbe", "pbesol", "blyp", "b88,lyp", "BP86", "pbe,vwn", "b88"),
    *("b3lyp", "B3LYP", "b3lypg", "b3lyp5", "x3lyp", "bhandhlyp", "pbe0", "PBE1PBE", "pbeh", "b3lyp,", ",b3lyp"),
    *(
        "tpss",
        "tpssh",
        "tpss0",
        "scan",
        "r2scan",
        "r2scan0",
        "scan,",
        "m06-l",
        "M06L",
        "m06_l",
        "m06",
        "m06-2x",
        "m062x",
    ),
    *("cam-b3lyp", "camb3lyp", "CAM_B3LYP", "wb97x", "hse06", "lc_wpbe", "gga_x_pbe", "gga_x_pbe,gga_c_pbe"),
    *("hyb_gga_xc_b3lyp", "HYB_GGA_XC_WB97X", "mgga_x_scan+mgga_c_scan", "402", "1,7", "106,131"),
    *("hf", "HF,", "hf,lyp", "0.5*hf", "hflyp", "revpbe0", "bpbe"),
    "0.25*HF + 0.75*pbe, pbe",
    ".2*HF + .08*SLATER + .72*B88, .81*LYP + .19*VWN",
    "0.5*b3lyp",
    "0.5*b3lyp - 0.1*hf",
    "b3lyp*0.5+pbe*0.25",
    "pbe, vwn - 0.1*lyp",
    "1e-1*pbe,",
    "RSH(0.3, 0.2, 0.5) + 0.5*pbe, pbe",
    "0.4*RSH(0.3,1,-1) + 0.5*pbe, pbe",
    "SR_HF(0.2)*0.3 + pbe,",
    "0.3*SR_HF(0.2) + LR_HF(0.2)*0.7 + pbe,",
    "0.3*SR_HF(0.2) + 0.7*LR_HF + pbe,",
    "RSH(0.33, 0.65, -0.46) + 0.35*B88, .81*LYP + .19*VWN",
    # what only PySCF's libxc has
    *("olyp", "o3lyp", "b97-1", "pw91", "hse03", "m05-2x", "optx,lyp", "scan0", "m11-l", "b3pw91", "mn15", "revtpss"),
]


def random_x(rows, n=40):
    """(2, rows, n): rho, grad, tau as PySCF has them."""
    rng = np.random.default_rng(1)
    rho = 10 ** rng.uniform(-3, 1, (2, 1, n))
    grad = rng.normal(size=(2, 3, n)) * rho ** (4 / 3)
    tau = (grad**2).sum(1, keepdims=True) / (8 * rho) + rho ** (5 / 3)
    return np.concatenate([rho, grad, tau], axis=1)[:, :rows]


def features(x):
    return Features.of(*(jnp.asarray(a) for a in (x[:, 0], x[:, 1:4], x[:, 4])))


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_description_means_what_pyscf_says(text):
    xc = functional(text)
    omega, alpha, beta = libxc.rsh_coeff(text)
    # alpha K + beta K_SR(omega) = (alpha + beta) K - beta K_LR(omega)
    expected = {0.0: alpha + beta}
    if beta:
        expected[omega] = -beta
    got = {w: c for c, w in xc.exchange}
    assert set(got) <= set(expected)
    for w, c in expected.items():
        assert got.get(w, 0.0) == pytest.approx(c, abs=1e-14)
    kind = libxc.xc_type(text)
    assert xc.kind == ("lda" if kind == "HF" else kind.lower())
    if kind == "HF":
        assert xc.parts == ()
        return
    x = random_x(5)
    rows = {"LDA": 1, "GGA": 4, "MGGA": 5}[kind]
    exc = libxc.eval_xc_eff(text, x[:, 0] if rows == 1 else x[:, :rows], deriv=0, spin=1)
    np.testing.assert_allclose(xc.energy_density(features(x)), exc.ravel() * x[:, 0].sum(0), rtol=1e-8)


def test_names_resolve_to_functionals_of_jaxqc():
    for name in names():
        xc = functional(name)
        assert xc.source == "jaxqc" and xc.name == name
        assert functional(name.upper()).parts == xc.parts
    assert len(names()) >= 27
    # PySCF reads the e- in this as scientific notation.
    assert functional("pbe - 0.3*hf").exchange == ((-0.3, 0.0),)
    assert functional("lc-wpbe").exchange == ((1.0, 0.4),)
    assert functional("hse06").exchange == ((0.25, 0.0), (-0.25, 0.11))
    assert [c for c, _ in functional("wb97x").exchange] == pytest.approx([0.157706, 0.842294])


def test_functional_is_a_static_value():
    assert functional("b3lyp") == functional("b3lyp") and hash(functional("b3lyp")) == hash(functional("b3lyp"))
    assert functional(functional("pbe")) is functional("pbe")
    energy = jax.jit(lambda xc, f: xc.energy_density(f), static_argnums=0)
    x = features(random_x(5))
    np.testing.assert_allclose(energy(functional("pbe"), x), functional("pbe").energy_density(x), rtol=1e-13)
    with pytest.raises(AttributeError, match="name"):
        functional("pbe").name = "x"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["lda,gl", "olyp", "revtpss"])
def test_libxc_on_the_host_has_derivatives(name):
    """First to third derivatives along a line of densities, under jit, vmap and reverse mode."""
    xc = functional(name)
    x = random_x(5, 9)

    def energy(t):
        return xc.energy_density(features_of(x, 1 + t))

    def features_of(x, scale):
        a = jnp.asarray(x)
        return Features.of(a[:, 0] * scale, a[:, 1:4] * scale, a[:, 4] * scale)

    def derivative(f):
        return lambda t: jax.jvp(f, (t,), (1.0,))[1]

    functions = [energy]
    for _ in range(3):
        functions.append(jax.jit(derivative(functions[-1])))
    h = 1e-4
    for lower, upper in zip(functions, functions[1:], strict=False):
        difference = (np.asarray(lower(h)) - np.asarray(lower(-h))) / (2 * h)
        np.testing.assert_allclose(upper(0.0), difference, rtol=1e-5, atol=1e-7 * abs(difference).max())
    steps = jnp.array([0.0, 0.1])
    stacked = np.stack([np.asarray(energy(t)) for t in steps])
    np.testing.assert_allclose(jax.jit(jax.vmap(energy))(steps), stacked, rtol=1e-13)
    slope = jax.grad(lambda t: energy(t).sum())(0.0)
    np.testing.assert_allclose(slope, np.asarray(functions[1](0.0)).sum(), rtol=1e-12)
    with pytest.raises(NotImplementedError, match="up to order 3 only"):
        jax.make_jaxpr(derivative(functions[3]))(0.0)


def test_libxc_potential_equals_pyscf():
    xc = functional("olyp")
    x = random_x(4, 20)
    slope = jax.grad(lambda r, g: xc.energy_density(Features.of(r, g)).sum(), argnums=(0, 1))(
        jnp.asarray(x[:, 0]), jnp.asarray(x[:, 1:4])
    )
    want = libxc.eval_xc_eff("olyp", x, deriv=1, spin=1)
    np.testing.assert_allclose(slope[0], want[:, 0], rtol=1e-10)
    np.testing.assert_allclose(slope[1], want[:, 1:4], rtol=1e-9)


def test_libxc_says_so_once(caplog):
    from jaxqc.xc.functionals import _libxc, _resolve

    _resolve._named.cache_clear()
    _libxc.describe.cache_clear()
    with caplog.at_level(logging.WARNING, logger="jaxqc.xc"):
        assert functional("b86,pw91").source == "libxc"
        assert functional("b86 , lyp").source == "mixed"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "gga_x_b86" in said[0] and "on the host" in said[0] and "gga_c_pw91" in said[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b3lip", "'b3lip' .* unknown.* Near names: .*b3lyp"),
        ("r2scna", "Near names: .*r2scan"),
        ("wB97Q", "Near names: .*wb97"),
        ("pbe,foo", "'foo' .* as correlation"),
        ("lyp", "write ',lyp' for correlation alone"),
        ("zzzzzzzz", "names\\(\\) lists"),
        ("", "is empty"),
        (" , ", "is empty"),
        ("pbe,lyp,vwn", "2 commas"),
        ("pbe+*", "cannot be read from '\\+\\*'"),
        ("0.5 pbe", "cannot be read"),
        ("pbe/2", "cannot be read from '/2'"),
        ("RSH(0.3,1)", "RSH\\(omega, alpha, beta\\)"),
        ("SR_HF(-1)", "omega > 0"),
        ("0.2*SR_HF + pbe,", "SR_HF or LR_HF without omega"),
        ("pbe(0.2),", "takes no arguments"),
        ("lda_k_tf", "kinetic energy"),
    ],
)
def test_unreadable_descriptions(text, message):
    with pytest.raises(ValueError, match=message):
        functional(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b3lyp-d3", "dispersion correction 'D3'"),
        ("pbe-D3BJ", "dispersion correction 'D3BJ'"),
        ("PBE0-D4", "dispersion correction 'D4'"),
        ("wB97X-D", "dispersion correction 'D'"),
        ("wb97x-d3bj", "dispersion"),
        ("b97-3c", "dispersion"),
        ("wB97X-V", "VV10"),
        ("wb97m-v", "VV10"),
        ("scan_vv10", "VV10"),
        ("b2plyp", "double hybrid"),
        ("DSD-BLYP", "double hybrid"),
        ("wb97m(2)", "double hybrid"),
        ("scanl", "Laplacian"),
        ("camy-b3lyp", "another operator"),
    ],
)
def test_what_is_missing_is_said(text, message):
    with pytest.raises(NotImplementedError, match=message):
        functional(text)


def lda(f):
    return -0.7 * jnp.sum(f.rho ** (4 / 3), axis=0)


def gga(f):
    return lda(f) - 0.01 * f.sigma.sum(0)


def mgga(f):
    return gga(f) + 1e-3 * f.tau.sum(0)


def test_a_users_function_is_a_functional():
    for function, kind in ((lda, "lda"), (gga, "gga"), (mgga, "mgga"), (lambda f: jnp.sum(f.grad, (0, 1)), "gga")):
        xc = functional(function)
        assert isinstance(xc, Functional) and xc.kind == kind and xc.source == "user" and xc.exchange == ()
    xc = functional(mgga, exchange=0.3)
    assert xc.name == "mgga" and xc.exchange == ((0.3, 0.0),) and hash(xc) == hash(functional(mgga, exchange=0.3))
    assert functional(gga, exchange=[(0.25, 0), (-0.25, 0.11)]).exchange == ((0.25, 0.0), (-0.25, 0.11))
    assert functional(lda, kind="mgga").kind == "mgga"
    x = random_x(5)
    np.testing.assert_allclose(xc.energy_density(features(x)), mgga(features(x)))


def test_a_users_function_that_does_not_fit():
    with pytest.raises(AttributeError, match="'tau' was asked of densities of kind 'gga'"):
        functional(mgga, kind="gga")
    with pytest.raises(ValueError, match="'total'.*shape \\(n,\\).*returned float64 of shape \\(\\)"):

        def total(f):
            return f.rho.sum()

        functional(total)
    with pytest.raises(ValueError, match="returned float64 of shape \\(2, 7\\)"):
        functional(lambda f: f.rho)
    with pytest.raises(ValueError, match="returned a tuple"):
        functional(lambda f: (f.rho.sum(0), 1.0))
    with pytest.raises(AttributeError, match="density"):
        functional(lambda f: f.density)
    with pytest.raises(TypeError, match="xc is 3.5 of type float"):
        functional(3.5)
    with pytest.raises(ValueError, match="kind is 'LDA'"):
        functional(lda, kind="LDA")
    with pytest.raises(ValueError, match="exchange is 'hf'"):
        functional(lda, exchange="hf")
    with pytest.raises(ValueError, match="exchange is .*omega >= 0"):
        functional(lda, exchange=[(0.1, -0.3)])
    with pytest.raises(ValueError, match="xc is 'pbe', which has its own"):
        functional("pbe", exchange=0.3)
    with pytest.raises(AttributeError, match="'sigma' was asked of densities of kind 'lda'"):
        functional("pbe").energy_density(Features.of(jnp.ones((2, 3))))
