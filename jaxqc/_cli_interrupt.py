"""Ctrl-C in the shell command: Python answers a signal only when the compiled program has ended, minutes later."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_shell_command = False


@contextlib.contextmanager
def answered_at_once() -> Iterator[None]:
    """Within this context, that of the shell command, `compiled_program` lets Ctrl-C end the process."""
    global _shell_command
    _shell_command = True
    try:
        yield
    finally:
        _shell_command = False


@contextlib.contextmanager
def compiled_program() -> Iterator[None]:
    """Within this context Ctrl-C ends the shell command at once, with a word on standard error and exit status 130.

    The handler is one of the compiled library: a handler in Python would wait for the compiled program, or for the
    interpreter's lock. Where Ctrl-C is ignored (`nohup`), and in a Python session that calls `main`, it stays as it is.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (_shell_command and ours and threading.current_thread() is threading.main_thread()):
        yield
        return
    from jaxqc.integrals import _library

    library = _library.load()
    library.jaxqc_leave_on_interrupt(1)
    try:
        yield
    finally:
        library.jaxqc_leave_on_interrupt(0)
