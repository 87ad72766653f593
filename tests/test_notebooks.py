"""Every notebook runs from top to bottom in the current interpreter, and is stored with its outputs."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

HOME = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((HOME / "notebooks").glob("*.ipynb"))
LAUNCH = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


class ThisInterpreter(AsyncKernelManager):
    """A kernel of the interpreter that runs the tests, whatever kernels are installed."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        return [part.format(connection_file=self.connection_file) for part in LAUNCH]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel chooses the inline one
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_manager_class=ThisInterpreter, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises on the first cell that fails
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output.output_type == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_with_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run it from top to bottom"
    assert sum(bool(cell.outputs) for cell in code) >= len(code) - 2
