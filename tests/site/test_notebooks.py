"""The notebooks of examples/notebooks run, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)

    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    ran = client.execute()

    assert [output for cell in ran.cells for output in cell.get("outputs", [])]


def test_there_are_two_notebooks():
    assert len(NOTEBOOKS) >= 2
