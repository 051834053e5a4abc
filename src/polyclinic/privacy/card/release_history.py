"""Collect the lines of the ledgers that a result depends on. A card has no other source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.accounting.noise_grid import event_of
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.privacy.release import Release
from polyclinic.tensors.axis import Axis

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
    """

    sites: tuple[str, ...]
    of: int
    needed: int

    def __str__(self) -> str:
        signed = f"{len(self.sites)} of {self.of} sites signed"
        if len(self.sites) < self.needed:
            return f"NOT certified: {signed} the end of the run, {self.needed} had to"
        return f"{signed} the end of the run; each sum was agreed on before the next"


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
    overlap: str = ""  # how it is known at how many sites a patient is; empty: assumed

    def with_starts(self, others: Sequence[ReleaseHistory]) -> ReleaseHistory:
        """Of a run that was chosen among several starts: all of them were released."""
        lines, hashes = list(self.lines), list(self.hashes)
        for other in others:
            for n, line in enumerate(other.lines):
                mark = other.hashes[n] if other.hashes else ""
                if not mark or mark not in hashes:
                    lines.append(line)
                    hashes.append(mark)
        starts = (self, *others)
        signed = [set(h.signed) for h in starts if h.signed is not None]

        def sites(name: Literal["lost", "unsigned", "differ"]) -> tuple[str, ...]:
            return tuple(sorted({n for h in starts for n in getattr(h, name)}))

        return replace(
            self,
            lines=tuple(lines),
            hashes=tuple(hashes),
            releases=sum(h.releases for h in starts),
            lost=sites("lost"),
            signed=tuple(sorted(set.intersection(*signed))) if len(signed) == len(starts) else None,
            unsigned=sites("unsigned"),
            differ=sites("differ"),
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
        overlap: str = "",
    ) -> ReleaseHistory:
        """Collect the ledgers' own lines; between hosts what each site signed of its ledger (``books``).

        Of a site that did not sign, from the sums that were taken: every site books a sum by the same rule, so the
        releases tell what stands in each book (the gate and this function share ``event_of``). A sum that a site took
        part in and that its signed book lacks is counted all the same, and the site is named. A line is counted once, by
        its hash. ``sites``: who takes part in a sum that names no members (peers).
        """
        noise = noise or SimulatedNoise.label
        charges = _charges(entries, books)
        lines, hashes = list(charges.values()), list(charges)
        if all(c.step == VOCABULARY for c in lines):
            hashes = []
            lines += [c for r in releases for c in _expected(method, r, noise)]
        if stated := sum(b.elsewhere is not None for b in books):
            overlap = f"stated by {stated} of {max(len(sites), len(books))} owners"
        signed, unsigned, differ = {b.site for b in books}, set[str](), set[str]()
        for site, release in _not_booked(releases, books, sites):
            (differ if site in signed else unsigned).add(site)
            lines += [replace(c, site=site) for c in _expected(method, release, noise)]
        return cls(
            method,
            tuple(lines),
            len(releases),
            tuple(axes),
            asked,
            lost=_lost(releases),
            hashes=(*hashes, *("" for _ in lines[len(hashes) :])) if hashes else (),
            signed=tuple(sorted(signed)) if books else None,
            unsigned=tuple(sorted(unsigned)),
            differ=tuple(sorted(differ)),
            certified=certified,
            overlap=overlap,
        )


def _charges(entries: Iterable[Entry], books: Sequence[StudyExtract]) -> dict[str, Charge]:
    """Hash of a line -> its charge: a line that comes twice is counted once."""
    lines = [*entries, *(e for b in books for e in b.entries())]
    return {e.hash: e.charge for e in lines if e.charge is not None}


def _not_booked(
    releases: Sequence[Release], books: Sequence[StudyExtract], sites: Sequence[str]
) -> Iterator[tuple[str, Release]]:
    """Sites that took part in a sum which no signed ledger has; none in one process, where nothing is signed."""
    booked = {(c.site, c.number) for b in books for c in b.lines}
    for release in releases if books else ():
        for site in release.members or sites:
            if (site, release.number) not in booked:
                yield site, release


def _lost(releases: Sequence[Release]) -> tuple[str, ...]:
    """Sites that were not counted in every exact sum."""
    names = {n for r in releases for n in r.members}
    exact = [r for r in releases if r.members and not r.step.noise_sd > 0]
    return tuple(sorted(n for n in names if any(n not in r.members for r in exact)))


def _expected(method: str, r: Release, noise: str) -> list[Charge]:
    """What a site that took part in every attempt has in its book for one sum."""
    leak: list[Event] = []
    if r.leak:
        leak = [Gaussian(1 / r.leak) if r.leak < float("inf") else Unbounded()]
    first = Charge.of_step(
        r.step,
        event_of(r.step, leak),
        study="",
        method=method,
        attempt=0,
        formal=r.step.formal and r.step.noise_sd > 0,
        number=r.number,
        by=r.by,
        noise=noise if r.step.noise_sd else "none",
        share=r.share,
    )
    return [first, *(replace(first, attempt=k, event=leak[0]) for k in range(1, r.attempt + 1) if leak)]
