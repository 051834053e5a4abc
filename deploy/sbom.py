"""What a node is made of, as CycloneDX: ``python deploy/sbom.py dist/polyclinic.cdx.json nvflare,exact,postgres``.

Installs this checkout with a node's extras in an environment of its own and lists that one: nothing of what a developer has besides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(out: Path, extras: str) -> None:
    """Write the list."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    uv = Path(sys.executable).with_name("uv")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "node" / "bin" / "python"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, python.parents[1]], check=True, env=env)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, f"{ROOT}[{extras}]"], check=True, env=env)
        tool = [uv, "tool", "run", "--quiet", "--from", "cyclonedx-bom", "cyclonedx-py", "environment"]
        options = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--of", "JSON", "-o", out]
        subprocess.run([*tool, *options, python], check=True, env=env)
    value = json.loads(out.read_text(encoding="utf-8"))
    names = sorted(c["name"] for c in value["components"])
    strange = sorted({"pytest", "mypy", "ruff", "sphinx", "selenium", "pgserver", "hypothesis"} & set(names))
    lacking = sorted({"numpy", "cryptography", "duckdb", *(["nvflare"] if "nvflare" in extras else [])} - set(names))
    if strange or lacking:
        raise SystemExit(f"not a node's list: it has {strange}, it lacks {lacking}")
    print(f"{out}: {value['bomFormat']} {value['specVersion']}, {len(names)} components of a node with {extras}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
