"""A dossier before and after a study: complete, tied by digests, true about what it was made from."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import hospitals
import pytest
from tests.node.dossier.required import check_complete

from polyclinic.cli import _run
from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.node.dossier.page import make_dossier, render
from polyclinic.node.dossier.sources import gather
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.entries import Accept

ROOT = Path(__file__).parents[3]

METHOD = 'name = "dpem"\nrank = 4\nrounds = 2\naggregation = "masked"'
ASKED = "[privacy]\nepsilon = 4.0\ndelta = 1e-6\n"
QUESTION = 'description = "Which <drugs> & diagnoses occur together?"\n'


def _study(folder: Path, head: str = QUESTION, tail: str = ASKED) -> Path:
    hospitals.vocabulary(folder)
    return hospitals.study(folder, "pairs", METHOD, head=head, tail=tail)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation over the rehearsal's three hospitals, audited."""
    root = tmp_path_factory.mktemp("dossier")
    nodes = [hospitals.hospital(root / n, n, patients=40) for n in hospitals.NAMES]
    listed = ", ".join(f'"{n}"' for n in nodes)
    study = _study(root, tail=f"{ASKED}[sites]\nnodes = [{listed}]\n")
    assert _run("simulate", [str(study), "--out", str(root / "run"), "--json"]) == 0
    assert _run("audit", [str(study), "--canaries", "50", "--patients", "50", "--out", str(root / "run")]) == 0
    return root / "run"


def test_before_a_study_everything_is_said_from_study_and_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = hospitals.hospital(tmp_path / "north", "north", policy="max_epsilon_total = 8.0\nmin_cell = 20")
    study = _study(tmp_path / "studies")
    assert _run("dossier", [str(study), "--node", str(node), "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    value = json.loads((tmp_path / "out" / "dossier.json").read_text())
    check_complete(value)
    assert told["stage"] == value["stage"] == "before"
    text = json.dumps(value)
    assert "patient-level differential privacy, epsilon 4 at delta 1e-06" in text
    assert "Largest patient-level epsilon of all studies: 8.0." in text
    assert "Counts of patients from 1 to 19 are not shown" in text
    assert "removed after 90 days" in text
    assert "which is not signed" in text


def test_after_a_run_everything_is_said_from_book_and_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = run.parent / "north" / "node.toml"
    assert _run("dossier", [str(run), "--node", str(node), "--json"]) == 0
    value = json.loads((run / "dossier.json").read_text())
    check_complete(value)
    assert value["stage"] == "after"
    assert value["guarantee"].startswith("formal patient-level differential privacy: epsilon ")
    body = {k: v for k, v in value.items() if k != "sha256"}
    spelled = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    assert hashlib.sha256(spelled).hexdigest() == value["sha256"]
    assert value["sha256"] in (run / "dossier.html").read_text()
    parts = value["parts"]
    assert len(parts["trail"]["releases_north"]["rows"]) >= 1
    assert value["digests"]["ledger_north"].startswith(f"{ledger_of(Node.read(node)).head.count} lines, ")
    assert "passed" in json.dumps(parts["expert"]["audit"])
    model = next(run.glob("model.*"))
    assert value["digests"][model.name] == hashlib.sha256(model.read_bytes()).hexdigest()
    # an epsilon is never written without its adjacency, its delta and its kind
    for line in (t for p in parts.values() for x in p.values() if isinstance(x, dict) for t in x.get("text", ())):
        for found in re.finditer(r"epsilon \d", line):
            assert "delta" in line[found.start() :], line
            assert "patient-level" in line, line


def test_an_edited_book_gives_no_dossier(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(run.parent, tmp_path / "all")
    node = tmp_path / "all" / "north" / "node.toml"
    book = ledger_of(Node.read(node)).path
    assert book is not None
    book.write_text(book.read_text().replace('"attempt":0', '"attempt":1', 1))
    for mark in book.parent.glob(f"{book.name}.state*"):
        mark.unlink()
    assert _run("dossier", [str(tmp_path / "all" / "run"), "--node", str(node)]) == 4
    assert "was edited" in capsys.readouterr().err


def test_what_the_study_does_not_say_is_missing_and_said_so(tmp_path: Path) -> None:
    made = make_dossier(gather(str(_study(tmp_path, head=""))))
    assert made.missing == ("protocol.question", "art30.purposes")
    assert "Not complete" in render(made)


def test_texts_are_escaped_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = render(make_dossier(gather(str(_study(tmp_path)))))
    assert "Which &lt;drugs&gt; &amp; diagnoses" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)


def test_facts_of_the_institution_are_taken_and_wrong_ones_named(tmp_path: Path) -> None:
    study = _study(tmp_path)
    good = tmp_path / "facts.toml"
    good.write_text('[institution]\ncontroller = "North Hospital, 1 Road"\nlegal_basis = "Art. 9(2)(j)"\n')
    made = make_dossier(gather(str(study), facts=good))
    assert made["art30"]["controller"].text == ("North Hospital, 1 Road",)
    assert "art30.controller" not in made.by_hand
    good.write_text('[institution]\ncontroler = "x"\n')
    with pytest.raises(ConfigError, match="unknown key"):
        gather(str(study), facts=good)


def test_a_decision_in_the_book_is_in_the_trail(tmp_path: Path) -> None:
    """The site's own order: signed, asked here, accepted by a person."""
    pytest.importorskip("nvflare")
    from polyclinic.config import Study
    from polyclinic.node.admission import membership
    from polyclinic.node.admission.offer import Offer
    from polyclinic.node.enrolment import federation as coordination
    from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, private, write_json

    office = CoordinatorFolder(tmp_path / "coordinator")
    invites = coordination.found(office, list(hospitals.NAMES), host="localhost", port=9001, admin_port=9002)
    sites = {}
    for name, invite in zip(hospitals.NAMES, invites):
        sites[name] = SiteFolder.of(hospitals.hospital(tmp_path / name, name, patients=20))
        request, marks = membership.request(sites[name], invite)
        membership.complete(sites[name], coordination.approve(office, request, marks["site"])[0])
    order = coordination.sign_study(office, Study.read(_study(tmp_path / "studies")))
    here = sites["north"]
    write_json(private(here.study(order.digest)) / "order.json", {"order": order.encode()})
    membership.decide(here, order.id, accept=True, by="Dr. Owner")
    ledger_of(Node.read(here.node_path)).write(Accept("f" * 64, "somebody"))  # of another order
    made = make_dossier(gather(order.id, node=here.node_path))
    check_complete(made.to_json())
    assert made.stage == "before"
    assert made.digests["order"] == order.digest
    assert made.digests["coordinator_signature"] == order.signature
    (decision,) = made["trail"]["decisions"].text
    assert "Dr. Owner accepted order" in decision
    assert Offer(order).digest()[:16] in decision
    assert order.keys["east"][:16] in "".join(made["protocol"]["recipients"].text)
    with pytest.raises(ConfigError, match="0 studies are called 'other'"):
        gather("other", node=here.node_path)


def test_neither_study_nor_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a study file"):
        gather(str(tmp_path / "nothing"))
