"""Every code block of the README runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# Lines of shell blocks that start by something else than these would go untested.
PROGRAMS = ("make", "jaxqc", "python")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands():
    return [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines() if line.strip()]


def test_there_is_no_other_kind_of_block():
    fences = re.findall(r"^```(\w*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences) == {"", "sh", "python", "text"}
    assert len(blocks("python")) >= 4 and len(commands()) >= 5


# With the default options of XLA, as users have them.
@pytest.mark.alone
def test_python_blocks_run_one_after_another(monkeypatch):
    monkeypatch.chdir(ROOT)
    scope = {}
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), scope)
    # What the text says about them.
    assert float(abs(scope["dipole"] - scope["res"].dipole("au")).max()) < 1e-6
    assert float(abs(scope["force"] + scope["jaxqc"].gradient(scope["res"])).max()) < 1e-8
    assert float(abs(scope["scan"][1] - scope["res"].energy)) < 1e-9
    core = scope["T"] + scope["V"] + scope["J"] - 0.5 * scope["K"]
    assert float(abs(core - scope["res"].fock).max()) < 1e-9
    assert float(abs(scope["exc"] - scope["ks"].energy_xc)) < 1e-8 and abs(float(scope["nelec"]) - 10.0) < 1e-3
    assert float(abs(scope["shared"].energy - scope["jaxqc"].energy(scope["mol"], xc="pbe0"))) < 1e-9
    energy, xc = scope["jaxqc"].energy, scope["enhanced_exchange"]
    slope = (energy(scope["mol"], xc=xc(0.93 + 1e-3)) - energy(scope["mol"], xc=xc(0.93 - 1e-3))) / 2e-3
    assert float(abs(scope["by_parameter"] - slope)) < 1e-4 * float(abs(slope))


@pytest.mark.parametrize("command", commands())
def test_shell_lines_run(command, tmp_path):
    program, *arguments = shlex.split(command)
    assert program in PROGRAMS
    if program == "make":
        # What they do is done by whoever runs this test; here, that they are complete.
        if shutil.which("make") is None:
            pytest.skip("make is not installed")
        done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and ("jaxqc scf" in done.stdout or "pytest" in done.stdout)
        return
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    interpreter = [sys.executable, "-m", "jaxqc"] if program == "jaxqc" else [sys.executable]
    arguments = [str(ROOT / a) if a.startswith("experiments/") else a for a in arguments]
    extra = ["--help"] if program == "python" else []  # experiments take minutes
    done = subprocess.run(
        [*interpreter, *arguments, *extra], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr


def test_settings_of_the_readme_exist():
    names = set(re.findall(r"`(JAXQC_\w+)`", README.read_text(encoding="utf-8")))
    sources = [*ROOT.glob("jaxqc/**/*.py"), *ROOT.glob("ffi_kernels/runtime/*"), ROOT / "tests/conftest.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for name in names:
        assert f'"{name}"' in text, name


def test_energy_of_the_readme_is_that_of_pyscf():
    """The figure that the README shows for `make run`; PySCF's is kept from a run of it, which takes a minute."""
    figures = re.findall(r"total energy\s+(-\d+\.\d+)", README.read_text(encoding="utf-8"))
    assert [float(figure) for figure in figures] == pytest.approx([VITAMIN_C], abs=1e-8)


# pyscf 2.14: scf.RHF(gto.M(atom="examples/vitamin_c.xyz", basis="def2-svp")).run(conv_tol=1e-11).e_tot
VITAMIN_C = -680.40193771972
