"""The generated header of the CUDA kernels of the gradient of one class, ``eri_class.h``.

To what J and K need it adds the adjoints of the horizontal recurrences, the derivatives of these recurrences with
respect to the distance of the two centres, and the sums of derivative integrals with a density block.
"""

from __future__ import annotations

from collections.abc import Iterator

from .cartesian import components, pair_components, raised, spherical_matrix
from .cuda import class_header
from .emit import _function, _linear_lines, class_name, emit_hrr, emit_vrr_gradient
from .graph import Class
from .hrr import hrr_graph
from .options import DEFAULT, Options


def _explicit(la: int, lb: int, cart: bool, options: Options) -> str:
    """out[i] += sum of gamma_ab d(ab|/dAB_i = gamma_ab b_i (a b-1_i|, from h over (e0|."""
    name = f"explicit_{class_name((la, lb))}"
    graph = hrr_graph(la, lb - 1, (int(not cart), 0), options.fusion)
    lines = list(_linear_lines(graph))
    text = "\n".join(lines)
    lines.append(" ".join(f"(void)ab{x};" for x in "xyz" if f"ab{x}" not in text))
    low = _function(
        "int SI, int SO, class S, class R",
        f"lower_{name}(const R* __restrict__ in, R* __restrict__ out, S abx, S aby, S abz)",
        lines,
    )
    transform = cart or lb < 2
    place = {b: k for k, b in enumerate(components(lb - 1))}
    count = len(components(la)) if cart else 2 * la + 1
    nb = len(components(lb)) if cart else 2 * lb + 1
    lines = [f"R low[{count * len(place)}];", "lower_" + name + "<SI, 1, S, R>(h, low, abx, aby, abz);"]
    for a in range(count):
        for j, b in enumerate(components(lb)):
            row = [float(k == j) for k in range(nb)] if transform else spherical_matrix(lb)[j]
            sums = [
                f"gamma[{a * nb + k} * SG]" if c == 1.0 else f"{c!r} * gamma[{a * nb + k} * SG]"
                for k, c in enumerate(row)
                if c
            ]
            if not sums:
                continue
            parts = [
                f"out[{i}] += {f'{b[i]}.0 * ' if b[i] > 1 else ''}g * low[{a * len(place) + place[raised(b, i, -1)]}];"
                for i in range(3)
                if b[i]
            ]
            lines.append(f"{{ const R g = {' + '.join(sums)}; {' '.join(parts)} }}")
    head = f"{name}(const R* __restrict__ h, const R* __restrict__ gamma, R* __restrict__ out, S abx, S aby, S abz)"
    return low + _function("int SI, int SG, class S, class R", head, lines)


# Factors of x, y and z in the sums of `_sums`; d is e times the value one below, w belongs to f-1.
_SUMS = ("x y z", "u y z", "x u z", "x y u", "d y z", "x d z", "x y d", "w y z", "x w z", "x y w")


def _sums(la: int, lb: int) -> Iterator[str]:
    """The ten sums of one root and ket component, axis after axis.

    out[0] += sum over e of gamma[e] x y z; out[1 + i], out[4 + i] and out[7 + i] have, in place of the factor of axis
    i, that of e+1, e times that of e-1, and that of f-1 (rows xf, yf, zf).
    """
    place = {e: k for k, e in enumerate(pair_components(la, lb))}
    top = la + lb
    first = {"x": "x[{0}]", "u": "x[{1}]", "d": "dx[{0}]", "w": "xf[{0}]"}
    second = {"xy": "x y", "uy": "u y", "xu": "x u", "dy": "d y", "xd": "x d", "wy": "w y", "xw": "x w"}
    factor_y = {"y": "y[{0}]", "u": "y[{1}]", "d": "dy[{0}]", "w": "yf[{0}]"}
    factor_z = {"z": "z[{0}]", "u": "z[{1}]", "d": "dz[{0}]", "w": "zf[{0}]"}
    yield (
        "RCG_INLINE void gradient_sums(const double* x, const double* y, const double* z, const double* xf, "
        "const double* yf, const double* zf, const double* gamma, double* out) {"
    )
    yield f"  double dx[{top + 1}], dy[{top + 1}], dz[{top + 1}];"
    for axis in "xyz":
        yield f"  d{axis}[0] = 0.0;"
        for e in range(1, top + 1):
            yield f"  d{axis}[{e}] = {f'{e}.0 * ' if e > 1 else ''}{axis}[{e - 1}];"
    for ez in range(top + 1):
        lines: list[str] = []
        opened: list[str] = []
        for ey in range(top + 1 - ez):
            levels = [ex for ex in range(top + 1 - ez - ey) if (ex, ey, ez) in place]
            if not levels:
                continue
            lines.append("    {")
            for name, value in first.items():
                used = [ex for ex in levels if ex or name != "d"]
                if used:
                    terms = (f"gamma[{place[ex, ey, ez]}] * {value.format(ex, ex + 1)}" for ex in used)
                    lines.append(f"      const double s{name} = {' + '.join(terms)};")
            for name, text in second.items():
                of_x, of_y = text.split()
                if (of_y == "d" and ey == 0) or (of_x == "d" and levels == [0]):
                    continue
                product = f"s{of_x} * {factor_y[of_y].format(ey, ey + 1)}"
                lines.append(f"      t_{name} {'+=' if name in opened else '='} {product};")
                opened += [] if name in opened else [name]
            lines.append("    }")
        for k, text in enumerate(_SUMS):
            of_x, of_y, of_z = text.split()
            if of_x + of_y in opened and not (of_z == "d" and ez == 0):
                lines.append(f"    out[{k}] += t_{of_x + of_y} * {factor_z[of_z].format(ez, ez + 1)};")
        yield "  {"
        yield f"    double {', '.join('t_' + name for name in opened)};"
        yield from lines
        yield "  }"
    yield "}\n"


def gradient_header(cls: Class, cart: bool, registers: bool, options: Options = DEFAULT) -> str:
    """The text of ``eri_class.h`` for the gradient; the arguments are those of ``class_header``."""
    la, lb, lc, ld = cls
    kind = "cart" if cart else "sph"
    pairs = dict.fromkeys([(la, lb), (lc, ld)])
    text = [class_header(cls, cart, registers, options)]
    text += [emit_hrr(*pair, spherical=not cart, transposed=True, options=options) for pair in pairs]
    text += [_explicit(*pair, cart, options) for pair in pairs if pair[1]]
    for side, pair in (("BRA", (la, lb)), ("KET", (lc, ld))):
        text.append(f"#define HRR_T_{side} hrr_t_{kind}_{class_name(pair)}")
        text.append(f"#define EXPLICIT_{side} explicit_{class_name(pair)}")
    if registers:
        text.append(emit_vrr_gradient(cls, options, name="vrr_gradient"))
    else:
        text += _sums(la, lb)
    return "\n".join(text) + "\n"
