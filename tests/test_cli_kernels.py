"""`jaxqc kernels`: what it lists, builds and removes, without a GPU."""

import pytest

from jaxqc import cli
from jaxqc._cli_kernels import units_of_basis
from jaxqc.gpu import _cache, nvrtc


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(tmp_path / "cubins"))


def test_the_list_names_the_instruction_set_and_the_units_that_are_kept(capsys):
    _cache.write("0" * 32, "sm_90 one_electron.cu", b"\x7fELF" * 1000, "log")
    assert cli.main(["kernels", "list"]) == 0
    out = capsys.readouterr().out
    assert "CPU kernels" in out and "1 units" in out and "4 kB  sm_90 one_electron.cu" in out


def test_clear_removes_them(capsys):
    _cache.write("0" * 32, "sm_90 one_electron.cu", b"\x7fELF", "log")
    assert cli.main(["kernels", "clear"]) == 0
    assert "Removed 1 " in capsys.readouterr().out and _cache.entries() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "sm_90"], "--basis"),
        (["--basis", "sto-3g"], "--arch sm_90"),
        (["--basis", "no-such-basis", "--arch", "sm_90"], "no-such-basis"),
        (["--basis", "sto-3g", "--arch", "sm_90", "--elements", ","], "--elements"),
        (["--basis", "sto-3g", "--arch", "sm_90", "--elements", "Xx"], "Xx"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(arguments, words, capsys):
    assert cli.main(["kernels", "build", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1 and "Traceback" not in err


def test_without_a_compiler_it_is_said(monkeypatch, capsys):
    monkeypatch.setenv("JAXQC_NVRTC_LIBRARY", "/nowhere/libnvrtc.so")
    nvrtc.cache_clear()
    assert cli.main(["kernels", "build", "--basis", "sto-3g", "--arch", "sm_90"]) == 2
    assert "JAXQC_NVRTC_LIBRARY" in capsys.readouterr().err
    nvrtc.cache_clear()


def test_an_architecture_is_named_as_nvidia_does(capsys):
    with pytest.raises(SystemExit):
        cli.main(["kernels", "build", "--arch", "hopper", "--basis", "sto-3g"])
    assert "hopper" in capsys.readouterr().err


@pytest.mark.parametrize("cart", [False, True])
def test_units_of_a_basis_cover_integrals_functionals_and_grids(cart):
    units = units_of_basis((0, 1, 2), cart, 90)
    files = {unit.file for unit in units}
    assert len(set(units)) == len(units)
    assert {"one_electron.cu", "eri_pairs.cu", "eri_register.cu", "xc_potential.cu", "grid_partition.cu"} <= files
    assert "eri_reach.cu" in files and any(dict(u.defines).get("SHORT") for u in units)  # exchange of the short range
    fewer = set(units_of_basis((0, 1), cart, 90))
    assert {u for u in fewer if u.file.startswith("eri_register")} < set(units)


@pytest.mark.slow
def test_a_basis_is_built(capsys):
    try:
        nvrtc()
    except ImportError as error:
        pytest.skip(f"needs NVRTC: {error}")
    assert cli.main(["kernels", "build", "--arch", "sm_90", "--basis", "sto-3g", "--elements", "H"]) == 0
    names = [name for name, _ in _cache.entries()]
    assert len(names) == len(units_of_basis((0,), False, 90)) and "sm_90 one_electron.cu" in names
    assert f"{len(names)} units for s functions on sm_90" in capsys.readouterr().out


def test_clearing_takes_all_that_belongs_to_the_kernels(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "[red]kernels"
    monkeypatch.setenv("JAXQC_CACHE_DIR", str(folder))
    folder.mkdir()
    for name in ("a.cubin", "a.tested", "b.tested", "c.part", "mine.txt"):
        (folder / name).touch()
    assert cli.main(["kernels", "clear"]) == 0
    assert f"Removed 1 compiled units from {folder}" in capsys.readouterr().out.replace("\n", "")
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    (folder / "d.cubin").mkdir()
    assert cli.main(["kernels", "clear"]) == 2
    assert "cannot all be removed" in capsys.readouterr().err
