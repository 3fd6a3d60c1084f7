"""Ctrl-C in the shell command: Python answers a signal only when the compiled program has ended, minutes later."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from jaxqc.cli import INTERRUPTED

_SHOW_CURSOR = "\x1b[?25h"  # the live table hides it


@contextlib.contextmanager
def answered_at_once() -> Iterator[None]:
    """Within this context Ctrl-C ends the process at once, with a word on standard error and exit status 130.

    The handler of the C library passes the signal to a thread through a pipe; Python's main thread has no part in it,
    for it waits for the compiled program. Where Ctrl-C is ignored (`nohup`) it stays so.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(target=_watch, args=(reader,), daemon=True)
    watcher.start()
    outer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer)
        signal.signal(signal.SIGINT, previous)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _watch(reader):
    while byte := os.read(reader, 1):
        if byte[0] == signal.SIGINT:
            with contextlib.suppress(OSError, AttributeError):  # closed, or gone with the terminal
                for stream in (sys.stdout, sys.stderr):
                    if stream.isatty():
                        os.write(stream.fileno(), _SHOW_CURSOR.encode())
                os.write(sys.stderr.fileno(), b"jaxqc: interrupted.\n")
            os._exit(INTERRUPTED)
