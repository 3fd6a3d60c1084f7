"""Quadrature around one atom: radial points, angular points, pruning. The points are those of PySCF's `gen_grid`.

Plain NumPy: all of this depends on the element and the options only, never on coordinates.
"""

import functools

import numpy as np

LEVELS = 10
PRUNINGS = ("nwchem", "sg1", "treutler", None)

_LAST_OF_PERIOD = (2, 10, 18, 36, 54, 86)
# Radial points and angular degree by level (row) and period (column), as PySCF 2.14 has them.
_RADIAL = (
    (10, 15, 20, 30, 35, 40, 50),
    (30, 40, 50, 60, 65, 70, 75),
    (40, 60, 65, 75, 80, 85, 90),
    (50, 75, 80, 90, 95, 100, 105),
    (60, 90, 95, 105, 110, 115, 120),
    (70, 105, 110, 120, 125, 130, 135),
    (80, 120, 125, 135, 140, 145, 150),
    (90, 135, 140, 150, 155, 160, 165),
    (100, 150, 155, 165, 170, 175, 180),
    (200, 200, 200, 200, 200, 200, 200),
)
_ANGULAR = (
    (50, 86, 110, 110, 110, 110, 110),
    (110, 194, 194, 194, 194, 194, 194),
    (194, 302, 302, 302, 302, 302, 302),
    (302, 302, 434, 434, 434, 434, 434),
    (434, 590, 590, 590, 590, 590, 590),
    (590, 770, 770, 770, 770, 770, 770),
    (770, 974, 974, 974, 974, 974, 974),
    (974, 1202, 1202, 1202, 1202, 1202, 1202),
    (1202, 1202, 1202, 1202, 1202, 1202, 1202),
    (1454, 1454, 1454, 1454, 1454, 1454, 1454),
)
# Points of the Lebedev rules on the sphere (V. I. Lebedev, D. N. Laikov, Doklady Mathematics 59, 477, 1999).
# fmt: off
LEBEDEV = (
    6, 14, 26, 38, 50, 74, 86, 110, 146, 170, 194, 230, 266, 302, 350, 434, 590, 770, 974, 1202, 1454, 1730, 2030,
    2354, 2702, 3074, 3470, 3890, 4334, 4802, 5294, 5810,
)
# Radius parameter xi of Treutler and Ahlrichs, doi:10.1063/1.469408 (H to Kr); beyond as in Psi4 and PySCF.
# 0 is no element.
_XI = (
    1.0,
    0.8, 0.9,
    1.8, 1.4, 1.3, 1.1, 0.9, 0.9, 0.9, 0.9,
    1.4, 1.3, 1.3, 1.2, 1.1, 1.0, 1.0, 1.0,
    1.5, 1.4, 1.3, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.1, 1.1, 1.1, 1.1, 1.0, 0.9, 0.9, 0.9, 0.9,
    2.0, 1.7, 1.5, 1.5, 1.35, 1.35, 1.25, 1.2, 1.25, 1.3, 1.5, 1.5, 1.3, 1.2, 1.2, 1.15, 1.15, 1.15,
    2.5, 2.2, 2.5, *(1.5,) * 29,
    2.5, 2.1, 3.685, *(1.5,) * 14,
)
# Radii (Bohr) of the SG1 pruning, doi:10.1016/0009-2614(93)80125-9.
_SG1_RADII = (
    1.0,
    1.0, 0.5882,
    3.0769, 2.0513, 1.5385, 1.2308, 1.0256, 0.8791, 0.7692, 0.6838,
    4.0909, 3.1579, 2.5714, 2.1687, 1.8750, 1.6514, 1.4754, 1.3333,
)
# fmt: on
MAX_NUMBER = len(_XI) - 1
MAX_SG1_NUMBER = len(_SG1_RADII) - 1
# Limits between the zones of a pruned grid in units of the radius of the atom: H and He; Li to Ne; beyond.
_ZONES = ((0.25, 0.5, 1.0, 4.5), (0.1667, 0.5, 0.9, 3.5), (0.1, 0.4, 0.8, 2.5))


def level_size(number: int, level: int) -> tuple[int, int]:
    """The numbers of radial and (largest) angular points of an element at a level."""
    period = sum(number > last for last in _LAST_OF_PERIOD)
    return _RADIAL[level][period], _ANGULAR[level][period]


def bragg_radii(numbers) -> np.ndarray:
    """Bragg-Slater radii in Bohr, as in PySCF (doi:10.1063/1.1725697)."""
    from pyscf.data.radii import BRAGG

    return np.asarray(BRAGG, dtype=float)[np.asarray(numbers, dtype=int)]


def radial_points(n: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Radial quadrature M4 of Treutler and Ahlrichs (doi:10.1063/1.469408) on Chebyshev points of the second kind.

    $$r(x) = \frac{\xi}{\ln 2} (1 + x)^{0.6} \ln\frac{2}{1 - x}, \qquad
    \int_0^\infty f(r)\,dr \approx \sum_k f(r_k)\,dr_k$$

    Args:
        n: the number of points.
        number: atomic number, which sets xi; 0 for a ghost without an element.

    Returns:
        r (n,) in Bohr, rising, and dr (n,) in Bohr.
    """
    step = np.pi / (n + 1)
    angle = step * np.arange(1, n + 1)
    x = np.cos(angle)
    scale = _XI[number] / np.log(2)
    power, log = (1 + x) ** 0.6, np.log((1 - x) / 2)
    r = -scale * power * log
    dr = step * np.sin(angle) * scale * power * (-0.6 / (1 + x) * log + 1 / (1 - x))
    return r[::-1], dr[::-1]


def angular_sizes(number: int, r: np.ndarray, n_angular: int, prune: str | None) -> np.ndarray:
    """The number of angular points at each radial point r (Bohr)."""
    if prune is None:
        return np.full(len(r), n_angular)
    if prune == "treutler":
        sizes = np.full(len(r), n_angular)
        sizes[: len(r) // 2] = 50
        sizes[: len(r) // 3] = 14
        return sizes
    limits = _ZONES[0 if number <= 2 else 1 if number <= 10 else 2]
    if prune == "sg1":  # doi:10.1016/0009-2614(93)80125-9
        zones, radius = np.array([6, 38, 86, 194, 86]), _SG1_RADII[number]
    else:
        if n_angular < 50:
            return np.full(len(r), n_angular)
        radius = float(bragg_radii(number))
        k = LEBEDEV.index(n_angular)
        inner = (50, 74, 74, 74, 50) if n_angular == 50 else (50, 86, LEBEDEV[k - 1], n_angular, LEBEDEV[k - 1])
        zones = np.array(inner)
    zone = (r[:, None] / (radius + 1e-200) > np.array(limits)).sum(axis=1)
    return zones[zone]


@functools.lru_cache(maxsize=128)
def atom_grid(number: int, n_radial: int, n_angular: int, prune: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of the quadrature around one atom, in PySCF's order.

    Args:
        number: atomic number; 0 for a ghost without an element.
        n_radial, n_angular: radial points, and angular points where nothing is pruned.
        prune: `"nwchem"`, `"sg1"`, `"treutler"` or None.

    Returns:
        Offsets (n, 3) from the nucleus in Bohr and weights (n,) in Bohr^3, which integrate over all space.
    """
    from pyscf.dft.LebedevGrid import MakeAngularGrid

    r, dr = radial_points(n_radial, number)
    volume = 4 * np.pi * r**2 * dr
    sizes = angular_sizes(number, r, n_angular, prune)
    offsets, weights = [], []
    for size in sorted(set(sizes.tolist())):
        sphere = MakeAngularGrid(size)
        (shells,) = np.nonzero(sizes == size)
        for start in range(0, len(shells), 12):  # PySCF's groups of 12 radial points
            part = shells[start : start + 12]
            offsets.append((sphere[:, None, :3] * r[part][None, :, None]).reshape(-1, 3))
            weights.append((sphere[:, None, 3] * volume[part]).ravel())
    joined = np.concatenate(offsets), np.concatenate(weights)
    for array in joined:
        array.setflags(write=False)
    return joined
