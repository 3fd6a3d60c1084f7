"""The shell command: what it prints and writes, against PySCF, and its exit statuses."""

import ctypes
import ctypes.util
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import gto, scf

from jaxqc import cli

EXAMPLES = Path(__file__).parents[1] / "examples"
WATER = str(EXAMPLES / "water.xyz")
METHYL = str(EXAMPLES / "methyl_radical.xyz")


def reference(file, basis, method=scf.RHF, **options) -> Any:
    mean_field = method(gto.M(atom=str(file), basis=basis, verbose=0, **options))
    mean_field.conv_tol = 1e-11
    mean_field.kernel()
    assert mean_field.converged and mean_field.mo_energy is not None
    return mean_field


def json_of(capsys, *arguments):
    status = cli.main(["scf", *arguments, "--json", "-"])
    return status, json.loads(capsys.readouterr().out)


def test_energy_gradient_and_properties_agree_with_pyscf(capsys):
    status, data = json_of(capsys, WATER, "--basis", "6-31g", "--gradient")
    expected = reference(WATER, "6-31g")
    slopes = expected.nuc_grad_method().kernel()
    assert status == 0
    properties = data["properties"]
    np.testing.assert_allclose(properties["scf_total_energy"], expected.e_tot, atol=1e-9)
    np.testing.assert_allclose(properties["nuclear_repulsion_energy"], expected.energy_nuc(), atol=1e-10)
    summary = expected.scf_summary
    np.testing.assert_allclose(properties["scf_one_electron_energy"], summary["e1"], atol=1e-5)
    np.testing.assert_allclose(properties["scf_two_electron_energy"], summary["e2"], atol=1e-5)
    np.testing.assert_allclose(properties["scf_dipole_moment"], expected.dip_moment(unit="AU", verbose=0), atol=1e-6)
    np.testing.assert_allclose(properties["scf_total_gradient"], slopes.ravel(), atol=1e-7)
    np.testing.assert_allclose(data["return_result"], slopes.ravel(), atol=1e-7)
    np.testing.assert_allclose(
        data["extras"]["jaxqc"]["mulliken_charges"], expected.mulliken_pop(verbose=0)[1], atol=1e-6
    )
    levels = data["extras"]["jaxqc"]["levels"]
    assert [(level["name"], level["number"]) for level in levels] == [("HOMO", 5), ("LUMO", 6)]
    np.testing.assert_allclose([level["energy"] for level in levels], expected.mo_energy[4:6], atol=1e-6)
    np.testing.assert_allclose(data["extras"]["jaxqc"]["gap"], np.diff(expected.mo_energy[4:6])[0], atol=1e-6)
    assert properties["calcinfo_nbasis"] == properties["calcinfo_nmo"] == expected.mol.nao
    assert (properties["calcinfo_nalpha"], properties["calcinfo_nbeta"], properties["calcinfo_natom"]) == (5, 5, 3)


def test_qcschema_has_the_fields_that_the_schema_requires(capsys):
    _, data = json_of(capsys, WATER, "--basis", "sto-3g")
    assert (data["schema_name"], data["schema_version"]) == ("qcschema_output", 1)
    required = {"molecule", "driver", "model", "keywords", "properties", "provenance", "return_result", "success"}
    assert required <= set(data)
    assert data["driver"] == "energy" and data["success"] is True and data["error"] is None
    assert data["model"] == {"method": "hf", "basis": "sto-3g"}
    assert {"creator", "version", "routine"} <= set(data["provenance"])
    assert data["return_result"] == data["properties"]["return_energy"] == data["properties"]["scf_total_energy"]
    mol = gto.M(atom=WATER, basis="sto-3g")
    assert data["molecule"]["symbols"] == ["O", "H", "H"]
    assert data["molecule"]["molecular_charge"] == 0 and data["molecule"]["molecular_multiplicity"] == 1
    np.testing.assert_allclose(data["molecule"]["geometry"], mol.atom_coords().ravel(), atol=1e-12)


@pytest.mark.parametrize(("flag", "method"), [((), scf.UHF), (("--restricted",), scf.ROHF)])
def test_open_shells(capsys, flag, method):
    status, data = json_of(capsys, METHYL, "--basis", "6-31g", "--spin", "1", *flag)
    expected = reference(METHYL, "6-31g", method, spin=1)
    assert status == 0
    np.testing.assert_allclose(data["return_result"], expected.e_tot, atol=1e-9)
    np.testing.assert_allclose(data["extras"]["jaxqc"]["spin_square"], expected.spin_square()[0], atol=1e-6)
    assert sum(data["extras"]["jaxqc"]["mulliken_spin_populations"]) == pytest.approx(1.0, abs=1e-9)


def test_charge_cartesian_functions_and_unit(capsys, tmp_path):
    file = tmp_path / "hydroxide.xyz"
    file.write_text("2\nOH-\nO 0 0 0\nH 0 0 1.83\n")
    flags = ("--basis", "6-31g**", "--charge", "-1", "--cart", "--unit", "bohr")
    status, data = json_of(capsys, str(file), *flags)
    expected = reference(file, "6-31g**", charge=-1, cart=True, unit="bohr")
    assert status == 0 and data["properties"]["calcinfo_nbasis"] == expected.mol.nao
    np.testing.assert_allclose(data["return_result"], expected.e_tot, atol=1e-9)


def test_summary_shows_what_it_computed_with_units(capsys):
    assert cli.main(["scf", WATER, "--basis", "sto-3g", "--gradient"]) == 0
    out = capsys.readouterr().out
    expected = reference(WATER, "sto-3g")

    def numbers(start):
        line = next(line for line in out.splitlines() if line.strip().startswith(start))
        return [float(word) for word in line.strip().removeprefix(start).split()]

    assert numbers("total energy") == pytest.approx([expected.e_tot], abs=1e-9)
    homo = expected.mo_energy[4]
    assert numbers("HOMO (no. 5)") == pytest.approx([homo, homo * 27.21138505], abs=1e-3)
    moment = expected.dip_moment(verbose=0)
    row = out.splitlines()[next(k for k, line in enumerate(out.splitlines()) if "Debye" in line) + 2]
    assert [float(x) for x in row.split()] == pytest.approx([*moment, np.linalg.norm(moment)], abs=2e-4)
    for word in ("Hartree", "eV", "Debye", "Mulliken", "Hartree/Bohr", "Converged in", "wall time", "H2O", "sto-3g"):
        assert word in out
    assert "\x1b" not in out  # plain, since this is no terminal


def test_table_of_iterations_ends_at_the_converged_energy(capsys):
    assert cli.main(["scf", WATER, "--basis", "sto-3g"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(k for k, line in enumerate(lines) if line.split()[:1] == ["cycle"]) + 1
    rows = []
    while lines[first + len(rows)].split()[:1] == [str(len(rows) + 1)]:
        rows.append(lines[first + len(rows)].split())
    energies = [float(row[1]) for row in rows]
    assert len(rows) >= 4
    assert energies[-1] == pytest.approx(reference(WATER, "sto-3g").e_tot, abs=1e-9)
    assert f"Converged in {len(rows)} cycles" in "\n".join(lines)


def test_spin_square_is_shown_for_open_shells_only(capsys):
    cli.main(["scf", METHYL, "--basis", "sto-3g", "--spin", "1"])
    assert "<S^2>" in capsys.readouterr().out
    cli.main(["scf", WATER, "--basis", "sto-3g"])
    assert "<S^2>" not in capsys.readouterr().out


def test_quiet_prints_the_energy_and_nothing_else(capsys):
    assert cli.main(["scf", WATER, "--basis", "sto-3g", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert float(captured.out) == pytest.approx(reference(WATER, "sto-3g").e_tot, abs=1e-9)
    assert captured.err == ""


def test_geometry_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(WATER).read_text()))
    assert cli.main(["scf", "-", "--basis", "sto-3g", "--quiet"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(reference(WATER, "sto-3g").e_tot, abs=1e-9)


def test_not_converged_is_status_1_and_gives_no_energy(capsys, tmp_path):
    out = tmp_path / "water.json"
    assert cli.main(["scf", WATER, "--basis", "sto-3g", "--max-cycles", "2", "--json", str(out)]) == 1
    captured = capsys.readouterr()
    assert "NOT CONVERGED" in captured.out and "did not converge within 2 cycles" in captured.err
    data = json.loads(out.read_text())
    assert data["success"] is False and "return_result" not in data
    assert data["error"]["error_type"] == "convergence_error"
    assert "scf_total_energy" not in data["properties"] and "return_energy" not in data["properties"]
    assert cli.main(["scf", WATER, "--basis", "sto-3g", "--max-cycles", "2", "--quiet"]) == 1
    assert capsys.readouterr().out == ""


BAD = {
    "no such file": (["nowhere.xyz", "--basis", "sto-3g"], "nowhere.xyz"),
    "unknown basis": ([WATER, "--basis", "def2-svq"], "def2-svq"),
    "no basis": ([WATER], "--basis"),
    "impossible spin": ([WATER, "--basis", "sto-3g", "--spin", "1"], "spin"),
    "too many electrons removed": ([WATER, "--basis", "sto-3g", "--charge", "11"], "charge"),
    "charge that is no integer": ([WATER, "--basis", "sto-3g", "--charge", "half"], "charge"),
    "functional": ([WATER, "--basis", "sto-3g", "--xc", "b3lip"], "b3lyp"),
    "unknown unit": ([WATER, "--basis", "sto-3g", "--unit", "pm"], "unit"),
    "both kinds": ([WATER, "--basis", "sto-3g", "--restricted", "--unrestricted"], "restricted"),
    "unknown precision": ([WATER, "--basis", "sto-3g", "--precision", "single"], "precision"),
    "no cycles": ([WATER, "--basis", "sto-3g", "--max-cycles", "0"], "max_cycles"),
    "NaN as tolerance": ([WATER, "--basis", "sto-3g", "--tolerance", "nan"], "tolerance"),
    "folder as file": ([str(EXAMPLES), "--basis", "sto-3g"], "directory"),
    "output to a folder": ([WATER, "--basis", "sto-3g", "--json", str(EXAMPLES)], "--json"),
    "output nowhere": ([WATER, "--basis", "sto-3g", "--json", "no/such/folder/out.json"], "--json"),
    "unknown option": ([WATER, "--basis", "sto-3g", "--fast"], "--fast"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_status_2_and_one_sentence(name, capsys):
    arguments, word = BAD[name]
    try:
        status = cli.main(["scf", *arguments])
    except SystemExit as error:  # argparse's way
        status = error.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert word in captured.err and captured.err.startswith("jaxqc")
    assert captured.err.count("\n") == 1 and captured.err.rstrip()[-1] in ".?" and "Traceback" not in captured.err


@pytest.mark.parametrize(
    "text", ["", "3\n\nO 0 0 0\n", "1\n\nQq 0 0 0\n", "2\n\nH 0 0 0\nH 0 0 0\n", "1\n\nH nan 0 0\n"]
)
def test_malformed_geometries_are_status_2(text, capsys, tmp_path):
    file = tmp_path / "odd.xyz"
    file.write_text(text)
    out = tmp_path / "out.json"
    assert cli.main(["scf", str(file), "--basis", "sto-3g", "--json", str(out)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    data = json.loads(out.read_text())
    assert data["success"] is False and data["error"]["error_type"] == "input_error"
    assert data["error"]["error_message"] in message


def shell(*arguments, **environment):
    command = [sys.executable, "-m", "jaxqc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_unknown_instruction_set_is_refused():
    done = shell("scf", WATER, "--basis", "sto-3g", JAXQC_ISA="sse9")
    assert done.returncode == 2 and "JAXQC_ISA" in done.stderr and done.stderr.count("\n") == 1


def test_baseline_instruction_set_gives_the_same_energy():
    done = shell("scf", WATER, "--basis", "6-31g", "--quiet", JAXQC_ISA="baseline")
    assert done.returncode == 0
    assert float(done.stdout) == pytest.approx(reference(WATER, "6-31g").e_tot, abs=1e-9)


def test_cached_programs_load_without_alarms(tmp_path):
    # Without the quick options of tests: what compiles in no time is not kept
    environment = dict(XDG_CACHE_HOME=str(tmp_path), XLA_FLAGS="")
    for _ in range(2):
        done = shell("scf", WATER, "--basis", "sto-3g", "--gradient", **environment)
        assert done.returncode == 0 and done.stderr == ""
    assert list((tmp_path / "jaxqc" / "xla").glob("*/*"))


@pytest.mark.alone
def test_first_call_is_quick(tmp_path):
    """Water in def2-SVP: below 10 s with empty caches, below 4 s with warm ones, in time of the processor."""
    for bound in (10.0, 4.0):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shell("scf", WATER, "--basis", "def2-svp", XDG_CACHE_HOME=str(tmp_path)).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < bound


@pytest.mark.alone
@pytest.mark.parametrize("arguments", [["--help"], ["scf", "--help"], ["--version"]])
def test_help_is_quick(arguments):
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shell(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


def test_help_does_not_import_jax():
    code = "import sys; sys.argv[0] = 'jaxqc'\nfrom jaxqc.cli import main\ntry:\n    main(['scf', '--help'])\n"
    code += "finally:\n    print('jax' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.rstrip().endswith("False")


def one_sentence(done, status, *words):
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("jaxqc") and done.stderr.endswith(".\n")
    assert all(word in done.stderr for word in words)


@pytest.mark.parametrize("name", ["JAX_PLATFORMS", "JAX_PLATFORM_NAME"])
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_processors_that_are_not_there_are_refused(name, platform, tmp_path):
    out = tmp_path / "out.json"
    done = shell("scf", WATER, "--basis", "sto-3g", "--json", str(out), **{name: platform})
    one_sentence(done, 2, name, platform, "CPU", "GPU")
    assert done.stdout == "" and json.loads(out.read_text())["error"]["error_type"] == "input_error"


def test_the_cpu_is_used_where_it_is_one_of_several():
    done = shell("scf", WATER, "--basis", "sto-3g", "--quiet", JAX_PLATFORMS="cuda,cpu")
    assert done.returncode == 0 and done.stderr == ""
    assert float(done.stdout) == pytest.approx(reference(WATER, "sto-3g").e_tot, abs=1e-9)


@pytest.mark.parametrize("arguments", [["scf", WATER, "--basis", "sto-3g"], ["kernels", "list"]])
def test_libraries_that_are_not_ours_are_refused(arguments, tmp_path):
    other = ctypes.util.find_library("m")
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path in (path_of_library(other), str(text), str(tmp_path / "none.so")):
        one_sentence(shell(*arguments, JAXQC_CPU_LIBRARY=path), 2, path)


def path_of_library(name):
    """The file of a shared library that this process can load."""
    ctypes.CDLL(name)
    with open("/proc/self/maps", encoding="utf-8") as lines:
        return next(line.split()[-1] for line in lines if Path(line.split()[-1]).name == name)


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "arguments",
    [["scf", WATER, "--basis", "sto-3g"], ["scf", WATER, "--basis", "sto-3g", "--quiet"], ["kernels", "list"]]
    + [["--help"]],
)
def test_full_output_is_status_1(arguments):
    with FULL.open("w") as full:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        command = [sys.executable, "-m", "jaxqc", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    one_sentence(done, 1, "Standard output", "No space left")


def test_closed_output_and_input_are_said():
    command = f"{sys.executable} -m jaxqc"
    for redirection, status, word in ((">&-", 1, "Standard output"), ("<&-", 2, "standard input")):
        line = f"{command} scf - --basis sto-3g {redirection}"
        one_sentence(subprocess.run(line, shell=True, stderr=subprocess.PIPE, text=True), status, word)


def test_reader_that_goes_away_is_status_1_and_the_file_is_written(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "jaxqc", "scf", WATER, "--basis", "sto-3g", "--json", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.split()[:1] == ["cycle"]:
                break
        process.stdout.close()
        message = process.stderr.read()
    assert process.returncode == 1
    assert message == "jaxqc: error: Standard output cannot be written to: its reader has gone.\n"
    energy = json.loads(out.read_text())["return_result"]
    assert energy == pytest.approx(reference(WATER, "sto-3g").e_tot, abs=1e-9)


@pytest.mark.alone
def test_interrupt_is_answered_while_the_compiled_program_runs():
    command = [sys.executable, "-m", "jaxqc", "scf", WATER, "--basis", "cc-pv5z"]
    # Where these tests run in the background Ctrl-C is ignored, also by whatever they start; not so what has a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.split()[:1] == ["1"]:  # the first cycle: the program runs, and has a dozen to go
                break
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        message = process.stderr.read()
        process.wait()
        assert time.monotonic() - sent < 4.0  # the whole run takes several times as long
    assert process.returncode == 130 and message == "jaxqc: interrupted.\n"


def test_damaged_cache_entries_are_compiled_again(tmp_path):
    arguments = ("scf", WATER, "--basis", "sto-3g", "--quiet")
    expected = reference(WATER, "sto-3g").e_tot
    assert shell(*arguments, XDG_CACHE_HOME=str(tmp_path)).returncode == 0
    entries = [file for file in (tmp_path / "jaxqc" / "xla").glob("*/*") if file.name.endswith("-cache")]
    assert entries
    for k, file in enumerate(entries):
        file.write_bytes(b"damaged" if k % 2 else file.read_bytes()[: file.stat().st_size // 2])
    done = shell(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0 and done.stderr == ""
    assert float(done.stdout) == pytest.approx(expected, abs=1e-9)
