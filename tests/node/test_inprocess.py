"""The in-process engine: threads, checkpoints, resume, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape
from tests.waiting import wait_until

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.cli import main
from polyclinic.errors import ConfigError
from polyclinic.report.answer import in_words
from polyclinic.report.html import write_report
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import simulate

STUDY = """
[study]
name = "icu"
seed = 0
replicate = 0
[data]
dataset = "icu_network"
patients = 300
[method]
name = "trip"
rank = 4
rounds = {rounds}
tol = 0.0
aggregation = "{aggregation}"
"""


def study(folder: Path, rounds: int = 6, aggregation: str = "plain", more: str = "") -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY.format(rounds=rounds, aggregation=aggregation) + more)
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as e:
        main([str(a) for a in arguments])
    return int(e.value.code or 0)


def model(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "outcome.npz") as z:
        return dict(z)


def test_model_does_not_depend_on_threads() -> None:
    sites = example_sites()
    a, b = (simulate(pc.LocalTF(rank=3, rounds=4), sites, threads=t).public for t in (1, 4))
    assert all(np.array_equal(x, y) for x, y in zip(a.factors, b.factors))


def test_simulate_writes_the_run_folder_of_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", study(tmp_path, aggregation="masked"), "--out", tmp_path / "out", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert printed == metrics
    wanted = "rmse_observed rmse_full fit rounds bytes_up bytes_down epsilon delta guarantee auc"
    assert set(wanted.split()) <= set(metrics)
    assert metrics["rounds"] == 6 and metrics["epsilon"] is None and metrics["guarantee"] == "none"
    assert os.stat(tmp_path / "out").st_mode & 0o077 == 0
    assert (tmp_path / "out" / "ledgers" / "CCU.jsonl").exists()


def test_simulate_equals_fit_and_ends_with_the_answer_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("simulate", study(tmp_path), "--out", tmp_path / "out") == 0
    printed = " ".join(capsys.readouterr().out.split())
    page = write_report(RunFolder(tmp_path / "out")).read_text(encoding="utf-8")
    for sentence in in_words(RunFolder(tmp_path / "out"))[:2]:
        assert sentence in printed and escape(sentence) in page
    assert "Privacy: no privacy bound." in printed and "Stopped after 6 of at most 6 rounds." in printed
    assert f"Next: polyclinic report {tmp_path / 'out'}" in printed.replace("\n", "")
    m = pc.TRIP(rank=4, rounds=6, seed=0).fit(pc.datasets.icu_network(patients=300, seed=0))
    assert all(np.array_equal(model(tmp_path / "out")[f"factor{n}"], f) for n, f in enumerate(m.factors_, start=1))


def test_a_full_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("mine")
    assert run("simulate", study(tmp_path), "--out", tmp_path / "out") == 2
    assert run("simulate", study(tmp_path), "--out", tmp_path / "empty", "--resume") == 2


def test_resume_refuses_another_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", study(tmp_path, rounds=2), "--out", tmp_path / "out") == 0
    assert run("simulate", study(tmp_path, rounds=3), "--out", tmp_path / "out", "--resume") == 2
    assert "another study" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of thirty rounds that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run("simulate", study(folder, rounds=30), "--out", folder / "whole") == 0
    return folder / "whole"


@pytest.mark.parametrize("stop", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_interrupted_run_resumes_to_the_same_model(tmp_path: Path, whole: Path, stop: signal.Signals) -> None:
    path = study(tmp_path, rounds=30)
    command = [sys.executable, "-m", "polyclinic.cli", "simulate", str(path), "--out", str(tmp_path / "cut")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    folder = RunFolder(tmp_path / "cut")
    wait_until(lambda: folder.path.exists() and len(folder.checkpoints()) >= 2, every=0.01)
    process.send_signal(stop)
    process.wait(300)
    if (folder.path / "metrics.json").exists():
        pytest.skip("the run was faster than the signal")
    assert folder.checkpoints()
    assert run("simulate", path, "--out", tmp_path / "cut", "--resume") == 0
    a, b = model(tmp_path / "cut"), model(whole)
    assert set(a) == set(b) and all(np.array_equal(a[k], b[k]) for k in a)
    rounds = [h["round"] for h in json.loads((tmp_path / "cut" / "outcome.json").read_text())["history"]]
    assert rounds == list(range(1, 31))


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[study\n", 2, "not TOML"),
        (
            "[study]\nname='x'\n[method]\nname='nix'\naggregation='plain'\n[data]\ndataset='icu_network'\n",
            2,
            "unknown method",
        ),
        ("[study]\nname='x'\n[method]\nname='trip'\n[data]\ndataset='icu_network'\n", 2, "aggregation is missing"),
        (
            "[study]\nname='x'\n[method]\nname='trip'\nrank=-1\naggregation='plain'\n[data]\ndataset='icu_network'\n",
            2,
            "rank",
        ),
        (
            "[study]\nname='x'\n[method]\nname='trip'\naggregation='plain'\n[data]\ndataset='nix'\n",
            2,
            "known: icu_network",
        ),
        (
            "[study]\nname='x'\n[method]\nname='trip'\naggregation='nix'\n[data]\ndataset='icu_network'\n",
            2,
            "unknown aggregation",
        ),
    ],
)
def test_bad_studies_exit_with_2_and_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, words: str
) -> None:
    (tmp_path / "study.toml").write_text(text)
    assert run("simulate", tmp_path / "study.toml", "--out", tmp_path / "out") == code
    assert words in capsys.readouterr().err


def test_help_and_unknown_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "simulate" in capsys.readouterr().out
    assert run("nix") == 2
    assert run("simulate", "--help") == 0


def test_a_study_is_run_to_its_folder_by_one_call(tmp_path: Path) -> None:
    text = (
        '[study]\nname = "icu"\nreplicate = 0\n[data]\ndataset = "icu_network"\npatients = 300\n'
        '[method]\nname = "sumals"\nrank = 3\nrounds = 3\naggregation = "plain"\n'
    )
    (tmp_path / "study.toml").write_text(text)
    run = pc.run_study(tmp_path / "study.toml", tmp_path / "run")
    assert run.model.rank == 3 and run.metrics["rounds"] == 3 and pc.load(tmp_path / "run").rank == 3
    for given in ({}, {"out": "a", "federation": "b"}):
        with pytest.raises(ConfigError, match="either a run folder or a federation"):
            pc.run_study(tmp_path / "study.toml", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no federation was founded here"):
        pc.run_study(tmp_path / "study.toml", federation=tmp_path)
    wrong = (tmp_path / "study.toml").read_text().replace("icu_network", "icu_netwrk")
    (tmp_path / "wrong.toml").write_text(wrong)
    with pytest.raises(ConfigError, match="did you mean 'icu_network'"):
        pc.run_study(tmp_path / "wrong.toml", tmp_path / "none")
    assert not (tmp_path / "none").exists()
