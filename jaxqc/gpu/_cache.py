"""Cubins on disk: written atomically, checked when read, dispensable."""

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

_MAGIC = b"jaxqc cubin 2\n"
_SUFFIXES = (".cubin", ".tested", ".part")  # the last: of processes that were killed while they wrote
_warned: set[str] = set()


def folder() -> Path:
    """Where cubins are kept: JAXQC_CACHE_DIR, or jaxqc/kernels in the user's cache folder."""
    if override := os.environ.get("JAXQC_CACHE_DIR"):
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxqc" / "kernels"


def _path(key: str) -> Path:
    return folder() / f"{key}.cubin"


def _unpack(path: Path) -> tuple[str, str, bytes] | None:
    """The name of the unit, the compiler's log and the cubin; None where there is no file, or none that is whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head, digest, payload = data[: len(_MAGIC)], data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if head != _MAGIC or hashlib.sha256(payload).digest() != digest:
        return None  # cut off, damaged, or of another version: built again and replaced
    size = int.from_bytes(payload[:8], "little")
    name, _, log = payload[8 : 8 + size].decode(errors="replace").partition("\n")
    return name, log, payload[8 + size :]


def read(key: str) -> tuple[bytes, str] | None:
    """The cubin and the compiler's log of a key; None where there is none, or none that is whole."""
    found = _unpack(_path(key))
    return None if found is None else (found[2], found[1])


def entries() -> list[tuple[str, int]]:
    """The names of the units that are kept, sorted, with the bytes that each takes."""
    paths = folder().glob("*.cubin") if folder().is_dir() else ()
    found = ((_unpack(path), path.stat().st_size) for path in paths)
    return sorted((unit[0], size) for unit, size in found if unit is not None)


def write(key: str, name: str, cubin: bytes, log: str) -> None:
    """Keeps the cubin of the unit `name`. A folder that cannot be written to costs a warning, once."""
    text = f"{name}\n{log}".encode()
    payload = len(text).to_bytes(8, "little") + text + cubin
    temporary = None
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder(), suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
        os.chmod(temporary, 0o644)  # whoever shares the folder may read it
        os.replace(temporary, _path(key))  # several processes may do so at once: each writes the same whole file
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if str(folder()) not in _warned:
            _warned.add(str(folder()))
            warnings.warn(
                f"Compiled GPU kernels cannot be kept in {folder()}: {error}. They are compiled again in each process; "
                "set the environment variable JAXQC_CACHE_DIR to a folder that can be written to.",
                RuntimeWarning,
                stacklevel=2,
            )


def tested(key: str) -> bool:
    """Whether the kernels of a key have passed their test on a device."""
    return _path(key).with_suffix(".tested").is_file()


def mark_tested(key: str) -> None:
    """Notes that they have; where the folder cannot be written to, they are tested again in each process."""
    with contextlib.suppress(OSError):
        _path(key).with_suffix(".tested").touch()


def clear() -> int:
    """Removes all cubins that are kept, and what belongs to them, and returns their number.

    **Raises:** `RuntimeError` where a file cannot be removed.
    """
    kept = [path for path in folder().glob("*") if path.suffix in _SUFFIXES] if folder().is_dir() else []
    for path in kept:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RuntimeError(
                f"The compiled GPU kernels in {folder()} cannot all be removed: {error}. Remove the folder by hand, or "
                "name another one in the environment variable JAXQC_CACHE_DIR."
            ) from error
    return sum(path.suffix == ".cubin" for path in kept)
