"""Geometries of any size for tests and benchmarks: water clusters, polyglycine, boron nitride.

Each builder returns a pair of symbols and coordinates (natm, 3) in Angstrom, which `jaxqc.Molecule` takes as it is. The
same arguments always give the same geometry.
"""

import numpy as np

from jaxqc.elements import shorten

WATER_SPACING = 2.95  # Angstrom, between neighbouring oxygens
_OH, _HOH = 0.9572, np.deg2rad(104.52)  # Benedict, Gailar, Plyler 1956, doi:10.1063/1.1742731
_BN = 1.446  # Angstrom, hexagonal boron nitride (lattice constant 2.504)


def water_cluster(n: int) -> tuple[list[str], np.ndarray]:
    """Returns n water molecules on a cubic grid with neighbouring oxygens 2.95 Angstrom apart.

    Each molecule points its hydrogens at two neighbours; rows and layers alternate, so that their dipoles cancel.

    Args:
        n: the number of molecules.

    Returns:
        Symbols (O, H, H for each molecule) and coordinates (3 n, 3) in Angstrom.

    Raises:
        TypeError, ValueError: n is not a positive integer.

    Example:
        >>> symbols, coords = water_cluster(10)
        >>> len(symbols), coords.shape
        (30, (30, 3))
    """
    _check_count(n, "n")
    side = next(s for s in range(1, n + 1) if s**3 >= n)
    coords = []
    for k in range(n):
        x, y, z = k % side, k // side % side, k // side**2
        along, across = (-1.0) ** y, (-1.0) ** z
        oxygen = WATER_SPACING * np.array([x, y, z], dtype=float)
        first = np.array([along, 0.0, 0.0])
        second = np.array([along * np.cos(_HOH), across * np.sin(_HOH), 0.0])
        coords += [oxygen, oxygen + _OH * first, oxygen + _OH * second]
    return ["O", "H", "H"] * n, np.array(coords)


def polyglycine(n: int) -> tuple[list[str], np.ndarray]:
    """Returns the stretched peptide H-(NH-CH2-CO)n-OH of n glycines, with 7 n + 3 atoms.

    Bond lengths and angles are those of Engh and Huber (doi:10.1107/S0108767391001071); all backbone torsions are 180
    degrees.

    Args:
        n: the number of residues.

    Returns:
        Symbols and coordinates (7 n + 3, 3) in Angstrom.

    Raises:
        TypeError, ValueError: n is not a positive integer.

    Example:
        >>> symbols, coords = polyglycine(2)
        >>> len(symbols)
        17
    """
    _check_count(n, "n")
    # The backbone N, CA, C of each residue, then the N of the next one (the O of the acid at the end).
    lengths = [1.458, 1.525, 1.329]  # N-CA, CA-C, C-N
    angles = [111.0, 116.2, 121.7]  # N-CA-C, CA-C-N, C-N-CA
    chain = [np.zeros(3), np.array([lengths[0], 0.0, 0.0])]
    chain.append(chain[1] + 1.525 * _turn(angles[0]))
    for k in range(3, 3 * n + 1):
        chain.append(_place(chain[-3], chain[-2], chain[-1], lengths[(k - 1) % 3], angles[(k - 2) % 3], 180.0))
    symbols, coords = [], []

    def add(symbol, position):
        symbols.append(symbol)
        coords.append(position)

    for residue in range(n):
        nitrogen, alpha, carbon, following = chain[3 * residue : 3 * residue + 4]
        add("N", nitrogen)
        add("C", alpha)
        add("C", carbon)
        add("O", _place(following, alpha, carbon, 1.231, 120.1, 180.0))
        for side in (120.0, -120.0):
            add("H", _place(carbon, nitrogen, alpha, 1.09, 109.5, side))
        if residue == 0:
            for torsion in (60.0, -60.0):
                add("H", _place(carbon, alpha, nitrogen, 1.01, 109.5, torsion))
        else:
            previous = chain[3 * residue - 1]
            add("H", _place(previous, alpha, nitrogen, 1.01, 119.0, 180.0))
    add("O", chain[3 * n])
    add("H", _place(chain[3 * n - 2], chain[3 * n - 1], chain[3 * n], 0.97, 107.0, 180.0))
    return symbols, np.array(coords)


def boron_nitride(rows: int, columns: int) -> tuple[list[str], np.ndarray]:
    """Returns a flat flake of hexagonal boron nitride with rows x columns rings, its edge closed by hydrogens.

    One ring is borazine, B3N3H6. Bonds: B-N 1.446, B-H 1.19, N-H 1.01 Angstrom.

    Args:
        rows: the number of rows of rings.
        columns: the number of rings in a row.

    Returns:
        Symbols and coordinates in Angstrom: boron and nitrogen first, then hydrogen.

    Raises:
        TypeError, ValueError: an argument is not a positive integer.

    Example:
        >>> symbols, coords = boron_nitride(1, 1)
        >>> sorted(set(symbols)), len(symbols)
        (['B', 'H', 'N'], 12)
    """
    _check_count(rows, "rows")
    _check_count(columns, "columns")
    lattice = np.sqrt(3.0) * _BN * np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)]])
    corners = np.deg2rad(30.0 + 60.0 * np.arange(6))
    sites: dict[tuple[int, int], tuple[str, np.ndarray]] = {}
    for i in range(rows):
        for j in range(columns):
            for k, angle in enumerate(corners):
                site = j * lattice[0] + i * lattice[1] + _BN * np.array([np.cos(angle), np.sin(angle)])
                sites.setdefault((round(100 * site[0]), round(100 * site[1])), ("BN"[k % 2], site))
    symbols = [symbol for symbol, _ in sites.values()]
    flat = np.array([site for _, site in sites.values()])
    bonds = np.linalg.norm(flat[:, None] - flat[None], axis=-1) < 1.1 * _BN
    np.fill_diagonal(bonds, False)
    hydrogens = []
    for atom in np.flatnonzero(bonds.sum(axis=1) == 2):
        outward = 2 * flat[atom] - flat[bonds[atom]].sum(axis=0)
        length = {"B": 1.19, "N": 1.01}[symbols[atom]]
        hydrogens.append(flat[atom] + length * outward / np.linalg.norm(outward))
    flat = np.concatenate([flat, np.array(hydrogens)])
    return symbols + ["H"] * len(hydrogens), np.pad(flat, ((0, 0), (0, 1)))


def _check_count(value, name):
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"Argument {name} must be a positive integer, but it is {shorten(value)}.")
    if value < 1:
        raise ValueError(f"Argument {name} must be a positive integer, but it is {value}.")


def _turn(angle):
    """Direction of a bond in the xy plane that makes `angle` (degrees) with the bond before it along x."""
    angle = np.deg2rad(angle)
    return np.array([-np.cos(angle), np.sin(angle), 0.0])


def _place(a, b, c, length, angle, torsion):
    """Returns the position d with the bond length c-d, the angle b-c-d and the torsion a-b-c-d (degrees)."""
    angle, torsion = np.deg2rad(angle), np.deg2rad(torsion)
    along = (c - b) / np.linalg.norm(c - b)
    normal = np.cross(b - a, along)
    normal /= np.linalg.norm(normal)
    inward = np.cross(normal, along)
    local = np.array([-np.cos(angle), np.sin(angle) * np.cos(torsion), np.sin(angle) * np.sin(torsion)])
    return c + length * (local[0] * along + local[1] * inward + local[2] * normal)
