"""Notebooks from tutorial pages: the same text and code, run in a kernel, with what came out.

``python docs/notebooks/make.py`` writes them again; ``tests/test_notebooks.py`` says when that is due.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = {
    "first-phenotypes-from-a-table": "from-a-table",
    "a-network-study": "network-study",
    "private-phenotypes": "private-phenotypes",
}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def cells(page: Path) -> list[tuple[str, str]]:
    """Kind and source of every cell: text up to a Python block, the block, and so on."""
    parts = BLOCK.split(page.read_text(encoding="utf-8"))
    named = [("code" if k % 2 else "markdown", _linked(p, page) if k % 2 == 0 else p) for k, p in enumerate(parts)]
    return [(kind, text.strip("\n")) for kind, text in named if text.strip()]


def _linked(text: str, page: Path) -> str:
    """Links to other pages as words: a notebook is downloaded and read elsewhere, where a path leads nowhere."""
    return LINK.sub(lambda m: f"*{m[1]}* (`docs/{os.path.relpath(page.parent / m[2], HERE.parent)}`)", text)


def made(page: Path, folder: Path) -> Any:
    """The page as a notebook, executed in a folder of its own; nothing of this machine stays in it."""
    import nbformat
    from nbclient import NotebookClient

    v4 = nbformat.v4
    book = v4.new_notebook(
        cells=[
            {**(v4.new_code_cell(text) if kind == "code" else v4.new_markdown_cell(text)), "id": f"cell-{n}"}
            for n, (kind, text) in enumerate(cells(page))
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    book = nbformat.from_dict(book)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in book.cells:
        cell.metadata = {}
    book.metadata.pop("language_info", None)
    return book


def main() -> None:
    """Write all notebooks."""
    import nbformat

    for name, page in PAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(made(HERE.parent / "tutorials" / f"{page}.md", Path(folder)), HERE / f"{name}.ipynb")


if __name__ == "__main__":
    main()
