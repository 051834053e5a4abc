"""A model file that somebody else wrote: no text in it becomes a script, a formula, an escape sequence or a path."""

from __future__ import annotations

import copy
import csv
import io
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.cli.console import console
from polyclinic.cli.study.model import app
from polyclinic.errors import DataError, PolyclinicError
from polyclinic.models import file as container
from polyclinic.models.model_card import readme
from polyclinic.util.table import Table, spreadsheet_cell

pytestmark = pytest.mark.attack
PAYLOAD = "=cmd()'\"><script>alert(1)</script>\x1b[2J\x9b2J\u202e[link=http://x]y[/link]../../evil"


def models() -> dict[str, Any]:
    tensors, tables = example_sites("tensor"), example_sites("features")
    made: dict[str, Any] = {
        "phenotypes": pc.SumALS(rank=2, rounds=2, warmup=1).fit(tensors),
        "groups": pc.GaussianMixture(n_components=2, rounds=2).fit(tables),
        "moments": pc.Standardizer().fit(tables),
    }
    return {k: container.unpack(m._whole().to_bytes()) for k, m in made.items()}


@pytest.fixture(scope="module")
def honest() -> dict[str, Any]:
    return models()


def places(value: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every text of a tree: keys and values, the first two of each list."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield "key", (*at, k)
            yield from places(v, (*at, k))
    elif isinstance(value, list):
        for i, v in enumerate(value[:2]):
            yield from places(v, (*at, i))
    elif isinstance(value, str):
        yield "value", at


def changed(header: dict[str, Any], kind: str, at: tuple[Any, ...]) -> dict[str, Any]:
    out = copy.deepcopy(header)
    place: Any = out
    for step in at[:-1]:
        place = place[step]
    if kind == "value":
        place[at[-1]] = PAYLOAD
    else:
        place[PAYLOAD] = place.pop(at[-1])
    return out


def packed(model: Any, header: dict[str, Any]) -> bytes:
    members = {n: d for n, d in container._members(model.to_bytes(), "it").items() if n != "SHA256SUMS"}
    members["model.json"] = json.dumps(header, ensure_ascii=False).encode()
    sums = "".join(f"{sha256(members[n]).hexdigest()}  {n}\n" for n in sorted(members))
    return container._zip({**members, "SHA256SUMS": sums.encode()})


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.names |= {k for k, _ in attrs}


def html(text: str) -> bool:
    tags = _Tags(text)
    return tags.found <= {"div", "p", "table", "tr", "th", "td"} and tags.names <= {"class", "style", "data-guarantee"}


def sheet(text: str) -> bool:
    return not any(c[:1] == "=" for row in csv.reader(io.StringIO(text)) for c in row)


def printed(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def _shown(path: Path, *more: str) -> str:
    return CliRunner().invoke(app, [*more, str(path)]).output


OUT: dict[str, tuple[Callable[[Any, Path], str], Callable[[str], bool]]] = {
    "notebook": (lambda m, p: m._repr_html_(), html),
    "card": (lambda m, p: m.card._repr_html_(), html),
    "table": (lambda m, p: m.table().to_csv(), sheet),
    "repr": (lambda m, p: repr(m), printed),
    "rows": (lambda m, p: repr(m.table()), printed),
    "words": (lambda m, p: str(m.card), printed),
    "readme": (lambda m, p: readme(m), lambda t: printed(t) and "<script" not in t),
    "show": (lambda m, p: _shown(p, "show"), printed),
    "verify": (lambda m, p: _shown(p, "verify"), printed),
    "diff": (lambda m, p: _shown(p, "diff", str(p)), printed),
}


@pytest.mark.parametrize("kind", ["phenotypes", "groups", "moments"])
def test_every_text_of_a_model_file(honest: dict[str, Any], kind: str, tmp_path: Path) -> None:
    model = honest[kind]
    header = json.loads(container._members(model.to_bytes(), "it")["model.json"])
    found, tried, read = [], 0, 0
    for what, at in places(header):
        data = packed(model, changed(header, what, at))
        tried += 1
        try:
            m = container.unpack(data)
        except PolyclinicError as e:
            assert printed(str(e)), (what, at)
            continue
        read += 1
        path = tmp_path / f"it.{m.kind}"
        path.write_bytes(data)
        few = OUT if read % 5 == 0 else {k: v for k, v in OUT.items() if k not in ("show", "verify", "diff")}
        found += [(name, what, at) for name, (make, good) in few.items() if not good(make(m, path))]
    assert found == []
    assert tried > 60
    assert read > 20
    assert sorted(p.name for p in tmp_path.parent.glob("*evil*")) == []


def test_a_guarantee_is_one_of_the_words(honest: dict[str, Any]) -> None:
    model = honest["phenotypes"]
    header = json.loads(container._members(model.to_bytes(), "it")["model.json"])
    for key, words in (("guarantee", "formal and more"), ("adjacency", "galaxy")):
        header["privacy"] = {**header["privacy"], key: words}
        with pytest.raises(DataError, match="of a privacy card"):
            container.unpack(packed(model, header))


def test_the_terminal_is_not_steered(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table as Rich

    out = Rich(PAYLOAD)
    out.add_row(PAYLOAD)
    with console.capture() as got:
        console.print(out)
        console.print(f"{PAYLOAD}: [bold]codes[/bold]")
    assert printed(got.get())
    assert "[bold]codes[/bold]" in got.get()  # markup is text
    assert "[link=" in got.get()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1dcmd()", "\uff0b1"])
def test_formulas_are_texts(text: str) -> None:
    assert str(spreadsheet_cell(text)).startswith("'")
    for name in (text, f"heart{text}", f"heart\r{text}"):  # nor may it begin a row
        text_of = Table(("a",), [(name,)]).to_csv()
        assert "\r" not in text_of
        rows = list(csv.reader(io.StringIO(text_of)))
        assert len(rows) == 2
        assert sheet(text_of)
    assert spreadsheet_cell(-1.5) == -1.5  # a number stays one


def test_an_export_for_ohdsi_has_no_formula(tmp_path: Path) -> None:
    from polyclinic.report.export.ohdsi import _csv

    path = _csv(tmp_path / "x.csv", ["name"], [[PAYLOAD], [np.int64(3)]])
    assert sheet(path.read_text(encoding="utf-8"))


def test_errors_quote_without_steering() -> None:
    e = DataError(f"{PAYLOAD} is wrong", faults=[PAYLOAD, "two\nlines"], hint=PAYLOAD)
    assert printed(str(e))
    assert "two\nlines" in str(e)
