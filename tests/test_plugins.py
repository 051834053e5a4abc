"""What another distribution plugs in is found by its name; what is lacking is told, with where it is."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import polyclinic as pc
from polyclinic import plugins
from polyclinic.cli import main, verbs
from polyclinic.config import Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.protocol.aggregators import by_name, kind_of
from polyclinic.studies.registry import find


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As if nothing but the given entry points were installed."""

    def install(**entries: str) -> None:
        def found(*, group: str) -> list[EntryPoint]:
            return [EntryPoint(name, value, group) for name, value in entries.items()]

        plugins.plugged.cache_clear()
        monkeypatch.setattr(plugins, "entry_points", found)

    yield install
    plugins.plugged.cache_clear()


def test_the_papers_are_plugged_in() -> None:
    assert "papers" in verbs() and by_name("cycle").facts.topology == "peers"
    assert len(pc.datasets.dpfact_synthetic(shape=(500, 300, 800))) == 5


def test_without_the_papers_everything_that_lacks_says_where_it_is(
    only: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    only()
    assert "papers" not in verbs()
    with pytest.raises(SystemExit) as left:
        main(["papers", "list"])
    assert left.value.code == 2 and "pip install polyclinic-papers" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="pip install polyclinic-papers"):
        by_name("cycle")
    with pytest.raises(AttributeError, match="pip install polyclinic-papers"):
        pc.datasets.load_colon


def test_a_strangers_sum_is_found_and_one_that_is_no_sum_is_refused(only: Any) -> None:
    only(mine="polyclinic.aggregation.plain:Plain", wrong="pathlib:Path")
    assert kind_of("mine").__name__ == "Plain"
    with pytest.raises(ConfigError, match="'wrong' is no sum: pathlib:Path"):
        kind_of("wrong")
    with pytest.raises(ConfigError, match="did you mean 'masked'"):
        kind_of("maskd")


def _distribution(place: Path, package: str, entries: str) -> None:
    """A distribution as pip lays it out: its entries alone."""
    told = place / f"{package.replace('-', '_')}-0.1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (told / "entry_points.txt").write_text(entries)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path in which distributions are installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.plugged.cache_clear()
    yield tmp_path
    plugins.plugged.cache_clear()


def test_two_packages_with_one_name_are_refused_by_both_their_names(place: Path) -> None:
    _distribution(place, "first-pkg", "[polyclinic.sums]\nmine = polyclinic.aggregation.plain:Plain\n")
    _distribution(place, "second-pkg", "[polyclinic.sums]\nmine = polyclinic.aggregation.robust:Median\n")
    with pytest.raises(ConfigError, match=r"'mine' is plugged in by 2 packages: .*first-pkg") as e:
        kind_of("mine")
    assert "second-pkg" in str(e.value)
    with plugins.plug("polyclinic.sums", "mine", by_name("plain").__class__):  # a block's own is what is meant
        assert kind_of("mine").__name__ == "Plain"


def test_methods_whose_names_differ_by_a_hyphen_are_one_name(place: Path) -> None:
    _distribution(place, "first-pkg", "[polyclinic.methods]\nmy-way = polyclinic.methods.phenotypes:TRIP\n")
    assert find("my-way") is find("myway") is find("My_Way") is pc.TRIP
    plugins.plugged.cache_clear()
    _distribution(place, "second-pkg", "[polyclinic.methods]\nmyway = polyclinic.methods.phenotypes:DPEM\n")
    with pytest.raises(ConfigError, match="'my-way' is plugged in more than once") as e:
        find("my-way")
    assert "first-pkg" in str(e.value) and "second-pkg" in str(e.value)


def test_a_plugin_under_a_name_of_ours_is_told(place: Path) -> None:
    _distribution(place, "first-pkg", "[polyclinic.methods]\ntrip = polyclinic.methods.phenotypes:DPEM\n")
    with pytest.warns(UserWarning, match="'trip' is polyclinic's own, not the one of first-pkg"):
        assert find("trip") is pc.TRIP


@pytest.mark.parametrize("value", ["nowhere_at_all:Mine", "polyclinic.aggregation.plain:Mine", "torn_plugin:Mine"])
def test_what_cannot_be_imported_is_told_with_its_package(
    place: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "torn_plugin.py").write_text("1 / 0\n")
    groups = ("sums", "methods", "sources", "datasets", "commands", "attacks")
    _distribution(place, "torn-pkg", "".join(f"[polyclinic.{g}]\nmine = {value}\n" for g in groups))
    torn = r"'mine' of the package torn-pkg cannot be imported[\s\S]*" + value
    node = pc.Node.parse({"site": {"name": "x"}, "source": {"kind": "mine"}})
    study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["drug"]}})
    for call in (
        lambda: kind_of("mine"),
        lambda: find("mine"),
        lambda: pc.ingest(node, study, place / "out"),
        lambda: vars(pc.datasets)["__getattr__"]("mine"),
    ):
        with pytest.raises(ConfigError, match=torn):
            call()
    assert "torn-pkg" in verbs()["mine"] and "papers" in verbs()  # the other verbs are still told
    with pytest.raises(SystemExit) as left:
        main(["mine"])
    assert left.value.code == 2 and "torn-pkg cannot be imported" in capsys.readouterr().err


def test_whatever_is_misspelt_the_nearest_name_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"rnak: .*did you mean 'rank'"):
        pc.TRIP(rnak=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="aggregation: unknown aggregation 'maskd'; did you mean 'masked'"):
        pc.TRIP(rank=3, aggregation="maskd")
    with pytest.raises(ConfigError, match="did you mean 'gram'") as e:
        pc.TRIP(rank=3, start="gramm")
    assert len(e.value.faults) == 1
    with pytest.raises(ConfigError, match="did you mean 'trip'"):
        find("tripp")
    with pytest.raises(ConfigError, match=r"study\.sead: unknown key; did you mean 'seed'"):
        Study.parse({"study": {"name": "x", "sead": 0}, "method": {"name": "trip"}})
    with pytest.raises(ConfigError, match="did you mean 'icu_network'") as e:  # together with what else is wrong
        Study.parse({"study": {"name": "x", "sead": 0}, "method": {"name": "trip"}, "data": {"dataset": "icu_netwrk"}})
    assert len(e.value.faults) == 3  # the key, the data set, the missing aggregation
    with pytest.raises(ConfigError, match=r"did you mean 'l[12]' or 'l[12]'") as e:
        pc.UnPSL(l3=1.0, penaltyy=2.0)
    assert len(e.value.faults) == 2
    sites = [pc.Site("a", features=[[1.0]])]
    for given in ("a.csv", Path("a.csv"), None):
        with pytest.raises(DataError, match=f"one hospital's patients; this is a {type(given).__name__}"):
            pc.GaussianMixture(n_components=1).fit(given)
    tiny = pc.SumALS(rank=1, rounds=1).fit(pc.from_numpy([[1, 0], [0, 2]]))
    with pytest.raises(ConfigError, match="'carrierz' is unknown; did you mean 'carriers'"):
        pc.evaluate(tiny, [pc.Site("a", pc.from_numpy([[1, 0], [0, 2]]))], what="carrierz")
    with pytest.raises(ConfigError, match="quorm: did you mean 'quorum'"):
        pc.Standardizer().fit(sites, quorm=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"Standardizer\(seed=\.\.\.\)\.fit"):
        pc.Standardizer().fit(sites, seed=1)  # type: ignore[call-arg]
    for central in (pc.CPALS, pc.CPSGD):
        with pytest.raises(ConfigError, match=f"{central.__name__}.fit does not take strat\n.*did you mean 'start'"):
            central(rank=1).fit(sites, strat=None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=rf"{central.__name__}\(rounds=\.\.\.\)\.fit"):
            central(rank=1).fit(sites, rounds=3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="did you mean 'DPEM'"):
        pc.DPME  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="did you mean 'icu_network'"):
        pc.datasets.icu_netwrk


@pytest.mark.parametrize("given", [{"a": [1]}, "north", None, [[1, 2]]])
def test_what_is_no_hospital_is_told_what_it_is(given: object) -> None:
    model = pc.SumALS(rank=2)
    for call in (model.fit, pc.align, lambda sites: pc.evaluate(model, sites)):
        with pytest.raises(DataError, match=r"sites must be a list of pc\.Site|no sites given"):
            call(given)  # type: ignore[arg-type]
