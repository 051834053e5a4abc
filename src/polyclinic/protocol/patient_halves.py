"""Two halves of the patients, drawn at the site by a keyed hash: the same everywhere, known to nobody else."""

from __future__ import annotations

import hmac

import numpy as np
from numpy.typing import NDArray

from polyclinic.records.sites.record_ids import record_names
from polyclinic.records.sites.site import Site


def names_of(site: Site) -> list[str]:
    """What patients are called in the hash: their id at the source; without ids the site's name and the record itself.

    A name is the patient's own: by the row's number everybody after a patient who leaves would change the half, and a paid sum
    would move by more than the one patient it is paid for.

    A simulation calls patients ``site/id`` so that ids of two hospitals never meet; the hash takes the id alone, so that a
    patient of two hospitals falls into one half, and a run between hosts draws the halves of the simulation.
    """
    labels = None if site.tensor is None else site.tensor.axes[0].labels
    if labels is None:
        return [f"{site.name}#{record}" for record in record_names(site)]
    start = f"{site.name}/"
    return [label.removeprefix(start) for label in labels]


def halves_of(site: Site, key: str, halving: int = 0) -> NDArray[np.int64]:
    """(patients,) 0 or 1: the last bit of HMAC-SHA256(key, halving | patient).

    Parameters
    ----------
    key
        Public, fixed before the data are read (``[study] key``); another key is another halving.
    halving
        Which of several halvings.

    Examples
    --------
    >>> site = Site("north", features=[[0.0]] * 6)
    >>> halves_of(site, "2026-11-hf").tolist()
    [1, 0, 0, 0, 1, 1]
    """
    secret = key.encode()
    bits = [hmac.digest(secret, f"{halving}|{name}".encode(), "sha256")[-1] & 1 for name in names_of(site)]
    return np.array(bits, np.int64)


class Taken:
    """A part of a site, made once for each site and kept as long as the site is there."""

    def __init__(self, key: str, halving: int, half: int) -> None:
        from weakref import WeakKeyDictionary

        self.key, self.halving, self.half = key, halving, half
        self._kept: WeakKeyDictionary[Site, Site] = WeakKeyDictionary()

    def __call__(self, site: Site) -> Site:
        part = self._kept.get(site)
        if part is None:
            part = site.take(halves_of(site, self.key, self.halving) == self.half)
            self._kept[site] = part
        return part
