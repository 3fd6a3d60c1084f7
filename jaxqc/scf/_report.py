"""The live report of iterations: host callbacks that do not make a program compile anew."""

import itertools
import sys

import jax

_callbacks = {}
_failures = {}
_handles = itertools.count(1)


def register(callback):
    """Gives `callback(cycle, energy, change, gradient_norm, second_order)` a handle for `report`."""
    handle = next(_handles)
    _callbacks[handle] = callback
    return handle


def unregister(handle):
    """Waits for the reports under way, forgets the callback, and raises what it has raised."""
    jax.effects_barrier()
    _callbacks.pop(handle, None)
    failure = _failures.pop(handle, None)
    if failure is not None:
        raise failure


def _dispatch(handle, cycle, energy, change, gradient_norm, *, second_order):
    callback = _callbacks.get(int(handle))
    if callback is None:
        return
    try:
        callback(int(cycle), float(energy), float(change), float(gradient_norm), second_order)
    except Exception as failure:
        # It cannot pass through the compiled program; `unregister` raises it afterwards, and no more is reported.
        _failures[int(handle)] = failure
        _callbacks.pop(int(handle), None)


def report(handle, cycle, energy, change, gradient_norm, second_order):
    """Calls the callback behind `handle`, a traced integer, from inside the iterations."""

    def dispatch(*arguments):
        _dispatch(*arguments, second_order=second_order)

    jax.debug.callback(dispatch, handle, cycle, energy, change, gradient_norm)


def print_table(stream=None):
    """A callback that prints one line for each cycle."""
    stream = stream or sys.stderr
    header = f"{'cycle':>5}  {'energy / Hartree':>20}  {'change':>10}  {'gradient':>10}  method"

    def line(cycle, energy, change, gradient_norm, second_order):
        if cycle == 1:
            print(header, file=stream)
        method = "second order" if second_order else "DIIS"
        print(f"{cycle:5d}  {energy:20.10f}  {change:10.2e}  {gradient_norm:10.2e}  {method}", file=stream, flush=True)

    return line
