"""`jaxqc scf`: reads the geometry, runs the calculation, prints and writes what came out."""

import os
import sys
import time
from pathlib import Path

from jaxqc import _config as _config  # before anything of JAX is used
from jaxqc._cli_kernels import describe_device
from jaxqc.cli import CONVERGED, NOT_CONVERGED, UsageError, other_platform

_INPUT_ERRORS = (TypeError, ValueError, OSError, NotImplementedError, ImportError)


def run(options) -> int:
    """Runs the command and returns the exit status."""
    start = time.perf_counter()
    _check_output(options)
    try:
        mol, settings, kernels = _prepare(options)
    except _INPUT_ERRORS as error:
        message = _sentence(error)
        _write_failure(options, message)
        raise UsageError(message) from error
    return _calculate(mol, settings, kernels, options, start)


def _prepare(options):
    """Everything that can be wrong with the input goes wrong here, before anything is computed."""
    from jaxqc.molecule import Molecule
    from jaxqc.scf._check import check_options

    if problem := other_platform():
        raise ValueError(problem)
    kernels = describe_device()
    mol = Molecule(
        _read(options.file),
        basis=options.basis,
        charge=options.charge,
        spin=options.spin,
        unit=options.unit,
        cart=options.cart,
    )
    settings = _settings(options)
    check_options(mol, options.xc, settings, report=True)
    return mol, settings, kernels


def _read(file):
    if file == "-":
        from jaxqc.io import parse_xyz

        if sys.stdin is None:
            raise ValueError("The geometry was to come from standard input, but that is closed.")
        labels, coords = parse_xyz(sys.stdin.read())
        return [label.text for label in labels], coords
    return Path(file)


def _settings(options):
    grid = {} if options.grid is None else {"grid": options.grid}
    return {
        **grid,
        "restricted": options.restricted,
        "guess": options.guess,
        "max_cycles": options.max_cycles,
        "tolerance": options.tolerance,
        "level_shift": options.level_shift,
        "damping": options.damping,
        "precision": options.precision,
        "second_order": True if options.second_order else "auto",
    }


def _calculate(mol, settings, kernels, options, start):
    import numpy as np

    import jaxqc
    from jaxqc._cli_interrupt import compiled_program
    from jaxqc._cli_view import Iterations, make_console, print_header, print_summary
    from jaxqc._summary import summarise
    from jaxqc.scf._check import check_options
    from jaxqc.scf._method import kind_name

    # The JSON has standard output for itself where it is sent there.
    console = make_console(stderr=options.json == "-", quiet=options.quiet)
    checked = check_options(mol, options.xc, settings, report=True)
    kind = kind_name(checked.reference, checked.method)
    kind += f" {options.xc}" if options.xc else ""
    print_header(console, mol, "standard input" if options.file == "-" else options.file, kind, kernels)
    with Iterations(console, start) as iterations, compiled_program():
        callback = None if options.quiet else iterations.report
        result = jaxqc.scf(mol, xc=options.xc, callback=callback, throw=False, **settings)
    converged = bool(result.converged)
    solved = time.perf_counter()
    gradient = None
    if options.gradient and converged:
        with console.status("gradient"), compiled_program():
            gradient = np.asarray(jaxqc.gradient(result))
    ended = time.perf_counter()
    if options.json:
        from jaxqc import qcschema

        data = qcschema.atomic_result(result, gradient, keywords=_keywords(options, settings), wall_time=ended - start)
        _write(data, options, driver="gradient" if options.gradient else "energy")
    if iterations.error is not None:
        raise iterations.error
    if not options.quiet:
        print_summary(console, result, summarise(result), gradient)
        parts = f" (gradient {ended - solved:.2f} s)" if gradient is not None else ""
        console.print(f"wall time {time.perf_counter() - start:.2f} s{parts}", highlight=False)
    if not converged:
        print(f"jaxqc scf: {_advice(result, options)}", file=sys.stderr)
        return NOT_CONVERGED
    if options.quiet and options.json != "-":
        print(f"{float(result.energy):.10f}")
    return CONVERGED


def _advice(result, options):
    from jaxqc.scf._view import misfit

    if not float(result.energy) == float(result.energy):
        return "The calculation met numbers that are not finite; check the geometry and the basis set."
    if coarse := misfit(result):
        return coarse
    return (
        f"The {result.kind} calculation did not converge within {int(result.cycles)} cycles. Try --max-cycles "
        f"{2 * max(options.max_cycles, 50)}, --second-order, --level-shift 0.3, --damping 0.3 or --guess core, or "
        "check charge, spin and geometry."
    )


def _keywords(options, settings):
    keywords = {key: value for key, value in settings.items() if value is not None}
    return {**keywords, "cart": options.cart}


def _check_output(options):
    """A file that cannot be written should be known before the calculation."""
    if not options.json or options.json == "-":
        return
    path = Path(options.json)
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"Argument --json is the directory {options.json!r}; give the name of a file.")
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"Argument --json is {options.json!r}, but that file cannot be written.")


def _write_failure(options, message):
    if not options.json:
        return
    from jaxqc import qcschema

    driver = "gradient" if options.gradient else "energy"
    model = {"method": options.xc or "hf", "basis": options.basis}
    keywords = {"charge": options.charge, "spin": options.spin, "unit": options.unit}
    keywords |= _keywords(options, _settings(options))
    data = qcschema.failed_result(driver, model, keywords, "input_error", message)
    _write(data, options, driver)


def _write(data, options, driver):
    from jaxqc import qcschema

    data["driver"] = driver
    if options.json == "-":
        sys.stdout.write(qcschema.dumps(data))
        sys.stdout.flush()
        return
    try:
        qcschema.write(data, options.json)
    except OSError as error:
        raise UsageError(f"The file {options.json!r} could not be written: {error.strerror}.") from error


def _sentence(error):
    """The message of an error in one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
