"""FCIDUMP files (Knowles and Handy, Comput. Phys. Commun. 54, 75 (1989), doi:10.1016/0010-4655(89)90033-7)."""

import re
from pathlib import Path

import numpy as np

_END = re.compile(r"^\s*(?:&END|/|\$END)\s*$|/\s*$", re.IGNORECASE | re.MULTILINE)


def read(path) -> dict:
    """Arguments of `Hamiltonian.from_integrals` from a file.

    Raises:
        ValueError: the file is not a FCIDUMP, or contradicts itself.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    end = _END.search(text)
    if not re.match(r"\s*[&$]FCI\b", text, re.IGNORECASE) or end is None:
        raise ValueError(f"The file {path} is not a FCIDUMP: it must begin with &FCI and its header end with &END.")
    header = _header(text[: end.start()], path)
    norb, nelec, ms2 = (header[name] for name in ("NORB", "NELEC", "MS2"))
    if norb < 1:
        raise ValueError(f"The file {path} has NORB={norb}; it must be at least 1.")
    if (nelec + ms2) % 2 or abs(ms2) > nelec or not 1 <= nelec <= 2 * norb or (nelec + abs(ms2)) // 2 > norb:
        raise ValueError(
            f"The header of {path} contradicts itself: NELEC={nelec} electrons with MS2={ms2} unpaired do not fit into "
            f"NORB={norb} orbitals. MS2 must be even or odd as NELEC is, and (NELEC + |MS2|) / 2 at most NORB."
        )
    constant, one, two = _integrals(text[end.end() :], norb, path)
    irreps = header["ORBSYM"]
    if irreps is not None and len(irreps) != norb:
        raise ValueError(f"The file {path} has {len(irreps)} labels in ORBSYM, but NORB={norb}; the counts must agree.")
    if irreps is not None:
        irreps = [g - 1 for g in irreps] if min(irreps) >= 1 else None  # Molpro's labels begin with 1
    nalpha = (nelec + ms2) // 2
    return {
        "one": one, "two": two, "nalpha": nalpha, "nbeta": nelec - nalpha, "constant": constant, "irreps": irreps
    }  # fmt: skip


def _header(text, path):
    values = {"MS2": 0, "ORBSYM": None}
    found = re.findall(r"([A-Za-z_]\w*)\s*=\s*([^=]*?)(?=,?\s*[A-Za-z_]\w*\s*=|\s*$)", text)
    for name, value in found:
        name = name.upper()
        if name in ("IUHF", "UHF") and re.search(r"1|T", value, re.IGNORECASE):
            raise ValueError(f"The file {path} has spin-unrestricted integrals ({name}={value}); only one set is read.")
        if name in ("NORB", "NELEC", "MS2", "ORBSYM"):
            try:
                numbers = [int(part) for part in value.replace(",", " ").split()]
            except ValueError:
                numbers = []
            if not numbers or (name != "ORBSYM" and len(numbers) != 1):
                raise ValueError(f"The header of {path} has {name}={value.strip()!r}, which is not a whole number.")
            values[name] = numbers if name == "ORBSYM" else numbers[0]
    for name in ("NORB", "NELEC"):
        if name not in values:
            raise ValueError(f"The header of {path} lacks {name}.")
    return values


def _integrals(body, norb, path):
    words = re.sub(r"(?<=[\d.])[dD](?=[+-]?\d)", "e", body).split()
    try:
        table = np.array(words, np.float64)
    except ValueError:
        bad = next(word for word in words if not _is_number(word))
        raise ValueError(
            f"The file {path} has {bad!r} among its integrals; a line is a real number and four orbitals."
        ) from None
    if table.size % 5:
        raise ValueError(
            f"The file {path} has {table.size} numbers after its header, which are not lines of five (an integral and "
            "four orbitals); it may be cut short."
        )
    table = table.reshape(-1, 5)
    value, index = table[:, 0], table[:, 1:].astype(np.int64)
    if not np.array_equal(index, table[:, 1:]) or (index.size and (index.min() < 0 or index.max() > norb)):
        line = int(np.argmax(np.any((index < 0) | (index > norb) | (index != table[:, 1:]), axis=1)))
        raise ValueError(
            f"Integral {line + 1} of {path} has the orbitals {table[line, 1:].tolist()}, which must be whole numbers "
            f"from 0 to NORB={norb}."
        )
    zeros = np.sum(index == 0, axis=1)
    both, single, alone = zeros == 0, (zeros == 2) & (index[:, 2] == 0) & (index[:, 3] == 0), zeros == 4
    energies = (zeros == 3) & (index[:, 0] > 0)  # orbital energies, which are not needed
    if not np.all(both | single | alone | energies):
        line = int(np.argmin(both | single | alone | energies))
        raise ValueError(f"Integral {line + 1} of {path} has the orbitals {index[line].tolist()}, which mean nothing.")
    two, one = np.zeros((norb,) * 4), np.zeros((norb, norb))
    i, j, k, l = index[both].T - 1
    for a, b, c, d in (
        (i, j, k, l), (j, i, k, l), (i, j, l, k), (j, i, l, k), (k, l, i, j), (l, k, i, j), (k, l, j, i), (l, k, j, i)
    ):  # fmt: skip
        two[a, b, c, d] = value[both]
    i, j = index[single, :2].T - 1
    one[i, j] = one[j, i] = value[single]
    return float(np.sum(value[alone])), one, two


def _is_number(word):
    try:
        float(word)
    except ValueError:
        return False
    return True


def write(ham, path, tolerance) -> None:
    """Writes a Hamiltonian."""
    norb = ham.norb
    labels = ham.irreps or (0,) * norb
    lines = [
        f"&FCI NORB={norb},NELEC={ham.nalpha + ham.nbeta},MS2={ham.nalpha - ham.nbeta},",
        " ORBSYM=" + ",".join(str(g + 1) for g in labels) + ",",
        " ISYM=1,",
        "&END",
    ]
    two, one = np.asarray(ham.two), np.asarray(ham.one)
    i, j = np.tril_indices(norb)
    pairs = two[i, j][:, i, j]
    row, column = np.nonzero(np.tril(np.abs(pairs) > tolerance))
    entry = "{: .17e} {:4d} {:4d} {:4d} {:4d}".format
    for r, c in zip(row.tolist(), column.tolist(), strict=True):
        lines.append(entry(pairs[r, c], i[r] + 1, j[r] + 1, i[c] + 1, j[c] + 1))
    for p, q in zip(i.tolist(), j.tolist(), strict=True):
        if abs(one[p, q]) > tolerance:
            lines.append(entry(one[p, q], p + 1, q + 1, 0, 0))
    lines.append(entry(float(ham.constant), 0, 0, 0, 0))
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
