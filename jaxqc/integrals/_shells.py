"""Contracted shells in the flat format of the compiled kernels, and linear maps along an axis of functions."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxqc.integrals._axis_map import AxisMap
from jaxqc.molecule import Molecule

# s and p functions carry the factor of their spherical harmonic; from d on it is in the spherical transformation
# (libcint's convention).
_ANGULAR_FACTOR = (0.282094791773878143, 0.488602511902919921)


def cartesian_size(l: int) -> int:
    """The number of Cartesian functions of a shell, (l + 1)(l + 2) / 2."""
    return (l + 1) * (l + 2) // 2


@functools.cache
def cartesian_powers(l: int) -> tuple[tuple[int, int, int], ...]:
    """The powers (lx, ly, lz) of a Cartesian shell in order: lx descending, then ly descending."""
    return tuple((x, y, l - x - y) for x in range(l, -1, -1) for y in range(l - x, -1, -1))


def cartesian_index(powers: tuple[int, int, int]) -> int:
    """The place of x^lx y^ly z^lz in its shell."""
    _, ly, lz = powers
    return (ly + lz) * (ly + lz + 1) // 2 + lz


@functools.cache
def cartesian_to_spherical_matrix(l: int) -> np.ndarray:
    r"""Coefficients of the real solid harmonics of degree `l` in $x^a y^b z^c$.

    Columns are the functions in PySCF's order (s; p as x, y, z; from d on $m = -l \dots l$), normalised to
    $\int Y_{lm}^2 d\Omega = 1$, except for s and p, whose factor belongs to the contraction coefficients.
    Formula: Helgaker, Jorgensen, Olsen, *Molecular Electronic-Structure Theory*, eqs. 6.4.47-50.

    **Returns:** shape `((l + 1)(l + 2) / 2, 2 l + 1)`.
    """
    if l < 2:
        return np.eye(2 * l + 1)
    matrix = np.zeros((cartesian_size(l), 2 * l + 1))
    for m in range(-l, l + 1):
        k = abs(m)
        norm = math.sqrt((2 if m else 1) * math.factorial(l + k) * math.factorial(l - k)) / (2**k * math.factorial(l))
        norm *= math.sqrt((2 * l + 1) / (4 * math.pi))
        for t in range((l - k) // 2 + 1):
            for u in range(t + 1):
                # v runs over integers for m >= 0 and over half-integers for m < 0; twice_v is 2 v.
                for twice_v in range(1 if m < 0 else 0, k + 1, 2):
                    sign = (-1) ** (t + twice_v // 2)
                    value = sign * 0.25**t * math.comb(l, t) * math.comb(l - t, k + t) * math.comb(t, u)
                    powers = (2 * t + k - 2 * u - twice_v, 2 * u + twice_v, l - 2 * t - k)
                    matrix[cartesian_index(powers), m + l] += norm * value * math.comb(k, twice_v)
    return matrix


def offsets(sizes: tuple[int, ...]) -> np.ndarray:
    """Where each of consecutive blocks begins, and where the last one ends; shape `(len(sizes) + 1,)`."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, int))]).astype(int)


@functools.cache
def cartesian_offsets(ls: tuple[int, ...]) -> np.ndarray:
    """First Cartesian function of each shell, and their number at the end."""
    return offsets(tuple(cartesian_size(l) for l in ls))


@functools.cache
def spherical_offsets(ls: tuple[int, ...]) -> np.ndarray:
    """First spherical function of each shell, and their number at the end."""
    return offsets(tuple(2 * l + 1 for l in ls))


@functools.cache
def cartesian_to_spherical(ls: tuple[int, ...]) -> AxisMap:
    """The map from the Cartesian to the spherical functions of the shells `ls`."""
    cart, sph = cartesian_offsets(ls), spherical_offsets(ls)
    out, source, weight = [], [], []
    for shell, l in enumerate(ls):
        matrix = cartesian_to_spherical_matrix(l)
        rows, columns = np.nonzero(matrix)
        source.append(rows + cart[shell])
        out.append(columns + sph[shell])
        weight.append(matrix[rows, columns])
    return AxisMap.from_entries(
        np.concatenate(out), np.concatenate(source), np.concatenate(weight), int(sph[-1]), int(cart[-1])
    )


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["centers", "exponents", "coefficients"],
    meta_fields=["ls", "nprims"],
)
@dataclasses.dataclass(frozen=True)
class ShellList:
    r"""Contracted shells, the operand of every integral kernel.

    A Cartesian function of shell $s$ is $x^a y^b z^c \sum_p c_p e^{-\alpha_p r^2}$ about the shell's centre,
    $a + b + c = l_s$, with all normalisation inside $c_p$.

    **Arguments:**

    - `ls`: angular momenta, one per shell; static.
    - `nprims`: numbers of primitives, one per shell; static.
    - `centers`: shape `(nshell, 3)`, Bohr.
    - `exponents`: shape `(sum(nprims),)`, 1/Bohr².
    - `coefficients`: shape `(sum(nprims),)`.
    """

    ls: tuple[int, ...]
    nprims: tuple[int, ...]
    centers: jax.Array
    exponents: jax.Array
    coefficients: jax.Array

    @property
    def nshell(self) -> int:
        """Number of shells."""
        return len(self.ls)

    @property
    def nao_cart(self) -> int:
        """Number of Cartesian functions."""
        return int(cartesian_offsets(self.ls)[-1])

    @property
    def nao_sph(self) -> int:
        """Number of spherical functions."""
        return int(spherical_offsets(self.ls)[-1])

    @property
    def cart_offsets(self) -> np.ndarray:
        """First Cartesian function of each shell, and `nao_cart` at the end; shape `(nshell + 1,)`."""
        return cartesian_offsets(self.ls)

    @property
    def sph_offsets(self) -> np.ndarray:
        """First spherical function of each shell, and `nao_sph` at the end; shape `(nshell + 1,)`."""
        return spherical_offsets(self.ls)

    @property
    def prim_offsets(self) -> np.ndarray:
        """First primitive of each shell, and their number at the end; shape `(nshell + 1,)`."""
        return offsets(self.nprims)

    @staticmethod
    def from_molecule(mol: Molecule) -> "ShellList":
        r"""The shells of a molecule with normalised coefficients, in the order of its functions.

        A primitive is normalised by $N_p = [\int r^{2l+2} e^{-2\alpha_p r^2} dr]^{-1/2}$ and the contracted radial
        function to 1, as PySCF does. Differentiable in the coordinates, exponents and coefficients of `mol`.
        """
        return _shells_of(mol)


@jax.jit  # within a program traced once, and outside of jit one program
def _shells_of(mol: Molecule) -> ShellList:
    layout = _molecule_layout(mol.shells, mol.natm, mol.exponents.shape[0], mol.coefficients.shape[0])
    exponents = layout.exponents(mol.exponents, 0) + jnp.asarray(layout.padding)
    coefficients = _normalised(layout.ls, exponents, layout.coefficients(mol.coefficients, 0))
    return ShellList(
        layout.ls,
        layout.nprims,
        layout.centers(mol.coords, 0),
        layout.flatten(exponents, 0),
        layout.flatten(coefficients, 0),
    )


@dataclasses.dataclass(frozen=True)
class _MoleculeLayout:
    """How the arrays of a molecule become those of its shells, by way of one row of equal length for each shell."""

    ls: tuple[int, ...]
    nprims: tuple[int, ...]
    centers: AxisMap
    exponents: AxisMap
    coefficients: AxisMap
    padding: np.ndarray  # 1 where a row has no primitive: an exponent that does no harm
    flatten: AxisMap


@functools.lru_cache(maxsize=64)
def _molecule_layout(shells, natm: int, nexponent: int, ncoefficient: int) -> _MoleculeLayout:
    nprims = tuple(shell.nprim for shell in shells)
    width = max(nprims)
    place = np.concatenate([row * width + np.arange(n) for row, n in enumerate(nprims)])
    exponent_of = np.concatenate([shell.exponent_start + np.arange(shell.nprim) for shell in shells])
    coefficient_of = np.concatenate([shell.coefficient_start + np.arange(shell.nprim) for shell in shells])
    ones, size = np.ones(len(place)), len(shells) * width
    padding = np.ones(size)
    padding[place] = 0
    return _MoleculeLayout(
        tuple(shell.l for shell in shells),
        nprims,
        AxisMap.take(np.array([shell.atom for shell in shells]), natm),
        AxisMap.from_entries(place, exponent_of, ones, size, nexponent),
        AxisMap.from_entries(place, coefficient_of, ones, size, ncoefficient),
        padding,
        AxisMap.take(place, size),
    )


def _radial_integral(l: np.ndarray, exponent: jax.Array) -> jax.Array:
    """int_0^inf r^(2l+2) exp(-exponent r^2) dr = Gamma(l + 3/2) / (2 exponent^(l + 3/2))."""
    gamma = np.array([math.gamma(k + 1.5) / 2 for k in range(int(np.max(l)) + 1)])
    return jnp.asarray(gamma[l]) * exponent ** jnp.asarray(-(l + 1.5))


def _normalised(ls: tuple[int, ...], exponents: jax.Array, raw: jax.Array) -> jax.Array:
    """Coefficients of normalised functions, with the factor of s and p; all arrays are rows of shells, flattened."""
    l_of = np.asarray(ls)[:, None]
    exponents, raw = exponents.reshape(len(ls), -1), raw.reshape(len(ls), -1)
    coefficients = raw / jnp.sqrt(_radial_integral(l_of, 2.0 * exponents))
    pairs = _radial_integral(l_of[:, None], exponents[:, :, None] + exponents[:, None, :])
    norm = jnp.sum(coefficients[:, :, None] * coefficients[:, None, :] * pairs, axis=(1, 2))
    factor = np.array([_ANGULAR_FACTOR[l] if l < 2 else 1.0 for l in ls])
    return (coefficients * (jnp.asarray(factor) / jnp.sqrt(norm))[:, None]).reshape(-1)


def primitive_norms(ls: np.ndarray, exponents: jax.Array) -> jax.Array:
    """Coefficients of normalised primitives of the angular momenta `ls`, with the factor of s and p; shape `(n,)`."""
    factor = np.array([_ANGULAR_FACTOR[l] if l < 2 else 1.0 for l in ls])
    return jnp.asarray(factor) / jnp.sqrt(_radial_integral(np.asarray(ls), 2.0 * exponents))
