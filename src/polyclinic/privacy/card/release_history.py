"""What happened: the lines of the books that a result depends on. A card has no other source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.accounting.noise_grid import event_of
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.privacy.ledger.study_extract import StudyExtract
from polyclinic.privacy.release import Release
from polyclinic.tensors.axis import Axis

__all__ = ["Certified", "ReleaseHistory"]

VOCABULARY = "vocabulary"  # step in which codes are chosen from noisy counts


@dataclass(frozen=True)
class Certified:
    """Who signed the end of a run between hosts: the same sums, in the same order, with the same totals.

    Attributes
    ----------
    sites
        Those that signed.
    of
        How many took part.
    needed
        How many had to sign.
    staleness
        Asynchronous: how many sums a contribution might be old; None: every sum was agreed on before the next.
    """

    sites: tuple[str, ...]
    of: int
    needed: int
    staleness: int | None = None

    def __str__(self) -> str:
        signed = f"{len(self.sites)} of {self.of} sites signed"
        if len(self.sites) < self.needed:
            return f"NOT certified: {signed} the end of the run, {self.needed} had to"
        if self.staleness is None:
            return f"{signed} the end of the run; each sum was agreed on before the next"
        behind = f"a contribution might be {self.staleness} sums old, the order of arrival decided"
        return f"asynchronous ({behind}): agreement was checked at the end only, where {signed}"


@dataclass(frozen=True)
class ReleaseHistory:
    """Everything a card may speak of.

    Attributes
    ----------
    method
        Its name.
    lines
        Charges of every site for this run, all its starts and attempts, and for what it builds on.
    releases
        How many sums were taken.
    axes
        The feature modes.
    asked
        What the study asked for: its delta is used, its epsilon is shown beside the true one.
    lost
        Sites that were not counted in every exact sum.
    """

    method: str
    lines: tuple[Charge, ...]
    releases: int = 0
    axes: tuple[Axis, ...] = ()
    asked: Privacy | None = None
    lost: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()  # of the lines, where they were read from a book
    signed: tuple[str, ...] | None = None  # between hosts: sites that signed what their book says; None: in one process
    unsigned: tuple[str, ...] = ()  # sites that did not: of them what every site books is counted
    differ: tuple[str, ...] = ()  # sites whose signed book lacks a sum that they took part in
    certified: Certified | None = None  # between hosts: who signed the end

    def with_starts(self, others: Sequence[ReleaseHistory]) -> ReleaseHistory:
        """Of a run that was chosen among several starts: all of them were released."""
        lines, hashes = list(self.lines), list(self.hashes)
        count = self.releases
        for other in others:
            count += other.releases
            for n, line in enumerate(other.lines):
                mark = other.hashes[n] if other.hashes else ""
                if not mark or mark not in hashes:
                    lines.append(line)
                    hashes.append(mark)
        every = (self, *others)
        known = [h.signed for h in every if h.signed is not None]
        return replace(
            self,
            lines=tuple(lines),
            hashes=tuple(hashes),
            releases=count,
            lost=tuple(sorted({n for h in every for n in h.lost})),
            signed=tuple(sorted(set(known[0]).intersection(*known))) if len(known) == len(every) else None,
            unsigned=tuple(sorted({n for h in every for n in h.unsigned})),
            differ=tuple(sorted({n for h in every for n in h.differ})),
        )

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that paid, by name."""
        return tuple(sorted({c.site for c in self.lines}))

    @property
    def vocabulary(self) -> bool:
        """Whether the lines that chose the codes are among them."""
        return any(c.step == VOCABULARY for c in self.lines)

    @classmethod
    def of(
        cls,
        method: str,
        releases: Sequence[Release],
        *,
        entries: Iterable[Entry] = (),
        axes: Sequence[Axis] = (),
        asked: Privacy | None = None,
        noise: str = "",
        books: Sequence[StudyExtract] = (),
        sites: Sequence[str] = (),
        certified: Certified | None = None,
    ) -> ReleaseHistory:
        """From the books' own lines; between hosts from what each site signed of its book (``books``).

        Of a site that did not sign, from the sums that were taken: every site books a sum by the same rule, so the
        releases tell what stands in each book (the door and this function share ``event_of``). A sum that a site took
        part in and that its signed book lacks is counted all the same, and the site is named. A line is counted once, by
        its hash. ``sites``: who takes part in a sum that names no members (peers).
        """
        noise = noise or SimulatedNoise.label
        entries = [*entries, *(e for b in books for e in b.entries())]
        own = {e.hash: e for e in entries if e.charge is not None}
        lines = [replace(e.charge, site=e.charge.site or "") for e in own.values() if e.charge is not None]
        hashes = [e.hash for e in own.values()]
        if not any(c.step != VOCABULARY for c in lines):
            hashes = []
            lines += [c for r in releases for c in _expected(method, r, noise)]
        names = {n for r in releases for n in r.members}
        unsigned, differ = set[str](), set[str]()
        if books:
            has = {(c.site, c.number) for b in books for c in b.lines}
            own_names = {c.site for b in books for c in b.lines} | {b.site for b in books}
            for r in releases:
                for n in (x for x in r.members or sites if (x, r.number) not in has):
                    (differ if n in own_names else unsigned).add(n)
                    more = [replace(c, site=n) for c in _expected(method, r, noise)]
                    lines += more
                    hashes += ["" for _ in more]
        exact = [r for r in releases if r.members and not r.step.noise_sd > 0]
        lost = tuple(sorted({n for n in names if any(n not in r.members for r in exact)}))
        signed = tuple(sorted(b.site for b in books)) if books else None
        return cls(
            method,
            tuple(lines),
            len(releases),
            tuple(axes),
            asked,
            lost,
            tuple(hashes),
            signed,
            tuple(sorted(unsigned)),
            tuple(sorted(differ)),
            certified,
        )


def _expected(method: str, r: Release, noise: str) -> list[Charge]:
    """What a site that took part in every attempt has in its book for one sum."""
    leak: list[Event] = []
    if r.leak:
        leak = [Gaussian(1 / r.leak) if r.leak < float("inf") else Unbounded()]
    first = Charge(
        "",
        method,
        r.step.round,
        r.step.name,
        0,
        event_of(r.step, leak),
        r.step.adjacency,
        r.step.formal and r.step.noise_sd > 0,
        number=r.number,
        how=r.step.how,
        counts=r.step.counts,
        shapes=r.step.shapes,
        sensitivity=r.step.sensitivity,
        sites_per_patient=r.step.sites_per_patient,
        by=r.by,
        noise=noise if r.step.noise_sd else "none",
        share=r.share,
    )
    return [first, *(replace(first, attempt=k, event=leak[0]) for k in range(1, r.attempt + 1) if leak)]
