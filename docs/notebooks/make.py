"""Run the notebooks again, in place, and keep what they print and draw: ``python docs/notebooks/make.py [NAME ...]``.

``tests/test_notebooks.py`` says when that is due. Nothing of the machine stays in a notebook.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(names: list[str]) -> None:
    """Run all notebooks, or those that are named."""
    import nbformat
    from nbclient import NotebookClient

    for path in sorted(HERE.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata = {}
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
