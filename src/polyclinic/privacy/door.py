"""The one door out of a hospital: check, policy, charge on disk, noise, stored bytes; in this order."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from polyclinic.errors import ConfigError, PolicyRefusal, ProtocolMismatch
from polyclinic.privacy.accountant import DiscreteGaussian, Event, Gaussian, Unbounded, gaussian_mu
from polyclinic.privacy.budget import Privacy
from polyclinic.privacy.ledger import Charge, Ledger
from polyclinic.privacy.mechanism import Noise, SimulatedNoise
from polyclinic.privacy.outbox import Outbox, private_folder, read_release, write_release
from polyclinic.privacy.policy import Policy
from polyclinic.privacy.release import Array, Contribution, Step

__all__ = ["Door"]

EXACT: Final = 2.0**53  # whole numbers up to here are exact in float64


class Door:
    """Everything that leaves a site passes here, and nothing passes unpaid.

    Parameters
    ----------
    site
        Name of the site.
    policy
        The owner's rules; None in simulation: everything may leave (and is recorded).
    ledger
        What was spent; None: a new one in memory.
    noise
        Source of noise; None: simulated, and labelled so.
    study
        Name of the study; ``admit`` may set it later.
    store
        Folder where each release is kept as it left, so that a resumed run sends the same bytes; None: in memory.
    outbox
        Folder of releases that wait for the owner (policy ``review``); default ``store / "outbox"``.
    cohort
        The patients that pay; budgets are per cohort.
    wait
        Seconds to wait for the owner's decision before giving up; the run can be resumed.
    run
        A name of this one run of the study.
    resumed
        The run goes on after an interruption, with its store intact. Then a LAST charge whose release was never stored
        (the process died between the two, so nothing left) is not paid twice.

    Examples
    --------
    >>> step = Step(1, "counts", {"x": (2,)}, bound=100.0, sensitivity=1.0, multiplier=10.0)
    >>> door = Door("north")
    >>> out = door.release(step, Contribution({"x": np.array([3.0, 4.0])}), share=1.0)
    >>> round(door.ledger.epsilon(1e-6), 3)
    0.397
    """

    def __init__(
        self,
        site: str,
        *,
        policy: Policy | None = None,
        ledger: Ledger | None = None,
        noise: Noise | None = None,
        study: str = "",
        store: Path | None = None,
        outbox: Path | None = None,
        cohort: str = "all",
        wait: float = 0.0,
        run: str = "",
        resumed: bool = False,
    ) -> None:
        self.site = site
        self.policy = policy
        self.ledger = Ledger(site=site) if ledger is None else ledger
        self.noise: Noise = SimulatedNoise() if noise is None else noise
        self.study = study
        self.method = ""
        self.aggregation = ""
        self.max_sites = 1
        self.cohort = cohort
        self.wait = wait
        self.run, self.resumed = run, resumed
        self._store = store
        folder = outbox if outbox is not None else None if store is None else store / "outbox"
        self.outbox = None if folder is None else Outbox(folder)
        self._kept: dict[str, tuple[int, str, Contribution]] = {}
        self._owed: set[str] = set()  # charged by this process, and never stored (full disk): nothing has left for it
        if policy is not None and policy.review != "none" and self.outbox is None:
            raise ConfigError(
                f"site {site!r}: review = {policy.review!r} needs an outbox", hint="give store= or outbox= a folder"
            )

    def admit(
        self,
        study: str,
        method: str,
        privacy: Privacy | None = None,
        sites: int | Sequence[str] = 1,
        patients: int = 0,
        *,
        aggregation: str = "",
        resume: bool = False,
    ) -> None:
        """Agree to a study, or refuse it with every reason, before anything is computed.

        Parameters
        ----------
        study, method
            Their names.
        privacy
            What the study asks for.
        sites
            The sites that take part, or how many.
        patients
            Number of patients here; it is not quoted in a refusal.
        aggregation
            How contributions are added; written in the ledger.
        resume
            The study was admitted before and goes on: what it spent is not counted twice.
        """
        self.study, self.method, self.aggregation = study, method, aggregation
        self.max_sites = 1 if privacy is None else privacy.max_sites_per_patient
        if self.policy is None:
            return
        faults = self.policy.study_faults(
            self.ledger,
            study=study,
            method=method,
            privacy=privacy,
            sites=sites if isinstance(sites, int) else len(sites),
            patients=patients,
            cohort=self.cohort,
            resume=resume,
        )
        if faults:
            raise PolicyRefusal(
                f"site {self.site!r} does not take part in study {study!r}; nothing was computed",
                faults=faults,
                hint="ask the owner of the data, or change the study",
            )

    def noise_sd(self, step: Step) -> float:
        """Noise that the total carries at least: the step's, for the most sites one patient may appear at."""
        return step.noise_sd / step.sites_per_patient * self._sites_per_patient(step)

    def _sites_per_patient(self, step: Step) -> int:
        return max(self.max_sites, step.sites_per_patient)

    def release(
        self,
        step: Step,
        mine: Contribution,
        *,
        share: float = 1.0,
        attempt: int = 0,
        also: Sequence[Event] = (),
    ) -> Contribution:
        """Let one contribution out.

        Parameters
        ----------
        step
            What is released; public.
        mine
            The site's values, without noise.
        share
            Part of the total's noise variance this site adds: 1 where each contribution is seen, less in a secure sum.
        attempt
            The same attempt sends the stored bytes again and pays nothing; another attempt pays anew.
        also
            What the sum itself leaks, charged with the release (masks of finite variance under ``subspace``).

        Returns
        -------
        Contribution
            The values with noise: what leaves.
        """
        mine.check(step, self.site)
        if not 0 < share <= 1:
            raise ConfigError(f"share {share!r} of the noise is outside 0..1")
        if step.how == "gather":
            share = 1.0  # seen by itself, so it must carry all the noise itself
        id = self._id(step, attempt)
        digest = _digest(step, share, mine)
        stored = self._load(id, digest)
        if stored is not None:
            return self._reviewed(id, step, stored)

        sd, grid = self._scale(step)
        self._check_grid(step, mine)
        event = _together([self._event(step, share, sd, grid), *also])
        proven = step.formal and step.adjacency == "patient" and not isinstance(event, Unbounded)
        paid = self._paid(id, attempt, event)
        if self.policy is not None and not paid:
            faults = self.policy.step_faults(
                self.ledger, step, [event], study=self.study, cohort=self.cohort, proven=proven
            )
            if faults:
                raise PolicyRefusal(
                    f"site {self.site!r}, study {self.study!r}, round {step.round}, step {step.name!r}: not released",
                    faults=faults,
                    hint="ask the owner of the data, or ask for less",
                )
        if not paid:
            self._charge(step, attempt, event, sd=sd, grid=grid, share=share, id=id, masked=bool(also))
        noisy = self._noisy(mine, math.sqrt(share) * sd, grid)
        self._keep(id, step, digest, noisy)
        self._owed.discard(id)
        return self._reviewed(id, step, noisy)

    def _paid(self, id: str, attempt: int, event: Event) -> bool:
        """Whether a crash or a full disk came between this very charge and its release: it is paid, and nothing has left."""
        known = id in self._owed or (self.run and self.resumed)
        if not known or self._store is None or (self._store / f"{id}.npz").exists():
            return False
        last = self.ledger.charges(study=self.study)[-1:]
        return any(c.details.get("release") == id and c.attempt == attempt and c.event == event for c in last)

    def _charge(
        self,
        step: Step,
        attempt: int,
        event: Event,
        *,
        sd: float,
        grid: float | None,
        share: float,
        id: str,
        masked: bool,
    ) -> None:
        details = {
            "aggregation": self.aggregation,
            "how": step.how,
            "noise": self.noise.label if sd else "none",
            "sensitivity": step.sensitivity,
            "sites_per_patient": self._sites_per_patient(step),
            "sd_total": sd,
            "share": share,
            "grid": grid,
            "scalars": step.size,
            "release": id,
            "versions": _versions(),
            **({"includes": "the masks' finite variance"} if masked else {}),
        }
        self._owed.add(id)
        self.ledger.charge(
            Charge(
                self.study,
                self.method,
                step.round,
                step.name,
                attempt,
                event,
                step.adjacency,
                step.formal and not isinstance(event, Unbounded),
                self.cohort,
                details,
            )
        )

    # ---- noise

    def _scale(self, step: Step) -> tuple[float, float | None]:
        """Noise of the total, and the grid it is drawn on."""
        sd = self.noise_sd(step)
        if not sd:
            return 0.0, step.grid
        grid = step.grid
        if grid is None:
            # No grid announced: values are rounded onto one of our own. Rounding moves a sum by at most half a step
            # in each coordinate, in both worlds; the noise grows by that (less than 2^-16 of itself).
            assert step.sensitivity is not None
            assert step.multiplier is not None
            grid = 2.0 ** math.floor(math.log2(step.sensitivity * 2.0**-16 / math.sqrt(max(step.size, 1))))
            sd = step.multiplier * self._sites_per_patient(step) * (step.sensitivity + grid * math.sqrt(step.size))
        if step.bound / grid + 12 * sd / grid > EXACT:
            raise ConfigError(
                f"step {step.name!r}: bound {step.bound:g} is too large for a grid of {grid:g}",
                hint="announce a smaller bound or a coarser grid",
            )
        return sd, grid

    def _check_grid(self, step: Step, mine: Contribution) -> None:
        if step.grid is None:
            return
        off = [k for k, v in mine.arrays.items() if (np.rint(v / step.grid) * step.grid != v).any()]
        if off:
            raise ProtocolMismatch(
                f"site {self.site!r}, round {step.round}, step {step.name!r}: contribution refused",
                faults=[f"{k}: not whole multiples of the announced grid {step.grid:g}" for k in off],
            )

    def _event(self, step: Step, share: float, sd: float, grid: float | None) -> Event:
        """The charge: the noise that the total is guaranteed to carry, not what it may carry by luck."""
        if step.sensitivity is None or step.multiplier is None or not sd or grid is None:
            return Unbounded()
        if self.noise.exact:
            return DiscreteGaussian(step.multiplier, math.sqrt(share) * sd / grid)
        return Gaussian(step.multiplier)

    def _noisy(self, mine: Contribution, sd: float, grid: float | None) -> Contribution:
        if not sd or grid is None:
            return mine
        arrays: dict[str, Array] = {}
        for name, values in mine.arrays.items():
            units = np.rint(np.asarray(values, np.float64) / grid).astype(np.int64)
            arrays[name] = (units + self.noise.integers(sd / grid, units.shape)).astype(np.float64) * grid
        return Contribution(arrays, mine.weight)

    # ---- stored bytes and review

    def _id(self, step: Step, attempt: int) -> str:
        words = f"{self.study}\0{self.method}\0{step.round}\0{step.name}\0{attempt}\0{self.site}"
        words += f"\0{self.run}" if self.run else ""
        return f"r{step.round:04d}-{attempt}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"

    def _load(self, id: str, digest: str) -> Contribution | None:
        """What was sent under this name, if it was the same values; other values are another release and pay anew."""
        if self._store is None:
            kept = self._kept.get(id)
            return kept[2] if kept is not None and kept[1] == digest else None
        file = self._store / f"{id}.npz"
        if not file.exists():
            return None
        release, facts = read_release(file)
        return release if facts["digest"] == digest else None

    def _keep(self, id: str, step: Step, digest: str, release: Contribution) -> None:
        if self._store is None:
            self._kept = {k: v for k, v in self._kept.items() if v[0] >= step.round - 1}
            self._kept[id] = (step.round, digest, release)
            return
        private_folder(self._store)
        write_release(self._store / f"{id}.npz", release, {"digest": digest, "round": step.round, "step": step.name})

    def _reviewed(self, id: str, step: Step, release: Contribution) -> Contribution:
        """Wait for the owner where the policy asks for it."""
        if self.policy is None or self.policy.review == "none" or self.outbox is None:
            return release
        if self.policy.review == "first" and any(
            p.state == "approved" and p.facts.get("study") == self.study for p in self.outbox.all()
        ):
            return release
        ticket = f"{id}-{_digest(step, 1.0, release)[:8]}"  # approval is of these values, not of a name
        facts = {
            "study": self.study,
            "method": self.method,
            "site": self.site,
            "round": step.round,
            "step": step.name,
            "shapes": {k: list(v) for k, v in step.shapes.items()},
            "how": step.how,
            "noise_sd": self.noise_sd(step),
        }
        end = time.monotonic() + self.wait
        state = self.outbox.put(ticket, release, facts).state
        while state == "pending" and time.monotonic() < end:
            time.sleep(min(0.2, self.wait))
            state = self.outbox.get(ticket).state
        if state == "approved":
            return release
        verb = "was rejected by the owner" if state == "rejected" else "waits for the owner's approval"
        raise PolicyRefusal(
            f"site {self.site!r}, study {self.study!r}, round {step.round}, step {step.name!r}: the release {verb}",
            faults=[f"release {ticket}"],
            hint=""
            if state == "rejected"
            else "read and approve it with `polyclinic ledger approve`, then resume the run",
        )


def _together(events: Sequence[Event]) -> Event:
    """One event as costly as several Gaussian ones; without a bound if one has none."""
    if len(events) == 1:
        return events[0]
    mu = gaussian_mu(events)
    return Unbounded() if mu is None or not 0 < mu < math.inf else Gaussian(1 / mu)


def _digest(step: Step, share: float, mine: Contribution) -> str:
    """A name for one release: its step, its share and its values. Stays at the site."""
    words: dict[str, Any] = {**vars(step), "shapes": {k: list(v) for k, v in sorted(step.shapes.items())}}
    h = hashlib.sha256(json.dumps([words, share, mine.weight], sort_keys=True).encode())
    for name in sorted(mine.arrays):
        h.update(name.encode() + b"\0")
        h.update(np.asarray(mine.arrays[name], np.float64).tobytes())
    return h.hexdigest()


@cache
def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("polyclinic", "numpy", "dp-accounting", "opendp"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
