"""A researcher's first steps where Windows has no such modules; and every name that we take from NVIDIA FLARE."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

# Modules and names that Windows does not have. `filelock` then locks by the existence of a file.
BLOCK = """
import os, sys, warnings
warnings.simplefilter("ignore")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios", "syslog"):
            raise ImportError(f"No module named {name!r}")
sys.meta_path.insert(0, Block())
for name in ("fcntl", "resource", "pwd", "grp", "termios", "syslog"):
    sys.modules.pop(name, None)
for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "getuid", "geteuid", "fork", "killpg", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
import polyclinic as pc
"""
STEPS = {
    "generated data": "sites = pc.datasets.icu_network(patients=120, seed=0)",
    "TRIP plain": "model = pc.TRIP(rank=3, rounds=2, seed=0).fit(sites)",
    "TRIP masked": "pc.TRIP(rank=3, rounds=2, aggregation='masked', seed=0).fit(sites)",
    "DPEM": "pc.DPEM(rank=3, rounds=2, aggregation='masked', seed=0, privacy=pc.Privacy(epsilon=2.0, delta=1e-6)).fit(sites)",
    "save and load": "model.save('x.phenotypes'); pc.Phenotypes.load('x.phenotypes')",
    "from_frame": "pc.from_frame({'p': [1, 2], 'a': ['x', 'y'], 'b': ['u', 'v']}, patient='p', modes=['a', 'b'])",
    "events from files": """
from pathlib import Path
rows = [f"{p},{p},2020-01-02,{k},{k}{p % 3}" for p in range(60) for k in ("drug", "diagnosis")]
for name in ("a", "b", "c"):
    Path(f"{name}.csv").write_text("\\n".join(["patient_id,visit_id,time,kind,code", *rows]))
    Path(f"{name}.toml").write_text(f'[site]\\nname = "{name}"\\nfolder = "{name}"\\n[source]\\nkind = "files"\\nevents = "{name}.csv"\\n')
from polyclinic.config import Node, Study
from polyclinic.records.ingest import ingest
Path("s.toml").write_text('[study]\\nname = "s"\\n[tensor]\\nmodes = ["drug", "diagnosis"]\\nminimum_patients = 1\\n[method]\\nname = "trip"\\nrank = 2\\n'
    'rounds = 2\\naggregation = "plain"\\n' + ''.join(f'[[site]]\\nnode = "{n}.toml"\\n' for n in "abc"))
assert ingest(Node.read("a.toml"), Study.read("s.toml"), "out").site.patients == 60
""",
    "ledger": "from polyclinic.privacy.ledger.ledger_file import LedgerFile",
    "command line": "from polyclinic.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit as e:\n    assert not e.code",
    "a study": "try:\n    main(['simulate', 's.toml', '--out', 'run'])\nexcept SystemExit as e:\n    assert not e.code, e.code",
    "FLARE folders": "import polyclinic.node.enrolment.folders",
    "courier": "import polyclinic.node.courier.exchange_folder",
}


@pytest.mark.timeout(600)
def test_the_first_twelve_steps_run_without_the_modules_that_windows_lacks(tmp_path: Path) -> None:
    pytest.importorskip("filelock", reason="filelock is not installed: pip install 'polyclinic[dev]'")
    code = [BLOCK, *(f"{step}\nprint('done: {name}', flush=True)" for name, step in STEPS.items())]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
    )
    done = [line[6:] for line in ran.stdout.splitlines() if line.startswith("done: ")]
    assert done == list(STEPS), ran.stderr[-2000:]


def _flare_names() -> list[tuple[str, str]]:
    import polyclinic

    names = set()
    for file in Path(polyclinic.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nvflare":
                names |= {(str(node.module), a.name) for a in node.names}
    return sorted(names)


@pytest.mark.parametrize(("module", "name"), _flare_names())
def test_every_name_that_is_taken_from_flare_exists(module: str, name: str) -> None:
    pytest.importorskip("nvflare")
    assert hasattr(import_module(module), name) or import_module(f"{module}.{name}")


def test_the_names_of_flare_are_found() -> None:
    assert ("nvflare.apis.executor", "Executor") in _flare_names()
