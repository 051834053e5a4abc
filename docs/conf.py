"""Sphinx configuration: pages in Markdown, reference from docstrings, a gallery that runs. Nothing is loaded from a network.

Build with ``make docs`` (warnings are errors). Formulas become MathML here, so the pages need no script to show them.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import polyclinic  # noqa: E402
from polyclinic import __version__  # noqa: E402
from polyclinic.protocol.estimator import Configured  # noqa: E402

project = "Polyclinic"
author = "The Polyclinic developers"
copyright = "The Polyclinic developers; Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {
    ".rst": "restructuredtext",
    ".md": "myst-nb",
    ".ipynb": "myst-nb",
}  # the first is that of generated pages
nb_execution_mode = "off"  # the outputs are in the notebooks
root_doc = "index"
exclude_patterns = ["_build", "_templates", "gallery/*.ipynb", "**/GALLERY_HEADER.rst"]
templates_path = ["_templates"]

# ---- Markdown
myst_enable_extensions = ["dollarmath", "deflist", "fieldlist", "colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = [
    "config.cache"
]  # the gallery's sorting key is a class: it is not cached, which is all the warning says

# ---- reference
autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "none"  # numpydoc lists parameters with their meaning; annotations stay in the signature
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
nitpicky = False

# ---- gallery
sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": [str(HERE.parent / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"plot_",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,  # that page would load scripts from elsewhere
    "show_signature": False,
    "abort_on_example_error": False,
    "only_warn_on_example_error": True,  # with -W a broken example fails the build, after all of them ran
    "remove_config_comments": True,
}

# ---- pages
html_theme = "pydata_sphinx_theme"
html_title = "Polyclinic"
html_static_path = ["_static"]
html_css_files = ["polyclinic.css"]
html_theme_options: dict[str, Any] = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_end": ["theme-switcher"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars: dict[str, list[str]] = {"index": []}
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"


# ---- formulas without a script: docutils turns LaTeX into MathML, browsers draw MathML


def _mathml(text: str, *, block: bool) -> str:
    from docutils.utils.math import latex2mathml

    made = latex2mathml.tex2mathml(text, as_block=block)
    return str(made)


def _inline(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(_mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(f'<div class="formula">{_mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


# ---- docstrings are plain text: a norm |x| is no substitution, a product a * b no emphasis


def _plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape stars and bars outside of literals, and show a block that stands apart indented as it is written."""
    made: list[str] = []
    before, example, literal = 0, False, 0
    for n, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        example = line.lstrip().startswith((">>>", "...")) or (example and bool(line.strip()))
        if literal and line.strip() and depth < literal:
            literal = 0
        if not literal and not example and n and not lines[n - 1].strip() and depth > before:
            literal = depth
            made += [] if made[-2].rstrip().endswith("::") else [" " * before + "::", ""]
        if not example and not literal:
            parts = re.split(r"(``.*?``|:[\w:]+:`.*?`|`.*?`)", line)
            line = "".join(p if k % 2 else _escaped(p) for k, p in enumerate(parts))
        if line.strip() and not literal:
            before = depth
        made.append(line)
    lines[:] = made


def _escaped(text: str) -> str:
    """Bars and stars, and an underscore that ends a symbol (``A_-r``) but not a parameter's name."""
    return re.sub(r"(\w)_(?=[-'|])", r"\1\\_", re.sub(r"([|*])", r"\\\1", text))


USED = "fit|fit_transform|transform|predict|predict_proba|quality|score|score_samples|sample|aic|bic|save|conditions|phenotypes_"
PARAMETERS = "get_params|set_params|get_feature_names_out"


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """A method's page in the public names has what its user calls. The protocol is on the page of the module.

    scikit-learn's own plumbing is documented there, with labels that only its pages have.
    """
    if re.fullmatch(r"set_\w+_request|set_output|get_metadata_routing", name):
        return True
    page = re.fullmatch(r"reference/api/polyclinic\.(\w+)", app.env.docname)
    made = getattr(polyclinic, page[1]) if page and page[1] in polyclinic.__all__ else None
    estimator = isinstance(made, type) and issubclass(made, Configured)
    return True if estimator and not re.fullmatch(f"{USED}|{PARAMETERS}", name) else None


def _generated(app: Any) -> None:
    """Pages that are made from the code: written again, so that they are never behind it."""
    for script in ("cli", "files", "methods", "tables"):
        page = runpy.run_path(str(HERE / "reference" / f"{script}.py"))
        text, made = page["PAGE"].read_text(encoding="utf-8"), page["reference"]()
        if text != made:
            page["PAGE"].write_text(made, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Register the formula renderer and the hooks."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-process-docstring", _plain, priority=100)
    app.connect("autodoc-skip-member", _skip)
    app.connect("builder-inited", _generated, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
