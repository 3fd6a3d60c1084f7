"""Checkpoints of a run with Orbax: written whole or not at all, checked when they are read.

Orbax writes a checkpoint beside its place and renames it when it is complete. A digest of all arrays is stored with
them, so that files damaged later are noticed as well; then the checkpoint before is used.
"""

import hashlib
import json
import re
from pathlib import Path

import jax
import numpy as np

_KEPT = 3


class Checkpoints:
    """A directory with the last checkpoints of one run.

    Args:
        directory: is made if it is not there.

    Raises:
        ImportError: Orbax is not installed.
    """

    def __init__(self, directory):
        try:
            import orbax.checkpoint as ocp
        except ModuleNotFoundError as error:
            raise ImportError(
                "Checkpoints of jaxqc.nnqs need Orbax; install it with `pip install orbax-checkpoint`, or jaxqc with "
                "the extra: `pip install 'jaxqc[train]'`."
            ) from error
        self._ocp = ocp
        self.directory = Path(directory).absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=_KEPT, enable_async_checkpointing=False, create=True, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options, item_names=("arrays", "record"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._manager.close()

    def save(self, step: int, tree, record: dict) -> None:
        """Writes a pytree of arrays and a record that JSON can hold, under a number that must be larger than before."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        shapes = [[list(leaf.shape), leaf.dtype.name] for leaf in leaves]
        record = {"digest": _digest(leaves), "shapes": shapes, "record": record}
        args = self._ocp.args
        saved = args.Composite(arrays=args.StandardSave(_named(leaves)), record=args.JsonSave(record))
        self._manager.save(step, args=saved, force=True)
        self._manager.wait_until_finished()

    def load(self):
        """The newest checkpoint that is whole.

        Returns:
            The leaves of the pytree in order and the record; None if there is no checkpoint.

        Raises:
            ValueError: there are checkpoints, and none of them can be read.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        problem = None
        for number, step in enumerate(steps):
            try:
                found = self._read(step)
            except Exception as error:  # whatever Orbax raises for files that are damaged
                problem = error
                continue
            for damaged in steps[:number]:
                self._manager.delete(damaged)
            return found
        if problem is not None:
            raise ValueError(
                f"None of the {len(steps)} checkpoints in {self.directory} can be read ({type(problem).__name__}); "
                "start again in another directory."
            ) from problem
        return None

    def check_unused(self, name: str) -> None:
        """Refuses a directory that has checkpoints.

        Raises:
            ValueError: there is one.
        """
        if steps := self._manager.all_steps():
            raise ValueError(
                f"Argument checkpoint of {name} is {str(self.directory)!r}, where a run has left checkpoints (up "
                f"to step {max(steps)}); go on with it by resume=True, or use another directory."
            )

    def _read(self, step):
        args = self._ocp.args
        record = self._manager.restore(step, args=args.Composite(record=args.JsonRestore()))["record"]
        blank = [np.zeros(shape, dtype) for shape, dtype in record["shapes"]]
        restored = self._manager.restore(step, args=args.Composite(arrays=args.StandardRestore(_named(blank))))[
            "arrays"
        ]
        leaves = [np.asarray(restored[name]) for name in _named(blank)]
        if _digest(leaves) != record["digest"]:
            raise ValueError("the digest is another one")
        return leaves, record["record"]


def _named(leaves):
    # A leaf of size zero would be left out, and Python's numbers would lose their type.
    return {f"{k:05d}": leaf for k, leaf in enumerate(leaves)}


def _digest(leaves):
    digest = hashlib.sha256()
    for leaf in leaves:
        digest.update(json.dumps([list(leaf.shape), leaf.dtype.name]).encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def described(thing) -> str:
    """`repr` without addresses in memory, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def fingerprint(*items) -> str:
    """A short text that changes with any array or setting among `items`; resuming needs the same one."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(items):
        digest.update(repr(leaf).encode() if not hasattr(leaf, "shape") else np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]
