"""Digits of high classes of integrals: extended precision against libcint, the CPU's kernels and those of GPUs.

    python experiments/eri_gpu_precision.py 4420 4443 ...

For each class, over contracted shells up to g on two centres: the largest error of an integral over the largest
integral, of libcint, of the CPU, and of J of the GPU's kernel, which runs thread by thread on the CPU. And of both
horizontal recurrences alone, in doubles, from (e0|f0) that are exact but for their last digit: what kernels lose that
contract before them.

Extended precision (80 bits) by McMurchie and Davidson, doi:10.1016/0021-9991(78)90092-X; Boys functions of 45 digits.
"""

import argparse
import functools
import itertools
import sys
import tempfile
from decimal import Decimal, getcontext
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import numpy as np

from jaxqc.integrals import _cuda_jk, _cuda_pairs
from jaxqc.integrals._cuda_classes import Variant
from jaxqc.integrals._shells import cartesian_powers, cartesian_to_spherical_matrix

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import test_cuda_eri as classes  # noqa: E402  # pyright: ignore[reportMissingImports]
import two_electron_cases as cases  # noqa: E402  # pyright: ignore[reportMissingImports]
from cuda_emulation import Emulator  # noqa: E402  # pyright: ignore[reportMissingImports]

Real = np.longdouble
PI = Real("3.14159265358979323846264338327950288")
LS = (0, 1, 2, 3, 4)


def boys(most: int, t) -> np.ndarray:
    """F_0 to F_most at t."""
    getcontext().prec = 45
    x = Decimal(np.format_float_positional(Real(t), unique=True, trim="-"))
    term = total = Decimal(1) / (2 * most + 1)
    k = 0
    while term > total * Decimal("1e-40"):
        k += 1
        term *= 2 * x / (2 * most + 2 * k + 1)
        total += term
    decay = (-x).exp()
    values = [decay * total]
    for n in range(most - 1, -1, -1):
        values.append((2 * x * values[-1] + decay) / (2 * n + 1))
    return np.array([Real(f"{v:.25e}") for v in values[::-1]])


def hermite(n: int) -> list[tuple[int, int, int]]:
    """Orders of Hermite Gaussians up to n in all."""
    return [p for order in range(n + 1) for p in cartesian_powers(order)]


def expansion(i: int, j: int, a, b, x, y) -> np.ndarray:
    """Coefficients (i, j, t) of products of one axis in Hermite Gaussians."""
    p = a + b
    centre = (a * x + b * y) / p
    e = np.zeros((i + 1, j + 1, i + j + 2), Real)
    e[0, 0, 0] = np.exp(-a * b / p * (x - y) ** 2)
    for k, m in itertools.product(range(i + 1), range(j + 1)):
        if k + m == 0:
            continue
        lower, shift = (e[k - 1, m], centre - x) if k else (e[k, m - 1], centre - y)
        for t in range(k + m + 1):
            e[k, m, t] = shift * lower[t] + (t + 1) * lower[t + 1] + (lower[t - 1] / (2 * p) if t else 0)
    return e


def products(first, second) -> list[tuple]:
    """Exponent, centre and expansion (functions, Hermite) of all products of primitives of two shells."""
    found, orders = [], hermite(first[0] + second[0])
    centres = [np.array(s[1], Real) for s in (first, second)]
    for (a, u), (b, v) in itertools.product(zip(*first[2:], strict=True), zip(*second[2:], strict=True)):
        a, b = Real(a), Real(b)
        axes = [expansion(first[0], second[0], a, b, x, y) for x, y in zip(*centres, strict=True)]
        rows = [
            [np.prod([axes[n][i[n], j[n], t[n]] if t[n] <= i[n] + j[n] else Real(0) for n in range(3)]) for t in orders]
            for i in cartesian_powers(first[0])
            for j in cartesian_powers(second[0])
        ]
        found.append((a + b, (a * centres[0] + b * centres[1]) / (a + b), Real(u) * Real(v) * np.array(rows, Real)))
    return found


def coulomb(n: int, alpha, r) -> dict[tuple[int, int, int], np.ndarray]:
    """Integrals R_tuv up to order n, by their orders."""
    f = boys(n, alpha * (r @ r))
    found = {(0, 0, 0): np.array([(-2 * alpha) ** m * f[m] for m in range(n + 1)])}
    for order in range(1, n + 1):
        for key in cartesian_powers(order):
            axis = next(k for k in range(3) if key[k])
            one = tuple(np.subtract(key, np.eye(3, dtype=int)[axis]))
            two = tuple(np.subtract(one, np.eye(3, dtype=int)[axis]))
            found[key] = r[axis] * found[one][1:]
            if key[axis] > 1:
                found[key] = found[key] + (key[axis] - 1) * found[two][1 : len(found[key]) + 1]
    return {key: values[0] for key, values in found.items()}


def cartesian(shells) -> np.ndarray:
    """Integrals over four shells (l, centre, exponents, coefficients)."""
    ls = [s[0] for s in shells]
    bra, ket = (hermite(ls[n] + ls[n + 1]) for n in (0, 2))
    signs = np.array([(-1) ** sum(h) for h in ket])
    total = 0.0
    kets = products(*shells[2:])
    for p, centre, left in products(*shells[:2]):
        for q, other, right in kets:
            r = coulomb(sum(ls), p * q / (p + q), centre - other)
            matrix = np.array([[r[tuple(np.add(x, y))] for y in ket] for x in bra], Real) * signs
            total = total + 2 * PI**2 * np.sqrt(PI) / (p * q * np.sqrt(p + q)) * (left @ matrix @ right.T)
    return np.asarray(total).reshape([len(cartesian_powers(l)) for l in ls])


def spherical(x: np.ndarray, ls) -> np.ndarray:
    """Integrals over spherical functions."""
    for axis, l in enumerate(ls):
        matrix = cartesian_to_spherical_matrix(l).astype(x.dtype)
        x = np.moveaxis(np.tensordot(matrix.T, x, (1, axis)), 0, axis)
    return x


def shifted(level: dict, first, second) -> np.ndarray:
    """Functions (a, b) of a pair of shells from (e, 0), whose arrays `level` has by their powers."""
    apart = np.array(first[1]) - np.array(second[1])
    level = {(c, (0, 0, 0)): x for c, x in level.items()}
    for l in range(1, second[0] + 1):
        following = {}
        for b in cartesian_powers(l):
            axis = int(np.argmax(b))
            unit = np.eye(3, dtype=int)[axis]
            low = tuple(np.subtract(b, unit))
            for a in (a for e in range(first[0], first[0] + second[0] - l + 1) for a in cartesian_powers(e)):
                following[a, b] = level[tuple(np.add(a, unit)), low] + apart[axis] * level[a, low]
        level = following
    return np.array([[level[a, b] for b in cartesian_powers(second[0])] for a in cartesian_powers(first[0])])


def recurrences(shells) -> np.ndarray:
    """Both horizontal recurrences in doubles, from (e0|f0) that are exact but for their last digit."""
    (bra, ket), noise, level = (shells[:2], shells[2:]), np.random.default_rng(0), {}
    powers = [[c for l in range(a[0], a[0] + b[0] + 1) for c in cartesian_powers(l)] for a, b in (bra, ket)]
    for e in range(bra[0][0], bra[0][0] + bra[1][0] + 1):
        ends = [(f, *ket[0][1:]) for f in range(ket[0][0], ket[0][0] + ket[1][0] + 1)]
        sides = [(e, *bra[0][1:]), (0, *bra[1][1:])]
        values = np.concatenate([cartesian([*sides, f, (0, *ket[1][1:])])[:, 0, :, 0] for f in ends], axis=1)
        values = values.astype(float) * (1 + 2.0**-53 * noise.uniform(-1, 1, values.shape))
        level |= dict(zip(cartesian_powers(e), values, strict=True))
    half = shifted(level, *bra)
    whole = shifted(dict(zip(powers[1], np.moveaxis(half, 2, 0), strict=True)), *ket)
    return spherical(np.moveaxis(whole, (0, 1), (2, 3)), [s[0] for s in shells])


@functools.cache
def system():
    """The case of the tests, its PySCF molecule, and its shells."""
    case = classes.Case(LS, ncenter=2)
    rng = np.random.default_rng(len(LS) + 10 * max(LS))
    basis = [[cases.contraction(rng, l, (k + l) % 3 + 1, 0.3, 8.0) for l in LS] for k in range(2)]
    mole = cases.mole(cases.CENTERS[:2], basis)
    host = cases.shell_list(mole)
    begin = np.concatenate([[0], np.cumsum(host.nprims)])
    parts = [slice(begin[k], begin[k + 1]) for k in range(len(host.ls))]
    shells = [
        (l, host.centers[k], host.exponents[s], host.coefficients[s])
        for k, (l, s) in enumerate(zip(host.ls, parts, strict=True))
    ]
    return case, mole, shells


def row(bra, ket) -> dict[str, float]:
    """Errors of a class over its largest integral; of the GPU, those of J over the largest of J."""
    case, mole, shells = system()
    first, n = mole.ao_loc_nr(), len(shells)
    exact = np.zeros_like(case.eri, Real)
    largest, errors = 0.0, dict.fromkeys(("libcint", "CPU", "recurrences"), 0.0)

    def members(pair):
        return [(i, j) for i in range(n) for j in range(i + 1) if (shells[i][0], shells[j][0]) in (pair, pair[::-1])]

    for (i, j), (k, l) in itertools.product(members(bra), members(ket)):
        (i, j), (k, l) = (sorted(p, key=lambda s: -shells[s][0]) for p in ((i, j), (k, l)))
        quartet = [shells[s] for s in (i, j, k, l)]
        value = spherical(cartesian(quartet), [s[0] for s in quartet])
        at = np.ix_(*(range(first[s], first[s + 1]) for s in (i, j, k, l)))
        found = {"libcint": mole.intor_by_shell("int2e_sph", (i, j, k, l)).reshape(value.shape), "CPU": case.eri[at]}
        found["recurrences"] = recurrences(quartet)
        largest = max(largest, float(abs(value).max()))
        errors = {name: max(e, float(abs(found[name] - value).max())) for name, e in errors.items()}
        for x, y in itertools.product(((i, j), (j, i)), ((k, l), (l, k))):
            order = [(i, j).index(x[0]), (i, j).index(x[1])] if i != j else [0, 1]
            order += [2 + (k, l).index(y[0]), 2 + (k, l).index(y[1])] if k != l else [2, 3]
            there = np.ix_(*(range(first[s], first[s + 1]) for s in (*x, *y)))
            exact[there] = value.transpose(order)
            back = np.ix_(*(range(first[s], first[s + 1]) for s in (*y, *x)))
            exact[back] = value.transpose(order).transpose(2, 3, 0, 1)
    density = case.densities("s")
    j_exact = np.zeros(density[0].shape, Real)
    for one, two in dict.fromkeys([(bra, ket), (ket, bra)]):
        (i, j), (k, l) = (np.nonzero(case.pair == 100 * p[0] + p[1]) for p in (one, two))
        j_exact[i, j] += (exact[i[:, None], j[:, None], k, l] * density[0][k, l]).sum(axis=1)
    run = Emulator(Path(tempfile.mkdtemp())).call
    with (
        mock.patch.object(_cuda_jk, "call", run),
        mock.patch.object(_cuda_pairs, "call", run),
        mock.patch.object(_cuda_jk, "_BUSY", 8),
    ):
        j = case.blocked(jnp.asarray(density), Variant(False), [(bra, ket)])[0][0]
    out = {name: e / largest for name, e in errors.items()}
    return out | {"J of the GPU": float(abs(j - j_exact).max() / abs(j_exact).max())}


def main():
    """Reads the arguments; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="+", help="digits, as 4420")
    for text in parser.parse_args().classes:
        la, lb, lc, ld = map(int, text)
        print(text, {name: f"{e:.1e}" for name, e in row((la, lb), (lc, ld)).items()}, flush=True)


if __name__ == "__main__":
    main()
