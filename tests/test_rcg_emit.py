"""The emitted C++ bodies, compiled and compared with libcint for every class that has one."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from pyscf import gto

from jaxqc.ffi_kernels.rcg import __main__ as command
from jaxqc.ffi_kernels.rcg import cartesian, emit, graph, options, reference, schedule

LMAX, MAX_SIZE, GRADIENT_MAX_SIZE = 3, 280, 150
CLASSES = emit.classes(LMAX, MAX_SIZE)
GRADIENT_CLASSES = emit.classes(LMAX, GRADIENT_MAX_SIZE)
PAIRS_LMAX = 4

HARNESS = """
#include "rcg_pairs.h"
#include "rcg_classes.h"
%(includes)s
typedef double pack __attribute__((vector_size(32)));
#define P(i) p[i], p[i + 1], p[i + 2], p[i + 3]
#define PARAMETERS P(0), P(4), P(8), P(12), p[16]
#define VRR(a, b, c, d) \\
  extern "C" void run_vrr_##a##b##c##d(double* h, const double* f, const double* p) { \\
    vrr_##a##b##c##d(h, f, PARAMETERS); }
#define GRADIENT(a, b, c, d) \\
  extern "C" void run_vrr_grad_##a##b##c##d( \\
      const double* g, double* h, double* out, const double* f, const double* p) { \\
    vrr_grad_##a##b##c##d(g, h, out, f, PARAMETERS); }
#define HRR1(kind, a, b) \\
  extern "C" void run_hrr_##kind##_##a##b(const double* in, double* out, const double* x) { \\
    hrr_##kind##_##a##b<1, 1>(in, out, x[0], x[1], x[2]); }
#define HRR(a, b) HRR1(sph, a, b) HRR1(cart, a, b) HRR1(t_sph, a, b) HRR1(t_cart, a, b)
RCG_CLASSES(VRR)
RCG_GRADIENT_CLASSES(GRADIENT)
RCG_PAIRS(HRR)
static pack all(double x) { return pack{x, x, x, x}; }
// Lanes of a pack: uniform bra (S = double), everything of the ket a lane type.
extern "C" void run_pack_vrr_2110(double* h, const double* f, const double* p) {
  pack hp[16 * 3] = {}, fp[5];
  for (int m = 0; m < 5; m++) fp[m] = pack{f[m], 2 * f[m], 3 * f[m], 4 * f[m]};
  vrr_2110(hp, fp, p[0], p[1], p[2], all(p[3]), all(p[4]), all(p[5]), all(p[6]), all(p[7]), all(p[8]), all(p[9]),
           all(p[10]), all(p[11]), p[12], all(p[13]), all(p[14]), all(p[15]), all(p[16]));
  for (int k = 0; k < 48; k++) for (int w = 0; w < 4; w++) h[4 * k + w] += hp[k][w];
}
extern "C" void run_pack_hrr_21(const double* in, double* out, const double* x) {
  pack ip[16 * 2], op[15 * 3];
  for (int k = 0; k < 16; k++) ip[2 * k] = all(in[k]);
  hrr_sph_21<2, 3>(ip, op, all(x[0]), all(x[1]), all(x[2]));
  for (int k = 0; k < 15; k++) out[k] = op[3 * k][1];
}
%(variants)s
static_assert(rcg_ncomp(2, 1) == 16 && rcg_ncomp(3, 3) == 74 && rcg_ncomp(0, 0) == 1, "");
"""


VARIANT_CLASSES = [(1, 1, 1, 1), (2, 1, 1, 0), (3, 0, 2, 0)]
VARIANTS = {
    f"{rule}_{kind}": options.Options(rule=rule, schedule=kind) for rule in graph.RULES for kind in schedule.SCHEDULES
}


def variants():
    """Bodies under every rule and schedule, and buffered ones with and without packing, in namespaces."""
    text = []
    for cls in VARIANT_CLASSES:
        digits = emit.class_name(cls)
        for label, choice in VARIANTS.items():
            text.append(f"namespace n{label} {{ {emit.emit_vrr(cls, choice)} }}")
            text.append(
                f'extern "C" void run_{label}_{digits}(double* h, const double* f, const double* p) '
                f"{{ n{label}::vrr_{digits}(h, f, PARAMETERS); }}"
            )
        for label, packing in (("packed", True), ("loose", False)):
            text.append(f"namespace n{label} {{ {emit.emit_vrr_buffered(cls, options.Options(packing=packing))} }}")
            text.append(
                f'extern "C" void run_{label}_{digits}(double* h, const double* f, const double* p) '
                f"{{ double w[3 * n{label}::vrr_buffered_{digits}_slots]; "
                f"n{label}::vrr_buffered_{digits}<3>(h, w, f, PARAMETERS); }}"
            )
    return "\n".join(text)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("rcg")
    limits = ["--lmax", LMAX, "--max-size", MAX_SIZE, "--gradient-max-size", GRADIENT_MAX_SIZE]
    assert command.main(["emit", "--out", str(folder), "--pairs-lmax", str(PAIRS_LMAX), *map(str, limits)]) == 0
    includes = "\n".join(f'#include "rcg_vrr_{emit.class_name(c)}.h"' for c in CLASSES)
    (folder / "harness.cc").write_text(HARNESS % {"includes": includes, "variants": variants()})
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-shared", "-fPIC", f"-I{folder}"]
    out = folder / "harness.so"
    subprocess.run([compiler, *flags, str(folder / "harness.cc"), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def call(library, name, *arrays):
    pointers = [a.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for a in arrays]
    getattr(library, name)(*pointers)


def shells_and_mol(cls, seed=1, nprim=2, exponents=None):
    """Four shells of one class on four centres, for PySCF and for the reference."""
    rng = np.random.default_rng(seed)
    labels, basis, coords = ["H1", "H2", "H3", "H4"], {}, rng.normal(size=(4, 3)) * 0.8
    for label, l in zip(labels, cls, strict=True):
        alphas = rng.uniform(0.3, 2.0, nprim) if exponents is None else exponents
        basis[label] = [[l, *[[float(x), float(rng.uniform(0.3, 1.0))] for x in alphas]]]
    atoms = [(label, tuple(map(float, x))) for label, x in zip(labels, coords, strict=True)]
    mol = gto.M(atom=atoms, basis=basis, unit="bohr", verbose=0)
    shells = []
    for k, l in enumerate(cls):
        factor = {0: 0.282094791773878143, 1: 0.488602511902919921}.get(l, 1.0)
        # _ctr_coeff of libcint includes the normalisation of the primitives
        coefficients = mol._libcint_ctr_coeff(k)[:, 0] * factor
        shells.append(
            reference.Shell(l, tuple(mol.atom_coord(k)), tuple(mol.bas_exp(k)), tuple(float(c) for c in coefficients))
        )
    return shells, mol


def vertical(library, cls, shells):
    size = cartesian.ncomp(*cls[:2]), cartesian.ncomp(*cls[2:])
    h = np.zeros(size)
    for f, parameters, _ in reference.primitives(shells, sum(cls)):
        call(library, f"run_vrr_{emit.class_name(cls)}", h, np.array(f), packed(parameters))
    return h


def packed(parameters):
    return np.array([parameters[name] for name in reference.PARAMETERS])


def pair_matrix(library, kind, la, lb, ab):
    """The matrix of the horizontal recurrence of one side, column by column."""
    ne = cartesian.ncomp(la, lb)
    count = cartesian.nsph if "sph" in kind else cartesian.ncart
    n = count(la) * count(lb)
    rows, columns = (ne, n) if kind.startswith("t_") else (n, ne)
    result = np.full((columns, rows), np.nan)
    for k, unit in enumerate(np.eye(columns)):
        call(library, f"run_hrr_{kind}_{la}{lb}", unit, result[k], np.array(ab))
    return result.T


@pytest.mark.parametrize("kind", ["sph", "cart"])
@pytest.mark.parametrize("cls", CLASSES, ids=emit.class_name)
def test_class_equals_libcint(library, cls, kind):
    shells, mol = shells_and_mol(cls)
    a, b, c, d = (np.array(s.center) for s in shells)
    bra = pair_matrix(library, kind, *cls[:2], a - b)  # pyright: ignore[reportCallIssue]
    ket = pair_matrix(library, kind, *cls[2:], c - d)  # pyright: ignore[reportCallIssue]
    block = bra @ vertical(library, cls, shells) @ ket.T
    expected = mol.intor_by_shell(f"int2e_{kind}", (0, 1, 2, 3)).reshape(block.shape)
    np.testing.assert_allclose(block, expected, rtol=0, atol=2e-14 * np.abs(expected).max() * 10)


@pytest.mark.parametrize("kind", ["sph", "cart"])
@pytest.mark.parametrize("pair", emit.pairs(PAIRS_LMAX), ids=emit.class_name)
def test_horizontal_adjoint_is_the_transpose(library, pair, kind):
    ab = [0.3, -1.1, 0.7]
    forward, adjoint = (pair_matrix(library, k, *pair, ab) for k in (kind, "t_" + kind))  # pyright: ignore[reportCallIssue]
    np.testing.assert_allclose(adjoint, forward.T, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("cls", GRADIENT_CLASSES, ids=emit.class_name)
def test_gradient_body_equals_neighbouring_nodes(library, cls):
    """The contracted sums against [e+-1_i|f] and [e|f-1_i] from graphs of single nodes."""
    shells, _ = shells_and_mol(cls, seed=3, nprim=1)
    es, fs = cartesian.pair_components(*cls[:2]), cartesian.pair_components(*cls[2:])
    gamma = np.random.default_rng(5).normal(size=(len(es), len(fs)))
    ((f, parameters, _),) = reference.primitives(shells, sum(cls) + 1)
    h, out = np.zeros(gamma.shape), np.zeros(10)
    call(library, f"run_vrr_grad_{emit.class_name(cls)}", gamma, h, out, np.array(f), packed(parameters))
    everything = graph.build_graph(graph.gradient_targets(cls), "none")
    values = graph.evaluate(everything, f, parameters, range(len(everything.nodes)))
    table = {(n.a, n.c): v for n, v in zip(everything.nodes, values, strict=True) if n.m == 0}
    expected, block = np.zeros(10), np.zeros(gamma.shape)
    for i, e in enumerate(es):
        for j, c in enumerate(fs):
            block[i, j] = table[e, c]
            expected[0] += gamma[i, j] * table[e, c]
            for x in range(3):
                expected[1 + x] += gamma[i, j] * table[cartesian.raised(e, x), c]
                if e[x]:
                    expected[4 + x] += gamma[i, j] * e[x] * table[cartesian.raised(e, x, -1), c]
                if c[x]:
                    expected[7 + x] += gamma[i, j] * c[x] * table[e, cartesian.raised(c, x, -1)]
    np.testing.assert_allclose(h, block, rtol=1e-12, atol=1e-14 * np.abs(block).max())
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 * max(np.abs(expected).max(), 1e-3))


def centre_derivatives(library, cls, shells, density):
    """d/dA, d/dB, d/dC, d/dD of sum(density * (ab|cd)) by the recipe that the gradient body is made for.

    Bra: d/dA [e| = 2 alpha [e+1_i| - e_i [e-1_i|, d/dB [e| = 2 beta ([e+1_i| + AB_i [e|); the horizontal recurrence
    itself depends on AB. Ket: [f+1_i] follows from translational invariance of each primitive quartet.
    """
    ab, cd = (np.subtract(shells[k].center, shells[k + 1].center) for k in (0, 2))

    def sides(ab, cd):
        return pair_matrix(library, "sph", *cls[:2], ab), pair_matrix(library, "sph", *cls[2:], cd)  # pyright: ignore[reportCallIssue]

    bra, ket = sides(ab, cd)
    gamma = np.ascontiguousarray(bra.T @ density @ ket)
    h = np.zeros(gamma.shape)
    result = np.zeros((4, 3))
    for f, parameters, (alpha, beta, gamma_c, delta) in reference.primitives(shells, sum(cls) + 1):
        out = np.zeros(10)
        call(library, f"run_vrr_grad_{emit.class_name(cls)}", gamma, h, out, np.array(f), packed(parameters))
        value, raised, bra_lowered, ket_lowered = out[0], out[1:4], out[4:7], out[7:]
        primitive = np.zeros((4, 3))
        primitive[0] = 2 * alpha * raised - bra_lowered
        primitive[1] = 2 * beta * (raised + ab * value)
        ket_raised = (ket_lowered - 2 * delta * cd * value - primitive[0] - primitive[1]) / (2 * (gamma_c + delta))
        primitive[2] = 2 * gamma_c * ket_raised - ket_lowered
        primitive[3] = 2 * delta * (ket_raised + cd * value)
        result += primitive
    for i, unit in enumerate(np.eye(3)):  # the recurrence is a polynomial in AB: differences of it are accurate
        step = 1e-3 * unit
        for side, (plus, minus) in enumerate([((ab + step, cd), (ab - step, cd)), ((ab, cd + step), (ab, cd - step))]):
            left, right = sides(*plus), sides(*minus)
            slope = np.sum(density * (left[0] @ h @ left[1].T - right[0] @ h @ right[1].T)) / 2e-3
            result[2 * side, i] += slope
            result[2 * side + 1, i] -= slope
    return result


@pytest.mark.parametrize("cls", [c for c in GRADIENT_CLASSES if sum(c) < 6], ids=emit.class_name)
def test_gradient_recipe_equals_libcint(library, cls):
    shells, mol = shells_and_mol(cls, seed=7)
    sizes = [cartesian.nsph(l) for l in cls]
    density = np.random.default_rng(11).normal(size=sizes)
    found = centre_derivatives(library, cls, shells, density.reshape(sizes[0] * sizes[1], -1))
    for k, axes in enumerate([(0, 1, 2, 3), (1, 0, 2, 3), (2, 3, 0, 1), (3, 2, 0, 1)]):
        block = mol.intor_by_shell("int2e_ip1_sph", axes, comp=3)
        expected = -np.einsum("xabcd,abcd->x", block, density.transpose(axes))
        scale = np.abs(block).max() * np.abs(density).sum()
        np.testing.assert_allclose(found[k], expected, rtol=0, atol=2e-7 * scale)


def test_bodies_over_packs(library):
    cls = (2, 1, 1, 0)
    shells, _ = shells_and_mol(cls, nprim=1)
    ((f, parameters, _),) = reference.primitives(shells, sum(cls))
    single, lanes = np.zeros((16, 3)), np.zeros((16, 3, 4))
    call(library, "run_vrr_2110", single, np.array(f), packed(parameters))
    call(library, "run_pack_vrr_2110", lanes, np.array(f), packed(parameters))
    np.testing.assert_allclose(lanes, single[..., None] * np.arange(1, 5), rtol=1e-13)
    ab, e = np.array([0.4, 0.2, -0.9]), np.random.default_rng(0).normal(size=16)
    one, many = np.zeros(15), np.zeros(15)
    call(library, "run_hrr_sph_21", e, one, ab)
    call(library, "run_pack_hrr_21", e, many, ab)
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("label", [*VARIANTS, "packed", "loose"])
@pytest.mark.parametrize("cls", VARIANT_CLASSES, ids=emit.class_name)
def test_every_switch_gives_the_same_integrals(library, cls, label):
    shells, _ = shells_and_mol(cls, seed=2)
    expected, found = vertical(library, cls, shells), np.zeros(36 * 36)
    for f, parameters, _ in reference.primitives(shells, sum(cls)):
        call(library, f"run_{label}_{emit.class_name(cls)}", found, np.array(f), packed(parameters))
    np.testing.assert_allclose(found[: expected.size], expected.ravel(), rtol=0, atol=1e-13 * np.abs(expected).max())


def test_unchanged_headers_are_not_written_again(tmp_path, capsys):
    arguments = ["emit", "--out", str(tmp_path), "--lmax", "1", "--max-size", "30"]
    command.main(arguments)
    command.main(arguments)
    assert "0 of them new or changed" in capsys.readouterr().out.splitlines()[-1]


def test_store_instead_of_accumulate():
    text = emit.emit_vrr((1, 0, 0, 0), accumulate=False)
    assert "h[2] = v001_000_0;" in text and "+=" not in text
