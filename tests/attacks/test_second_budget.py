"""One patient, one budget: other names for the same people, other ways to divide them, other commands are no second one."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.cli import main
from polyclinic.config import Node, Study
from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.owner_rules import ledger_of, policy_of
from polyclinic.privacy.ledger.entries import Evaluate
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study

pytestmark = pytest.mark.attack

NODE = '[site]\nname = "{}"\n[source]\nkind = "files"\nevents = "{}.csv"\n[policy]\nmax_epsilon_total = 1.0\n{}'
DPEM = (
    '[study]\nname = "{}"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n[sites]\nnodes = {}\n{}'
    '[method]\nname = "dpem"\nrank = 2\nrounds = 2\naggregation = "plain"\n[privacy]\nepsilon = {}\n'
)


def node(folder: Path, name: str, units: dict[str, int], policy: str = "") -> Node:
    """A hospital with so many patients in each unit."""
    rows = [
        f"{name}{unit}{p},v{unit}{p},2020-01-01,{kind},{kind[:2]}{(p * (1 + len(kind))) % 4},{unit}"
        for unit, n in units.items()
        for p in range(n)
        for kind in ("drug", "diagnosis")
    ]
    (folder / f"{name}.csv").write_text("patient_id,visit_id,time,kind,code,site\n" + "\n".join(rows) + "\n")
    (folder / f"{name}.toml").write_text(NODE.format(name, name, policy))
    return Node.read(folder / f"{name}.toml")


def run(folder: Path, name: str, nodes: list[str], sites: str, epsilon: float) -> None:
    path = folder / f"{name}.toml"
    path.write_text(DPEM.format(name, [f"{n}.toml" for n in nodes], sites, epsilon))
    study = Study.read(path)
    run_study(study, make(study), RunFolder.create(folder / f"run-{name}"), threads=1)


@pytest.mark.parametrize("policy", ["", "cohorts_disjoint = true\n"])
def test_units_called_otherwise_are_no_second_budget(tmp_path: Path, policy: str) -> None:
    owner = node(tmp_path, "north", {"a": 40, "b": 40, "c": 40}, policy)
    run(tmp_path, "one", ["north"], "split = true\n", 0.8)
    book = ledger_of(owner)
    per_part = {c.cohort for c in book.charges()}
    assert len(per_part) == 3
    assert all(book.epsilon(1e-6, cohort=c) == pytest.approx(0.8, abs=1e-6) for c in per_part), "each pays once"
    node(tmp_path, "north", {"x": 40, "y": 40, "z": 40}, policy)  # the same people, divided by another column
    count = book.count
    with pytest.raises(PolicyRefusal, match="with this study"):
        run(tmp_path, "two", ["north"], "split = true\n", 0.8)
    assert not [e for e in book.entries[count:] if e.charge is not None]
    run(tmp_path, "three", ["north"], "split = true\n", 0.2)


def test_a_study_between_hosts_knows_what_divided_runs_spent(tmp_path: Path) -> None:
    owner = node(tmp_path, "north", {"a": 40, "b": 40})
    run(tmp_path, "one", ["north"], "split = true\n", 0.8)
    with pytest.raises(PolicyRefusal):
        ReleaseGate("north", policy=policy_of(owner), ledger=ledger_of(owner)).admit("two", "dpem", Privacy(0.9), 3, 80)


def test_a_divided_run_knows_what_was_spent_between_hosts(tmp_path: Path) -> None:
    owner = node(tmp_path, "north", {"a": 40, "b": 40})
    door = ReleaseGate("north", policy=policy_of(owner), ledger=ledger_of(owner))
    door.admit("between hosts", "dpem", Privacy(0.8), 3, 80)  # set aside, not spent yet
    with pytest.raises(PolicyRefusal):
        run(tmp_path, "one", ["north"], "split = true\n", 0.8)


def test_hospitals_that_are_joined_pay_from_both_books(tmp_path: Path) -> None:
    owners = [node(tmp_path, n, {"u": k}) for n, k in (("north", 60), ("east", 14), ("west", 14))]
    run(tmp_path, "one", ["north", "east", "west"], "small = 'merge'\nmin_patients = 20\n", 0.8)
    for owner in owners:
        assert ledger_of(owner).epsilon(1e-6) == pytest.approx(0.8, abs=1e-6), owner.name
        assert {c.cohort for c in ledger_of(owner).charges()} == {"all"}
    (tmp_path / "west.toml").write_text(NODE.format("west", "west", 'methods = ["trip"]\n'))
    before = [ledger_of(o).epsilon(1e-6) for o in owners]
    with pytest.raises(PolicyRefusal, match="not among the allowed"):
        run(tmp_path, "two", ["north", "east", "west"], "small = 'merge'\nmin_patients = 20\n", 0.1)
    assert [ledger_of(o).epsilon(1e-6) for o in owners] == before
    held = [r.left(0.0) for o in owners for r in ledger_of(o).tally.open.values()]
    assert max(held, default=0.0) < 1e-12, "and nothing is set aside for a study that did not begin"


def test_an_exact_evaluation_of_a_divided_hospital_is_in_its_owners_book(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    node(tmp_path / "fit", "south", {"a": 60, "b": 60})
    fit = DPEM.replace('"dpem"', '"sumals"').split("[privacy]")[0]
    (tmp_path / "fit" / "s.toml").write_text(fit.format("fit", ["south.toml"], "split = true\n"))
    text = (tmp_path / "fit" / "south.toml").read_text().split("[policy]")[0]
    (tmp_path / "fit" / "south.toml").write_text(text)
    study = Study.read(tmp_path / "fit" / "s.toml")
    folder = RunFolder.create(tmp_path / "run")
    run_study(study, make(study), folder, threads=1)

    owner = node(tmp_path, "north", {"a": 60, "b": 60}, "max_exact = 2\n")
    asked = fit.format("look", ["north.toml"], "split = true\n") + '[evaluate]\nwhat = ["carriers"]\n'
    (tmp_path / "look.toml").write_text(asked)

    def evaluate() -> int:
        with pytest.raises(SystemExit) as done:
            main(["evaluate", str(folder.path), str(tmp_path / "look.toml"), "--json"])
        return int(done.value.code or 0)

    assert evaluate() == 0
    book = ledger_of(owner)
    assert book.charges(), "what left is in the owner's book"
    assert sum(isinstance(e.body, Evaluate) for e in book.entries) == 1, "one evaluation, in two units"
    assert evaluate() == 0
    assert evaluate() != 0, "every evaluation counts, whoever is asked about"


def test_parts_of_one_run_do_not_pay_for_each_other_and_runs_do(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.jsonl")
    owner = policy_of(node(tmp_path, "north", {"a": 20}))

    def door(run: str, part: str, *beside: str) -> ReleaseGate:
        run = run * 32
        return ReleaseGate(
            "n",
            policy=owner,
            ledger=book,
            cohort=f"{run}/{part}",
            beside=[f"{run}/{b}" for b in beside],
            run=f"{run}-{part}",
        )

    door("1", "a", "b").admit("s", "dpem", Privacy(0.9), 3, 50)
    door("1", "b", "a").admit("s", "dpem", Privacy(0.9), 3, 50)
    with pytest.raises(PolicyRefusal):
        door("2", "a", "b").admit("s", "dpem", Privacy(0.9), 3, 50)
    with pytest.raises(PolicyRefusal):
        door("2", "c").admit("s", "dpem", Privacy(0.9), 3, 50)
    with pytest.raises(PolicyRefusal):  # a run that is called like the first, with other parts
        door("1", "x", "y").admit("s", "dpem", Privacy(0.9), 3, 50)
    with pytest.raises(PolicyRefusal):
        ReleaseGate("n", policy=owner, ledger=book).admit("s", "dpem", Privacy(0.9), 3, 50)
    ReleaseGate("n", policy=owner, ledger=book).admit(
        "s", "dpem", Privacy(0.1), 3, 50
    )  # of a run the dearest part counts
