"""What GPUs of each architecture hold."""

_STATIC = 512  # bytes of shared memory that the kernels declare themselves, and more


def shared_limit(arch: int, blocks: int = 1) -> int:
    """Bytes of shared memory that each of so many blocks on one multiprocessor may have."""
    total = {80: 164, 87: 164, 90: 228, 100: 228, 103: 228}.get(arch, 100) * 1024
    return total // blocks - 1024 - _STATIC
