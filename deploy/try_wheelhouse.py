"""Install a node from the wheelhouse in an environment without an index and without a network.

``python deploy/try_wheelhouse.py dist/wheelhouse EXTRAS``. As root (or where user namespaces are allowed) the installation runs in
a network namespace of its own, which has no way out; elsewhere ``--no-index`` alone keeps it from one, and that is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main(wheels: Path, extras: str) -> None:
    """Try it."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        alone = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "node"
        subprocess.run([sys.executable, "-m", "venv", place], check=True, env=env)
        python = place / "bin" / "python"
        wanted = f"polyclinic[{extras}]"
        install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels.resolve(), wanted]
        subprocess.run([*alone, *install], check=True, env=env)
        subprocess.run([*alone, python, "-m", "pip", "check"], check=True, env=env, capture_output=True)
        for words in (["--version"], ["coordinator", "--help"], ["site", "doctor", "--help"]):
            subprocess.run(
                [*alone, place / "bin" / "polyclinic", *words], check=True, env=env, capture_output=True, cwd=folder
            )
        imports = "import nvflare, opendp, psycopg, adbc_driver_postgresql, adbc_driver_sqlite, prometheus_client"
        subprocess.run([*alone, python, "-c", imports], check=True, env=env, cwd=folder)
    count, size = len(list(wheels.glob("*.whl"))), sum(w.stat().st_size for w in wheels.glob("*.whl"))
    how = "in a network namespace without a way out" if alone else "with --no-index (no namespace could be made here)"
    print(f"{count} wheels, {size / 1e6:.0f} MB: {wanted} was installed {how}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
