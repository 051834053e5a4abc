"""Install the wheel in a bare environment and use it without the source tree: ``python deploy/try_wheel.py dist``.

Run in an empty folder, with no variable that points at the sources: version, simulate, report, dossier, web page, demo. A file
that the wheel lacks (a template, an SQL file, a style sheet) is found here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

STUDY = """
[study]
name = "icu"
description = "Which codes occur together?"
[data]
dataset = "icu_network"
patients = 200
[method]
name = "trip"
rank = 3
rounds = 3
aggregation = "masked"
"""


def main(dist: Path, *, demo: bool) -> None:
    """Try it."""
    (wheel,) = dist.resolve().glob("polyclinic-*.whl")
    (source,) = dist.resolve().glob("polyclinic-*.tar.gz")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as folder:
        bare, here = Path(folder) / "bare", Path(folder) / "work"
        here.mkdir()
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, bare], check=True, env=env)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", bare / "bin" / "python", f"{wheel}[web]"], check=True, env=env
        )

        def run(*words: object) -> str:
            begin = time.perf_counter()
            done = subprocess.run(
                [bare / "bin" / "polyclinic", *map(str, words)], cwd=here, env=env, capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(
                    f"polyclinic {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}"
                )
            print(f"{time.perf_counter() - begin:6.1f} s  polyclinic {' '.join(map(str, words))}", flush=True)
            return done.stdout

        print(run("--version").strip())
        (here / "study.toml").write_text(STUDY, encoding="utf-8")
        run("simulate", "study.toml", "--out", "run", "--json")
        run("report", "run", "--export")
        run("dossier", "run")
        assert (here / "run" / "report.html").stat().st_size > 20_000
        run("site", "init", "--kind", "omop", "--sql")
        lacking = subprocess.run(
            [bare / "bin" / "polyclinic", "papers", "list"], cwd=here, env=env, capture_output=True, text=True
        )
        assert lacking.returncode == 2 and "pip install polyclinic-papers" in lacking.stderr, lacking.stderr
        (papers,) = dist.resolve().glob("polyclinic_papers-*.whl")
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", bare / "bin" / "python", papers], check=True, env=env
        )
        run("papers", "list")
        _page(bare, here, env)
        if demo:
            run("demo", "--out", "demo")
            assert (here / "demo" / "report.html").is_file()
        where = subprocess.run(
            [bare / "bin" / "python", "-c", "import polyclinic; print(polyclinic.__file__)"],
            cwd=here, env=env, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        assert where.startswith(str(bare)), where
    print(
        f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) works without the source tree; {source.name} is beside it"
    )


def _page(bare: Path, here: Path, env: dict[str, str]) -> None:
    """The live page, with everything that it names."""
    with subprocess.Popen(
        [bare / "bin" / "polyclinic", "web", "run", "--port", "0", "--json"],
        cwd=here,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            end = time.monotonic() + 30
            while True:
                try:
                    page = opener.open(address, timeout=10).read().decode()
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.2)
            base = address.partition("/?")[0]
            named = re.findall(r'(?:src|href)="(/?[\w./-]+\.(?:js|css))"', page)
            for path in named:
                assert opener.open(f"{base}/{path.lstrip('/')}", timeout=10).status == 200, path
            print(f"        web page: {len(page):,} characters, {len(named)} files that it names")
        finally:
            process.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]), demo="--without-demo" not in sys.argv)
