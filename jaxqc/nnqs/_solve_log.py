"""Where a run of `solve` writes its records: lines of JSON, and scalars that TensorBoard reads."""

import json
from pathlib import Path

import jax


class Writers:
    """Open files of one run, of the first process only.

    Args:
        log: path of a file, a JSON object a line; or None.
        tensorboard: directory of event files; or None.
        history: records of a run that is resumed, which are in the event files already.

    Raises:
        ImportError: tensorboardX is not installed.
    """

    def __init__(self, log, tensorboard, history):
        first = jax.process_index() == 0
        self.log = Path(log) if log is not None and first else None
        if self.log is not None:
            self.log.write_text("".join(json.dumps(record) + "\n" for record in history), encoding="utf-8")
        self.events = None
        if tensorboard is not None:
            writer = _import_writer()
            if first:  # what a run that was cut off wrote after its last checkpoint is left out
                purge = history[-1]["step"] + 1 if history else None
                self.events = writer(str(tensorboard), purge_step=purge)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.events is not None:
            self.events.close()

    def write(self, record: dict) -> None:
        """Adds one record."""
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if self.events is not None:
            for tag, value in scalars(record):
                self.events.add_scalar(tag, value, record["step"])


def scalars(record: dict) -> list[tuple[str, float]]:
    """Names and values of the numbers of a record: energies by the kind of the record, and those of excited states."""
    kind = record["kind"]
    found = [(f"{kind}/{name}", value) for name, value in record.items() if name not in ("step", "excited")]
    for k, state in enumerate(record.get("excited", ()), start=1):
        found += [(f"{kind}/{name}_{k}", v) for name, v in zip(("e_ci", "e_pt2", "spin_square"), state, strict=True)]
    return [(tag, value) for tag, value in found if isinstance(value, int | float)]


def _import_writer():
    try:
        from tensorboardX import SummaryWriter
    except ModuleNotFoundError as error:
        raise ImportError(
            "Event files for TensorBoard need tensorboardX; install it with `pip install tensorboardX`, or jaxqc with "
            "the extra: `pip install 'jaxqc[train]'`."
        ) from error
    return SummaryWriter
