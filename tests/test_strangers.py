"""What a stranger's distribution adds: a sum, a source, a section of the report, each one file and one entry."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.aggregation.plain import Collector, Plain
from polyclinic.auditing.contracts.aggregator_checks import SUM_PARTS
from polyclinic.auditing.contracts.relay_view import read_by_relay
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import plug, plugged
from polyclinic.protocol.aggregators import NAMES, by_name
from polyclinic.protocol.interfaces import Aggregator, AggregatorFacts, Message, Roster, Step, Total
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Channel
from polyclinic.records.databases.engine import literal
from polyclinic.records.sources.base import OpenedSource

KEY = b"k" * 32  # of sealed letters; how parties agree on one is not tried here
PACKAGE = '''
from pathlib import Path

from polyclinic.records.databases.engine import literal
from polyclinic.records.sources.base import OpenedSource
from polyclinic.protocol.interfaces import AggregatorFacts
from polyclinic.aggregation.plain import Plain
from polyclinic.report.section import Section


class Tiny(Plain):
    """Plain, under another name."""

    facts = AggregatorFacts(name="tiny", reveals="each", saw={"coordinator": "{values} contributions of every site"})


def open_source(con, node, outcome):
    path = literal(str(node.path(node.source.options["file"])))
    con.execute(f"CREATE VIEW tiny AS SELECT * FROM read_csv({path}, all_varchar=true)")
    events = (
        "SELECT 'tiny' AS origin, who AS patient_id, who AS visit_id, CAST('2020-01-01' AS TIMESTAMP) AS time, 'drug' AS kind, "
        "what AS code, NULL AS system, CAST(NULL AS DOUBLE) AS value, NULL AS description, NULL AS site, "
        "CASE WHEN what IS NULL THEN 'no code' END AS dropped FROM tiny"
    )
    return OpenedSource(events=events, rows={"tiny": "SELECT count(*) FROM tiny"})


def wrong(con, node, outcome):
    return 7


good = Section("Tiny words", "<h2>{{ words }} of {{ run.name }}</h2><script>alert(1)</script>", lambda run, tables: {"words": "<b>tiny</b>"})
none = Section("Never", "", lambda run, tables: None)
bad = Section("Broken", "", lambda run, tables: 1 / 0)
lost = Section("Lost", "", lambda run, tables: tables["code"])
taken = Section("Taken", "", lambda run, tables: {"run": 1})
twin = Section("tiny words ", "", lambda run, tables: {})
privacy = Section("Privacy", "", lambda run, tables: {})
syntax = Section("Syntax", Path(__file__).with_name("tiny.j2"), lambda run, tables: {})
late = Section("Late", "<p>\\n\\n{{ 1 / zero }}</p>", lambda run, tables: {"zero": 0})
stranger = 3
'''
ENTRIES = """
[polyclinic.sums]
tiny = tiny_plugin:Tiny
[polyclinic.sources]
tiny = tiny_plugin:open_source
wrong = tiny_plugin:wrong
[polyclinic.sections]
good = tiny_plugin:good
none = tiny_plugin:none
bad = tiny_plugin:bad
lost = tiny_plugin:lost
taken = tiny_plugin:taken
stranger = tiny_plugin:stranger
twin = tiny_plugin:twin
privacy = tiny_plugin:privacy
syntax = tiny_plugin:syntax
late = tiny_plugin:late
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution as pip lays it out."""
    place = tmp_path / "site-packages"
    told = place / "tiny_plugin-0.1.dist-info"
    told.mkdir(parents=True)
    (place / "tiny_plugin.py").write_text(PACKAGE)
    (place / "tiny.j2").write_text("<p>\n{{ run.name }}\n{{ run.name | shout }}\n</p>")
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 0.1\n")
    (told / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(place))
    plugged.cache_clear()
    yield place
    plugged.cache_clear()
    sys.modules.pop("tiny_plugin", None)


@pytest.mark.parametrize("name", NAMES)
def test_every_sum_passes_the_battery(name: str) -> None:
    done = pc.check_sum(by_name(name))
    assert done.passed and [p.name for p in done.parts] == list(SUM_PARTS)


class Doubling(Plain):
    """Adds a site twice."""

    facts = AggregatorFacts(name="doubling", reveals="each", saw={"coordinator": "all"})

    def add(self, step: Step, parts: Any) -> Any:
        total, weight = super().add(step, parts)
        return {n: a + parts[min(parts)].arrays[n] for n, a in total.items()}, weight


class Showing(Plain):
    """Says that it hides, and sends contributions as they are."""

    facts = AggregatorFacts(name="showing", reveals="total", saw={"coordinator": "sums"})


class Shares:
    """One party of :class:`Shared`: a random share for the coordinator, the rest for the last site, which adds those up."""

    def __init__(self, me: str, roster: Roster, step: Step, mine: Any, sealed: bool) -> None:
        self.me, self.roster, self.step, self.mine, self.sealed = me, roster, step, mine, sealed
        self.deputy, self.state, self.got = roster.sites[-1], "pending", {}  # type: ignore[var-annotated]

    def _mail(self, to: str, kind: str, share: Any) -> Message:
        body: dict[str, Any] = {"share": share}
        if self.sealed and to != self.roster.coordinator:
            body = {"sealed": Channel(KEY, self.me, to).seal(wire.encode(body), kind)}
        return Message(self.me, to, kind, self.step.round, self.step.name, self.roster.attempt, body)

    def start(self) -> list[Message]:
        if self.mine is None:
            return []
        whole = np.rint(self.mine.arrays["A"] * 2**40).astype(np.int64).view(np.uint64)
        one = np.frombuffer(os.urandom(8 * whole.size), np.uint64)
        letters = [self._mail(str(self.roster.coordinator), "left", one)]
        if self.me != self.deputy:
            self.state = "done"
            return [*letters, self._mail(self.deputy, "right", whole - one)]
        self.got[self.me] = whole - one
        return letters

    def receive(self, m: Message) -> list[Message]:
        body = m.body
        if self.sealed and self.mine is not None:
            body = wire.decode(Channel(KEY, self.me, m.sender).open(body["sealed"], m.kind))
        self.got[m.kind if m.kind == "rights" else m.sender] = body["share"]
        if self.mine is not None and len(self.got) == len(self.roster.sites):
            self.state = "done"
            return [self._mail(str(self.roster.coordinator), "rights", sum(self.got.values()))]
        if self.mine is None and len(self.got) > len(self.roster.sites):
            total = sum(self.got.values()).view(np.int64) / 2**40
            self.state = Total({"A": total}, float(len(self.roster.sites)), len(self.roster.sites), 0.0)  # type: ignore[assignment]
        return []

    def deadline(self) -> list[Message]:
        return []

    def result(self) -> Any:
        return self.state


class Shared(Aggregator):
    """Adds shares; no letter alone is like a contribution, two of them are one."""

    facts = AggregatorFacts(name="shared", reveals="total", tolerates_loss=False, saw={"coordinator": "sums"})

    def __init__(self, sealed: bool = False) -> None:
        self.sealed = sealed

    def noise_share(self, roster: Roster) -> float:
        return 1.0

    def exchange(self, me: str, roster: Roster, step: Step, mine: Any, *, promises: Any = None) -> Any:
        return Shares(me, roster, step, mine, self.sealed)


def test_the_battery_reads_as_a_coordinator_that_carries_all_letters() -> None:
    with pytest.raises(AssertionError, match="'left' and 'right' of 'site0' together are its contribution"):
        pc.check_sum(Shared(), parts=["hidden"])
    assert pc.check_sum(Shared(sealed=True), parts=["hidden"]).passed
    assert pc.check_sum(by_name("masked"), parts=["hidden"]).passed


def test_a_relay_takes_apart_a_running_sum_that_began_with_a_mask() -> None:
    """Nobody on the line learns anything; whoever carries its letters learns every part but the first."""
    rng = np.random.default_rng(0)
    line, parts = ["a", "b", "c", "d"], {s: rng.uniform(-1, 1, 300) for s in "abcd"}
    for whole in (False, True):  # real numbers with a large mask, and whole numbers modulo 2^64
        run = rng.integers(0, 2**64, 300, np.uint64) if whole else rng.normal(0, 1e3, 300)
        letters = []
        for k, s in enumerate(line):
            mine = np.rint(parts[s] * 2**40).astype(np.int64).view(np.uint64) if whole else parts[s]
            run = run + mine
            to = line[k + 1] if k + 1 < len(line) else "coordinator"
            letters.append(Message(s, to, "running", 1, "factors", 0, {"sums": run}))
        assert [bool(read_by_relay(letters, s, parts[s])) for s in line] == [False, True, True, True]


class Believing(Plain):
    """Takes letters of anybody, of any round."""

    facts = AggregatorFacts(name="believing", reveals="each", saw={"coordinator": "all"})

    def exchange(self, me: Any, roster: Roster, step: Step, mine: Any, *, promises: Any = None) -> Any:
        made = super().exchange(me, roster, step, mine, promises=promises)
        if isinstance(made, Collector):

            def receive(m: Any) -> Any:
                made.parts.setdefault(m.sender, self._read(m, step))
                return []

            vars(made)["receive"] = receive
        return made

    def _read(self, m: Any, step: Step) -> Any:
        from polyclinic.aggregation.plain import contribution_of

        return contribution_of(m, step)


class Hasty(Plain):
    """Does not wait for everybody."""

    facts = AggregatorFacts(name="hasty", reveals="each", saw={"coordinator": "all"})

    def exchange(self, me: Any, roster: Roster, step: Step, mine: Any, *, promises: Any = None) -> Any:

        return super().exchange(me, replace(roster, threshold=1), step, mine, promises=promises)


class Quiet(Plain):
    """Adds less noise than it must, and does not say what it is."""

    facts = AggregatorFacts(name="quiet", reveals="each")

    def noise_share(self, roster: Roster) -> float:
        return 0.2


class Forgetful(Plain):
    """Does not take what an engine gives."""

    facts = AggregatorFacts(name="forgetful", reveals="each", saw={"coordinator": "all"})

    def exchange(self, me: Any, roster: Roster, step: Step, mine: Any) -> Any:  # type: ignore[override]
        return super().exchange(me, roster, step, mine)


class Endless(Plain):
    """Waits for ever."""

    facts = AggregatorFacts(name="endless", reveals="each", saw={"coordinator": "all"})

    def exchange(self, me: Any, roster: Roster, step: Step, mine: Any, *, promises: Any = None) -> Any:
        made = super().exchange(me, roster, step, mine, promises=promises)
        vars(made)["deadline"] = list
        return made


class Nameless(Plain):
    """Says nothing of itself."""

    facts = None  # type: ignore[assignment]


class Double(Plain):
    """Another sum under the name of one of ours."""


@pytest.mark.parametrize(
    ("adder", "part"),
    [
        (Forgetful, "between"),
        (Endless, "lost"),
        (Nameless, "facts"),
        (Double, "facts"),
        (Doubling, "total"),
        (Doubling, "model"),
        (Showing, "hidden"),
        (Believing, "strangers"),
        (Hasty, "lost"),
        (Quiet, "noise"),
        (Quiet, "facts"),
    ],
)
def test_the_battery_catches_a_broken_sum(adder: type[Plain], part: str) -> None:
    with pytest.raises(AssertionError, match=rf"{part} +failed"):
        pc.check_sum(adder(), parts=[part])


class Keyed(Plain):
    """A sum that hides and signs: it wants the keys."""

    facts = AggregatorFacts(name="keyed", reveals="total", saw={"coordinator": "sums"})

    def __init__(self, **options: Any) -> None:
        self.identities = options.get("identities")


def test_a_sum_is_given_keys_where_it_takes_them_and_needs_no_init_else() -> None:
    assert pc.check_sum(Showing(), parts=["between"]).passed
    with plug("polyclinic.sums", "keyed", Keyed), plug("polyclinic.sums", "showing", Showing):
        assert vars(by_name("keyed", identities={"a": 1}))["identities"] == {"a": 1}
        assert isinstance(by_name("showing", identities={"a": 1}), Showing)
        assert vars(by_name("masked", identities={"a": 1}))["identities"] == {"a": 1}


def test_the_battery_says_what_an_engine_would_meet() -> None:
    with pytest.raises(AssertionError, match=r"'site0': TypeError: .*unexpected keyword argument 'promises'"):
        pc.check_sum(Forgetful(), parts=["between"])
    with pytest.raises(AssertionError, match=r"after the deadline coordinator still wait: deadline\(\) must end"):
        pc.check_sum(Endless(), parts=["lost"])
    with pytest.raises(AssertionError, match=r"contract checks of Nameless\n 1 facts +failed .*AggregatorFacts"):
        pc.check_sum(Nameless())


def test_parts_and_things_that_are_no_sum_are_told() -> None:
    with pytest.raises(ConfigError, match="no such check"):
        pc.check_sum(Plain(), parts=["totals"])
    with pytest.raises(ConfigError, match="wants a way to add, got the class Plain"):
        pc.check_sum(Plain)  # type: ignore[arg-type]


def test_an_installed_sum_is_named_by_a_study(installed: Path) -> None:
    sites = pc.datasets.planted_counts(120, 10, 12, phenotypes=2, codes=(3, 3), sites=3, seed=0)
    tiny, plain = (pc.TRIP(rank=2, rounds=2, aggregation=a).fit(sites) for a in ("tiny", "plain"))
    assert all(np.array_equal(a, b) for a, b in zip(tiny.factors_, plain.factors_))
    assert tiny.privacy_.aggregation == "tiny"
    assert pc.check_sum(by_name("tiny")).passed
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        by_name("tinny")


def test_an_installed_source_is_named_by_a_node(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,what\n" + "".join(f"p{k},a\np{k},b\n" for k in range(15)) + "p3,\n")
    node = pc.Node.parse(
        {"site": {"name": "x"}, "source": {"kind": "tiny", "options": {"file": "t.csv"}}}, folder=tmp_path
    )
    study = pc.Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["drug"]}})
    made = pc.ingest(node, study, tmp_path / "out")
    assert made.site.counts().shape == (15, 2)
    (read,) = [s for s in made.manifest["steps"] if s["step"] == "read tiny"]
    assert (read["rows_in"], read["rows_out"], read["dropped"]) == (31, 30, {"no code": 1})
    with pytest.raises(ConfigError, match=r"kind: 'tinny' .* did you mean 'tiny'\?"):
        pc.Node.parse({"site": {"name": "x"}, "source": {"kind": "tinny"}})
    wrong = pc.Node.parse({"site": {"name": "x"}, "source": {"kind": "wrong"}})
    with pytest.raises(ConfigError, match="gave a int, not an OpenedSource"):
        pc.ingest(wrong, study, tmp_path / "no")
    with pytest.raises(ConfigError, match="options are of a plugged-in source"):
        pc.Node.parse({"site": {"name": "x"}, "source": {"kind": "files", "options": {"file": "t.csv"}}})


EVENTS = (
    "SELECT 'rows' AS origin, who AS patient_id, who AS visit_id, NULL AS time, 'drug' AS kind, what AS code, NULL AS system, "
    "NULL AS value, NULL AS description, NULL AS site, NULL AS dropped FROM t"
)


def _view(con: Any, node: pc.Node) -> None:
    path = literal(str(node.path(node.source.options["file"])))
    con.execute(f"CREATE VIEW t AS SELECT * FROM read_csv({path}, columns={{'who': 'INTEGER', 'what': 'VARCHAR'}})")


def _lost(con: Any, node: pc.Node, outcome: str | None) -> OpenedSource:
    return OpenedSource(events=node.path("nothere.txt").read_text(), rows={})


def _garbled(con: Any, node: pc.Node, outcome: str | None) -> OpenedSource:
    return OpenedSource(events=json.loads("{Smith"), rows={})  # the error is raised in a library's file


def _opened(
    events: str = EVENTS, name: str = "rows", count: str = "SELECT count(*) FROM t"
) -> Callable[..., OpenedSource]:
    def open_source(con: Any, node: pc.Node, outcome: str | None) -> OpenedSource:
        _view(con, node)
        return OpenedSource(events=events, rows={name: count})

    return open_source


def _raises(con: Any, node: pc.Node, outcome: str | None) -> OpenedSource:
    return OpenedSource(events=str(int("Smith")), rows={})


@pytest.mark.parametrize(
    ("source", "file", "words"),
    [
        (_opened(), {"fill": "t.csv"}, r"PC200.*\[source.options\] lacks 'file'\n.*there are: fill"),
        (_opened(), {"file": "no.csv"}, r"PC300.*cannot be read\n.*No files found.*no\.csv.*\n.*is the file there"),
        (_opened(), {"file": "bad.csv"}, r"CSV Error on Line: 3, converting column \"who\" \(what the cell"),
        (_opened(EVENTS.replace("what AS code", "what AS cod")), {"file": "t.csv"}, r"its events lack code\n"),
        (
            _opened(EVENTS.replace("what AS code", "wat AS code")),
            {"file": "t.csv"},
            r'"wat" not found.*\n.*not named as',
        ),
        (
            _opened(EVENTS + " WHERE who > 1"),
            {"file": "t.csv"},
            r"source 'mine' \(.*open_source\): its events have 1 rows of 'rows', its rows count 2\n.*missing in one of them",
        ),
        (
            _opened(EVENTS.replace("who AS", "t.who AS").replace("what AS", "t.what AS") + ", t AS u"),
            {"file": "t.csv"},
            r"its events have 4 rows of 'rows', its rows count 2\n.*joined with several",
        ),
        (
            _opened("SELEC 1"),
            {"file": "t.csv"},
            r"its events: cannot be read\n.*Parser Error.*\n.*SQL of this source has a fault",
        ),
        (
            _opened(count="SELECT count(*) FROM u"),
            {"file": "t.csv"},
            r"its rows of 'rows': cannot be read\n.*name u does not",
        ),
        (_lost, {}, r"PC300.*nothere\.txt: No such file or directory\n.*is the file there"),
        (_opened(name="other"), {"file": "t.csv"}, r"origin 'rows' of its events is not in rows\n.*there are: other"),
        (
            _raises,
            {},
            r"\(.*_raises\): failed \(ValueError, test_strangers.py line \d+, in _raises\)\n.*ask the authors of",
        ),
        (_garbled, {}, r"failed \(JSONDecodeError, test_strangers.py line \d+, in _garbled\)"),
    ],
)
def test_faults_of_a_plugged_source_are_told_and_quote_no_cell(
    source: Callable[..., OpenedSource], file: dict[str, str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("who,what\n1,a\n2,b\n")
    (tmp_path / "bad.csv").write_text("who,what\n1,a\nSmith,b\n")
    made = {"site": {"name": "x", "folder": "s"}, "source": {"kind": "mine", "options": file}}
    with plug("polyclinic.sources", "mine", source):
        node = pc.Node.parse(made, folder=tmp_path)
        with pytest.raises((ConfigError, DataError)) as e:
            pc.ingest(node, pc.Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["drug"]}}), tmp_path / "out")
        found = pc.check(node)
    assert re.search(words, str(e.value), re.DOTALL), str(e.value)
    assert "Smith" not in str(e.value) and "Smith" not in str(found.faults) and found.faults


def test_check_source_looks_at_every_query_and_reads_twice(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,what\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(40)))
    assert pc.check_source(_opened(), {"file": "t.csv"}, folder=tmp_path).ok

    def visits(con: Any, node: pc.Node, outcome: str | None) -> OpenedSource:
        made = _opened()(con, node, outcome)
        born = "SELECT who AS patient_id, 1980 AS born FROM t"
        return replace(made, births=born, observed="SELECT who AS patient_id FROM nowhere")

    with pytest.raises(AssertionError, match="the query births lacks the column year"):
        pc.check_source(lambda *a: replace(visits(*a), observed=None), {"file": "t.csv"}, folder=tmp_path)
    with pytest.raises(
        AssertionError, match=r"the query observed: cannot be read: Catalog Error[\s\S]*what to do: a table"
    ):
        pc.check_source(visits, {"file": "t.csv"}, folder=tmp_path)
    fresh = _opened(EVENTS.replace("what AS code", "what || (random() * 1e9)::INTEGER AS code"))
    with pytest.raises(AssertionError, match="read twice, the events are not the same"):
        pc.check_source(fresh, {"file": "t.csv"}, folder=tmp_path)
    with pytest.raises(ConfigError, match="wants a function, got a int"):
        pc.check_source(3)  # type: ignore[arg-type]


def test_installed_sections_are_tabs_and_a_broken_one_takes_nothing_with_it(
    installed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from polyclinic.report.contents import RunContents
    from polyclinic.report.html import render
    from polyclinic.studies.run_folder import Run, RunFolder

    sites = pc.datasets.planted_counts(120, 10, 12, phenotypes=2, codes=(3, 3), sites=3, seed=0)
    m = pc.TRIP(rank=2, rounds=2).fit(sites)
    folder = RunFolder.create(tmp_path / "run")
    asked = {"study": {"name": "mine", "seed": 0}, "method": {"name": "trip"}}
    folder.write_json(folder.study, {"study": asked, "sites": [s.name for s in sites]})
    Run.write(folder, m, metrics={"rounds": 2})
    page = render(RunContents.read(str(folder.path)))
    assert "the report has no table &#39;code&#39;; did you mean &#39;codes&#39;?" in page
    assert "values named run" in page
    assert "section 'bad' (tiny_plugin:bad) could not be made: ZeroDivisionError" in caplog.text
    assert "<h2>&lt;b&gt;tiny&lt;/b&gt; of mine</h2>" in page and 'id="tab-more-good"' in page
    assert "Never" not in page
    assert "This section (tiny_plugin:bad) could not be made: ZeroDivisionError" in page
    assert "tiny_plugin:stranger is a int, not a polyclinic.report.section.Section" in page
    assert "script-src 'sha256-" in page and "unsafe" not in page  # a section's own script does not run


def test_a_broken_section_is_told_with_file_line_and_package_and_ends_the_command_with_2(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyclinic.cli import main
    from polyclinic.studies.run_folder import Run, RunFolder

    sites = pc.datasets.planted_counts(120, 10, 12, phenotypes=2, codes=(3, 3), sites=3, seed=0)
    folder = RunFolder.create(tmp_path / "run")
    asked = {"study": {"name": "mine", "seed": 0}, "method": {"name": "trip"}}
    folder.write_json(folder.study, {"study": asked, "sites": [s.name for s in sites]})
    Run.write(folder, pc.TRIP(rank=2, rounds=2).fit(sites), metrics={"rounds": 2})
    with pytest.raises(SystemExit) as e:
        main(["report", str(folder.path)])
    assert e.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    where = f"No filter named 'shout'. ({installed / 'tiny.j2'}, line 3); package tiny-plugin"
    assert where in told
    assert "(<template of Late>, line 3); package tiny-plugin" in told
    assert "ZeroDivisionError: division by zero; package tiny-plugin" in told  # its function, not its template
    page = folder.report.read_text()
    assert where.replace("'", "&#39;") in page  # the report stands, and says the same
    tabs = re.findall(r'role="tab"[^>]*>([^<]*)<', page)
    assert "Tiny words (tiny-plugin: good)" in tabs
    assert "tiny words  (tiny-plugin: twin)" in tabs
    assert [t for t in tabs if t.startswith("Privacy")] == ["Privacy (tiny-plugin: privacy)", "Privacy"]
    with pytest.raises(SystemExit) as e:
        main(["report", str(folder.path), "--json"])
    assert e.value.code == 2
    assert json.loads(capsys.readouterr().out.splitlines()[0])["report"] == str(folder.report)


def test_plugging_in_without_installing_ends_with_the_block() -> None:
    with plug("polyclinic.sums", "again", Plain):
        assert isinstance(by_name("again"), Plain)
    with pytest.raises(ConfigError, match="unknown aggregation 'again'"):
        by_name("again")
