"""Count the patients who are at exactly one, two, three ... hospitals.

In one process the identifiers are compared directly (:func:`patient_overlap`). Between parties that show no identifier the ring of the
vocabulary alignment carries identifiers that are keyed with a secret of the hospitals (:func:`overlap_by_ring`). The coordinator then
counts tags and sends the counts, and no hospital learns which of its patients are elsewhere.

| party | learns |
|---|---|
| hospital | the counts, and the padded length of every list |
| coordinator | how many identifiers every subset of the hospitals shares; no identifier |
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyclinic.alignment.ecdh_ring import Handlers, RingCoordinator, RingSite, around
from polyclinic.errors import DataError, MessageRefused
from polyclinic.methods.moments.standardizing import Standardizer
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card
from polyclinic.protocol.interfaces import Message
from polyclinic.records.sites.from_data import given_sites
from polyclinic.records.sites.site import Site

LONGEST = 2**20  # limit: identifiers of one hospital, as they travel


@dataclass(frozen=True)
class Overlap:
    """Patients at exactly k hospitals.

    Attributes
    ----------
    counts
        k -> patients at exactly k hospitals.
    most
        At how many hospitals one patient is at most: ``max_sites_per_patient`` of a study. Noisy counts show no largest number, so
        there it is the number of hospitals.
    card
        The privacy card of noisy counts; None where the counts are exact.
    """

    counts: Mapping[int, float] = field(default_factory=dict)
    most: int = 1
    card: Card | None = None

    def shown(self, least: int = 1) -> dict[int, int | None]:
        """The counts, rounded. Exact ones of 1 to ``least`` - 1 patients are None."""
        return {k: None if 0 < n < least and self.card is None else round(n) for k, n in self.counts.items()}

    def words(self, least: int = 1) -> str:
        """The result in words, for a card. Counts that are not shown count as ``least`` - 1."""
        counts = {k: least - 1 if n is None else n for k, n in self.shown(least).items()}
        share = counts.get(1, 0) / max(sum(counts.values()), 1)
        source = "measured" if self.card is None else "measured with noise"
        hidden = f" (fewer than {least} counted as {least - 1})" if None in self.shown(least).values() else ""
        return f"{source}: {100 * share:.1f} % of patients at one hospital, at most {self.most}{hidden}"


def patient_overlap(sites: Sequence[Site], *, privacy: Privacy | None = None) -> Overlap:
    """Count in this process at how many hospitals patients are, by their identifiers.

    Parameters
    ----------
    sites
        The hospitals. Equal names of patients mean the same person.
    privacy
        Patient-level differential privacy of the counts. ``max_sites_per_patient`` is raised to the number of hospitals.

    Returns
    -------
    Overlap
        ``counts``, ``most`` and the privacy card.

    Examples
    --------
    >>> import polyclinic as pc
    >>> def clinic(name, people):
    ...     coords = [[k, 0] for k in range(len(people))]
    ...     axes = [pc.Axis("patient", people), pc.Axis("diagnosis", ("4280",))]
    ...     return pc.Site(name, pc.SparseTensor(coords, [1.0] * len(people), (len(people), 1), axes))
    >>> found = pc.patient_overlap([clinic("east", ("p1", "p2", "p3")), clinic("west", ("p3", "p4"))])
    >>> dict(found.counts), found.most
    ({1: 3, 2: 1}, 2)
    """
    sites = given_sites(sites)
    names = {s.name: identifiers(s) for s in sites}
    places = Counter(p for listed in names.values() for p in listed)
    exact = Counter(places.values())
    if not isinstance(privacy, Privacy):
        return Overlap(dict(sorted(exact.items())), max(exact, default=1))
    asked = privacy.model_copy(update={"max_sites_per_patient": len(sites)})
    rows = []
    for s in sites:
        shares = np.zeros((len(names[s.name]), len(sites)))  # a patient at k hospitals adds 1/k at each
        number = np.array([places[p] for p in names[s.name]], int)
        shares[np.arange(len(number)), number - 1] = 1.0 / number
        rows.append(Site(s.name, features=shares))
    noisy = Standardizer(privacy=asked, radius=1.0).fit(rows)
    counts = np.maximum(noisy.moments_.n * noisy.mean_, 0.0)
    return Overlap({k + 1: float(n) for k, n in enumerate(counts)}, len(sites), noisy.privacy_)


def identifiers(site: Site) -> list[str]:
    """The names of a hospital's patients, each once."""
    labels = site.counts().axes[0].labels
    if labels is None:
        raise DataError(f"site {site.name!r}: its patients have no names", hint="label the first axis of the tensor")
    return sorted({p.removeprefix(f"{site.name}/") for p in labels})


class OverlapSite(RingSite):
    """A hospital: its list goes round, and the counts are all that it learns."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{"most": LONGEST, **options})
        self.counts: dict[int, int] = {}

    def handlers(self) -> Handlers:
        return {**{k: h for k, h in super().handlers().items() if k != "places"}, "counts": self._counts}

    def _counts(self, sender: str, body: dict[str, Any]) -> list[Message]:
        counts, sites = body["counts"], len(self.roster.sites)
        if not isinstance(counts, np.ndarray) or counts.shape != (sites,) or counts.dtype != np.int64:
            raise MessageRefused(f"counts from {sender!r} are not {sites} numbers of patients")
        self.counts, self._result = {k + 1: int(n) for k, n in enumerate(counts) if n}, "done"
        return []


class OverlapCoordinator(RingCoordinator):
    """Counts tags by the number of hospitals that sent them."""

    most = LONGEST

    def answers(self) -> list[Message]:
        places = Counter(t.tobytes() for tags in self.tags.values() for t in tags)
        counts = np.bincount(list(places.values()), minlength=len(self.roster.sites) + 1)[1:].astype(np.int64)
        return [self.envelope.seal(s, "counts", {"counts": counts}) for s in self.roster.sites]


def overlap_by_ring(
    identifiers: Mapping[str, Sequence[str]], secret: bytes, *, tap: Callable[[Message], None] | None = None
) -> Overlap:
    """Count as :func:`patient_overlap` without showing an identifier: hospital -> identifiers.

    Parameters
    ----------
    secret
        Shared by the hospitals. The coordinator does not have it, so it cannot try identifiers with the help of its own list.

    Examples
    --------
    >>> dict(overlap_by_ring({"a": ["x", "y"], "b": ["y", "z"]}, b"secret").counts)
    {1: 2, 2: 1}
    """
    keyed = {
        s: [hmac.digest(secret, p.encode(), "sha256").hex() for p in sorted(set(x))] for s, x in identifiers.items()
    }
    parties = around(keyed, "patients", (OverlapSite, OverlapCoordinator), tap=tap)
    counts = parties[min(keyed)].counts
    return Overlap(counts, max(counts, default=1))
