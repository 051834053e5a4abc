"""At most one list of survivors of a number is ever opened, over all attempts (TRUST A6, A7; ATTACKS 14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

from polyclinic.aggregation.promise import Promise, Promises
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.errors import MessageRefused
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Total, least_threshold

Make = Callable[..., Any]
Signed = tuple[tuple[int, tuple[str, ...]], ...]


class OncePerAttempt(Promises):
    """The rule before: it binds within an attempt only."""

    def may(self, attempt: int, members: tuple[str, ...]) -> bool:
        return all(attempt > p.attempt for p in self.signed)


def histories(rule: type[Promises], lists: list[tuple[str, ...]], me: str, attempts: int) -> set[Signed]:
    """Everything that an honest site may ever have signed, whatever it is asked, in whatever order."""
    found: set[Signed] = set()
    stack: list[Signed] = [()]
    while stack:
        past = stack.pop()
        if past in found:
            continue
        found.add(past)
        for attempt, members in product(range(attempts), (x for x in lists if me in x)):
            promises = rule([Promise(a, x) for a, x in past])
            if (attempt, members) not in past and promises.may(attempt, members):
                promises.sign(Promise(attempt, members))
                stack.append(tuple((p.attempt, p.members) for p in promises.signed))
    return found


def opened(rule: type[Promises], n: int, c: int, attempts: int) -> tuple[int, int]:
    """States reached, and those in which two lists of one number have ``t`` signatures (colluders sign everything)."""
    names = tuple("abcdefg"[:n])
    t = least_threshold(n, c)
    lists = [x for k in range(t, n + 1) for x in combinations(names, k)]
    honest, liars = names[c:], set(names[:c])
    states = bad = 0
    for state in product(*(histories(rule, lists, me, attempts) for me in honest)):
        states += 1
        votes: dict[tuple[int, tuple[str, ...]], int] = {}
        for past in state:
            for entry in past:
                votes[entry] = votes.get(entry, 0) + 1
        bad += len({x for (_, x), v in votes.items() if v + len(liars & set(x)) >= t}) > 1
    return states, bad


@pytest.mark.parametrize(("n", "c", "attempts"), [(3, 1, 3), (4, 1, 3), (5, 1, 2), (5, 2, 2), (6, 3, 2)])
def test_no_two_lists_of_one_number_are_opened(n: int, c: int, attempts: int) -> None:
    states, bad = opened(Promises, n, c, attempts)
    assert states > (10 if n == 3 else 1_000)
    assert bad == 0


def test_the_search_finds_what_a_promise_per_attempt_allows() -> None:
    assert opened(OncePerAttempt, 4, 1, 2)[1] > 0


def test_a_promise_is_kept_before_it_counts() -> None:
    def full(made: tuple[Promise, ...]) -> None:
        raise OSError("disk full")

    mine = Promises(keep=full)
    with pytest.raises(OSError, match="disk full"):
        mine.sign(Promise(0, ("a", "b", "c")))
    assert mine.signed == ()
    stored: list[Any] = []
    mine = Promises(keep=stored.append)
    mine.sign(Promise(0, ("a", "b", "c"), b"k"))
    again = Promises(stored[-1])  # after a restart
    assert again.bound == ("a", "b", "c")
    assert not again.may(1, ("a", "b"))
    with pytest.raises(MessageRefused, match="another list"):
        again.sign(Promise(1, ("a", "b")))
    again.sign(Promise(0, ("a", "b", "c")))  # the same promise again is no new one
    assert len(again.signed) == 1
    again.sign(Promise(2, ("a", "b", "c")))
    assert not again.may(1, ("a", "b", "c"))


@pytest.fixture
def five(network: Make) -> Any:
    """Five sites of which four must survive, with their promises for this number."""
    roster, step, parts = network(5)
    adder = Masked()
    roster = adder.enrol(replace(roster, threshold=4))
    return adder, roster, step, parts, {s: Promises() for s in roster.sites}


def attempt(five: Any, number: int, lost: Callable[[Any], bool], sites: tuple[str, ...] | None = None) -> Any:
    adder, roster, step, parts, promises = five
    roster = replace(roster, attempt=number, sites=sites or roster.sites)
    sides: dict[str, Any] = {s: adder.exchange(s, roster, step, parts[s], promises=promises[s]) for s in roster.sites}
    sides["coordinator"] = adder.exchange("coordinator", roster, step, None)
    queue = [m for s in roster.sites for m in sides[s].start()]
    for _ in range(10):
        while queue:
            m = queue.pop(0)
            if not lost(m):
                try:
                    queue += sides[m.to].receive(m)
                except MessageRefused:
                    continue
        queue += sides["coordinator"].deadline()
    return sides["coordinator"]


def test_a_second_attempt_with_one_site_fewer_is_not_opened(five: Any) -> None:
    """The first sum was opened; the same number over four would give the fifth site's part by subtraction."""
    first = attempt(five, 0, lambda m: False)
    assert isinstance(first.result(), Total)
    assert first.result().members == 5
    again = attempt(five, 1, lambda m: False, five[1].sites[:4])
    assert again.result() == "aborted"
    same = attempt(five, 2, lambda m: False)
    assert same.result().members == 5  # the same list again tells nothing new


def test_a_list_signed_in_an_attempt_that_failed_is_the_only_one_afterwards(five: Any) -> None:
    gone = five[1].sites[0]
    failed = attempt(five, 0, lambda m: m.kind == "signatures")  # everybody signed; nobody unmasked
    assert failed.result() == "aborted"
    without = attempt(five, 1, lambda m: m.sender == gone)
    assert without.result() == "aborted"
    back = attempt(five, 2, lambda m: False)
    assert back.result().members == 5


def test_a_list_of_four_binds_also_when_the_fifth_is_back(five: Any) -> None:
    gone = five[1].sites[0]
    failed = attempt(five, 0, lambda m: (m.sender == gone and m.kind == "masked") or m.kind == "signatures")
    assert failed.result() == "aborted"
    later = attempt(five, 1, lambda m: False)
    assert later.members == five[1].sites[1:]


@pytest.mark.parametrize("how", ["subspace", "cycle"])
def test_where_everybody_is_needed_the_roster_is_the_list(network: Make, how: str) -> None:
    roster, step, parts = network(4)
    adder = by_name(how)
    roster = adder.enrol(roster)
    one, mine = roster.sites[0], Promises()
    adder.exchange(one, roster, step, parts[one], promises=mine)
    fewer = replace(
        roster,
        sites=roster.sites[:3],
        attempt=1,
        threshold=3,
        edges=frozenset(e for e in roster.edges if roster.sites[3] not in e),
    )
    with pytest.raises(MessageRefused, match="another list"):
        adder.exchange(one, fewer, step, parts[one], promises=mine)
    adder.exchange(one, replace(roster, attempt=1), step, parts[one], promises=mine)
