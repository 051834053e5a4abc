"""The vignette's R code runs as written, with R and reticulate from Debian."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "ohdsi-vignette.Rmd"


@pytest.mark.slow
def test_the_vignette_runs_as_written(tmp_path: Path) -> None:
    if shutil.which("Rscript") is None:
        pytest.skip("R is not installed: apt-get install r-base-core r-cran-reticulate")
    chunks = re.findall(r"```\{r([^}]*)\}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    run = [code for options, code in chunks if "eval = FALSE" not in options]
    assert len(run) == 5
    (tmp_path / "vignette.R").write_text("\n".join(run), encoding="utf-8")
    done = subprocess.run(
        ["Rscript", "--vanilla", "vignette.R"],
        cwd=tmp_path,
        env={**os.environ, "RETICULATE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "formal patient-level differential privacy: epsilon 1 at delta 1e-06" in done.stdout
    assert done.stdout.rstrip().endswith("[1] 4")  # the rank of the model that was saved and loaded
