"""A report that must hide says so, why, and what would help; exports say what is hidden; owners see everything of their own."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.simulated.attrition import attrition
from polyclinic.cli import main
from polyclinic.errors import ConfigError
from polyclinic.records.databases.attrition import Attrition, shared
from polyclinic.report.cards import cards
from polyclinic.report.charts.rows import flow_boxes
from polyclinic.report.contents import RunContents
from polyclinic.report.export.owner_view import local_view, write_local_report
from polyclinic.report.export.tables import export
from polyclinic.report.html import hiding, render
from polyclinic.studies.run_folder import RunFolder


def test_exports_mark_every_hole_and_the_run_keeps_the_whole_model(plain_run: RunFolder, tmp_path: Path) -> None:
    export(plain_run, out=tmp_path)
    run = RunContents.read(plain_run)
    with np.load(tmp_path / "outcome.npz") as z:
        assert bool(z["censored"])
        for n, whole in enumerate(run.factors, start=1):
            hide = z[f"hidden{n}"]
            assert hide.shape == whole.shape and hide.any() and not hide.all()
            assert (z[f"factor{n}"][hide] == 0).all()
            np.testing.assert_array_equal(z[f"factor{n}"][~hide], whole[~hide])
            left = np.square(z[f"factor{n}"]).sum(0) / np.square(whole).sum(0)
            np.testing.assert_allclose(z["kept"][:, n - 1], left, atol=1e-4)
    assert json.loads((tmp_path / "outcome.json").read_text())["censored"] is True
    rows = list(csv.DictReader((tmp_path / "codes.csv").open(encoding="utf-8")))
    assert {r["shown"] for r in rows} == {"True", "False"}
    assert all(not r["code"] for r in rows if r["shown"] == "False")  # how much is hidden, not what
    shares: dict[tuple[str, str], float] = {}
    for r in rows:
        key = (r["phenotype"], r["mode"])
        shares[key] = shares.get(key, 0.0) + float(r["share"])
    assert max(shares.values()) <= 1 + 1e-6


def test_the_exported_model_file_says_that_it_is_censored_and_places_nobody_by_mistake(
    plain_run: RunFolder, tmp_path: Path
) -> None:
    export(plain_run, out=tmp_path)
    whole = pc.load(plain_run.path)
    with pytest.warns(UserWarning, match="censored"):
        holes = pc.load(tmp_path / "model.phenotypes")
    assert holes.origin.censored and not whole.origin.censored
    site = pc.datasets.icu_network(patients=600, seed=1)[0]
    assert whole.transform(site).shape == (site.patients, 8)
    if min(min(k) for k in holes.origin.further["kept"]) < 0.9:
        with pytest.raises(pc.errors.DataError, match="censored"):
            holes.transform(site)
    spoilt = replace(holes, origin=replace(holes.origin, further={"kept": [[0.5, 1.0]] * 8}))
    with pytest.raises(pc.errors.DataError, match="50% of its squared weight"):
        spoilt.transform(site)
    assert spoilt.transform(site, allow_censored=True).shape == (site.patients, 8)  # type: ignore[call-arg]


def test_a_phenotype_without_a_name_says_why_and_the_top_of_the_page_what_would_help(
    plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder]
) -> None:
    run = copied(plain_run)
    stored = json.loads((run.path / "presence.json").read_text())
    stored["carried"][0] = False
    (run.path / "presence.json").write_text(json.dumps(stored))
    with np.load(run.path / "presence.npz") as z:
        flags = {k: np.array(z[k]) for k in z.files}
    few, held = flags["few1"], flags["held1"]
    few[:, 1], held[:, 1] = True, True
    few[:, 2], held[:, 2] = True, False
    np.savez_compressed(run.path / "presence.npz", **flags)  # type: ignore[arg-type]
    contents = RunContents.read(run)
    found = cards(contents)
    assert [c.reason for c in found[:3]] == ["carriers", "held", "few"]
    assert [c.name for c in found[:3]] == ["Phenotype 1", "Phenotype 2", "Phenotype 3"]
    assert not any(codes for _, codes in found[0].codes)
    said = hiding(contents, found)
    assert said is not None and "cannot be named here" in said.headline and said.helps
    page = render(contents)
    assert page.index("cannot be named here") < page.index("All phenotypes")
    assert "two patients hold most of its strongest codes" in page
    assert "report RUN --local SITE" in page


def test_codes_that_noise_explains_are_not_said_to_be_of_few_patients(plain_run: RunFolder) -> None:
    contents = RunContents.read(plain_run)
    shown = [np.ones(f.shape, bool) for f in contents.factors]
    shown[1][:, 0] = False
    noised = replace(contents, model=replace(contents.phenotypes, shown=tuple(shown)))
    found = cards(noised)
    assert found[0].reason == "noisy" and not found[0].named
    said = hiding(noised, found)
    assert said is not None and "the known noise explains most of what its codes weigh (1 of 1)" in said.why
    assert "explained by noise, too few patients" in render(noised)


def test_the_owners_report_hides_nothing_is_stamped_and_private(plain_run: RunFolder) -> None:
    site = RunContents.read(plain_run).sites[0]
    path = write_local_report(plain_run, site)
    assert path.parent.name == site and os.stat(path).st_mode & 0o777 == 0o600
    page = path.read_text(encoding="utf-8")
    assert f"For the owner of {site} only. Do not pass on." in page
    view = local_view(RunContents.read(plain_run), site)
    assert f"{view.patients} patients here are those of {site}." in page  # not: so many sites learned from them
    assert f"from {view.patients} patients" not in page and "found at more than one site" not in page
    assert all(c.named and not c.suppressed for c in cards(view))
    shared = render(RunContents.read(plain_run))
    hidden = RunContents.read(plain_run).hidden
    assert any((a & ~b).any() for a, b in zip(hidden, view.hidden)) and "Do not pass on" not in shared
    with np.load(plain_run.path / "sites" / site / "memberships.npz") as z:
        assert view.presence["sites"][site] == len(z["memberships"])
    with pytest.raises(ConfigError, match="NOPE"):
        write_local_report(plain_run, "NOPE")


def test_the_command_writes_the_owners_report(plain_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    site = RunContents.read(plain_run).sites[0]
    with pytest.raises(SystemExit) as ended:
        main(["report", str(plain_run.path), "--local", site, "--json"])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["report"].endswith(f"sites/{site}/report.html")


@pytest.fixture(scope="module")
def fitted() -> tuple[pc.SumALS, list[pc.Site]]:
    sites = pc.datasets.icu_network(patients=600, mortality=0.3, seed=0)
    return pc.SumALS(rank=4, rounds=5, seed=0).fit(sites), list(sites)


def _forget(site: pc.Site, patients: list[int]) -> pc.Site:
    labels = np.array(site.labels, np.float64)
    labels[patients] = np.nan
    return replace(site, labels=labels)


def test_patients_without_a_known_outcome_are_counted_unless_they_are_few(
    fitted: tuple[pc.SumALS, list[pc.Site]],
) -> None:
    model, sites = fitted
    for few, expected in ((list(range(0, 30, 2)), 15), ([3], None)):
        o = pc.evaluate(model, [_forget(sites[0], few), *sites[1:]], what=("outcome",)).outcome
        assert o is not None and o.auc is not None and o.unknown == expected
        assert (o.patients is None) == (expected is None), "with the number of all patients either gives the other"
    nowhere = pc.evaluate(model, [replace(sites[0], labels=None), *sites[1:]], what=("outcome",)).outcome
    assert nowhere is not None and nowhere.unknown == sites[0].patients


def test_an_outcome_of_few_patients_is_not_shown_and_says_why(fitted: tuple[pc.SumALS, list[pc.Site]]) -> None:
    model, sites = fitted
    rare = [replace(s, labels=(np.arange(s.patients) == 0).astype(int)) for s in sites]
    o = pc.evaluate(model, rare, what=("outcome",)).outcome
    assert o is not None and o.auc is None and not len(o.effects) and "fewer than 11 patients" in o.note
    with pytest.raises(ConfigError, match="labels of 0 and 1"):
        pc.evaluate(model, [replace(s, labels=None) for s in sites], what=("outcome",))


def test_attrition_gives_no_small_count() -> None:
    steps = [
        {"step": "read a", "rows_in": 1000, "rows_out": 996, "dropped": {"no code": 4}},
        {"step": "choose", "rows_in": 996, "rows_out": 500, "dropped": {"rare": 496, "never": 0}},
    ]
    first, second = attrition({"x": steps})["x"]
    assert first["dropped"] == {"no code": None} and first["rows_out"] == second["rows_in"] == 1000
    assert second["dropped"] == {"rare": 496} and second["rows_out"] == 500


def test_nobody_computes_how_few_were_left_out_from_how_many_take_part() -> None:
    def told(*patients: int) -> list[str]:
        steps = shared([Attrition(f"step {k}", n, 0) for k, n in enumerate(patients)], 11)
        names = ("source", "has_codes", "takes_part")
        boxes = [{"box": n, "words": n, "patients": s["patients"]} for n, s in zip(names, steps)]
        return [f"{b.count} {b.lost}".strip() for b in flow_boxes({"flow": boxes}, {})]

    assert told(983, 976, 976) == ["977 to 986", "976", "976"]
    assert told(983, 976, 600) == ["983", "not shown", "600"]
    assert told(983, 800, 600) == ["983", "800 left out: 183", "600 left out: 200"]
