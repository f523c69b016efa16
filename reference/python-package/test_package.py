"""The package as a package: types, documentation, the notebook."""

import inspect
import pathlib
import subprocess
import sys

import pytest

import ttac
from conftest import ROOT


def test_the_stubs_describe_the_module():
    pytest.importorskip("mypy")
    run = [sys.executable, "-m", "mypy.stubtest", "ttac._engine", "--ignore-disjoint-bases"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path):
    pytest.importorskip("mypy")
    assert (pathlib.Path(ttac.__file__).parent / "py.typed").exists()
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\nimport ttac\n"
        "model, anchors = ttac.shapes10()\n"
        "session = ttac.Session(model, anchors, method='ttac', learning_rate=0.1)\n"
        "answer = session.observe(np.zeros((2, 32, 32, 3), np.uint8))\n"
        "reveal_type(answer.classes)\nreveal_type(ttac.evaluate(session, []))\nsession.observ(1)\n"
    )
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", program], capture_output=True, text=True)
    assert 'has no attribute "observ"; maybe "observe"?' in done.stdout, done.stdout + done.stderr
    assert "signedinteger" in done.stdout and "ttac._evaluate.Evaluation" in done.stdout
    assert done.stdout.count("error:") == 1, done.stdout


def test_everything_public_is_documented():
    for name in ttac.__all__:
        thing = getattr(ttac, name)
        if name.startswith("__"):
            continue
        assert inspect.getdoc(thing), name
        if not inspect.isclass(thing):
            continue
        for member, value in vars(thing).items():
            if not member.startswith("_") and name != "Evaluation":
                assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_the_workspaces():
    manifest = (ROOT / "Cargo.toml").read_text()
    assert f'version = "{ttac.__version__}"' in manifest


def test_the_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs/python.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are made when it is run, not kept"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(pictures) >= 2
