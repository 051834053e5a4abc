"""link: do patients whom nobody looked at, and who have a phenotype's codes of one mode, also have its codes of the other?

For a column with parts f and g, on patients that did not make it: a = f'x / |x|, b = g'y / |y| with x, y the 0/1 codes of two
modes; rho = partial correlation of a and b given 1, log and squared log of the two numbers of codes; z = rho sqrt(N - 7). The
sum is the 7 x 7 moment matrix of (1, logs, squares, a, b): 28 numbers a phenotype and pair of modes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.federation.protocol import Contribution, Setting, Step, Total
from polyclinic.findings.act import PATIENTS, Act, ActParams, Nothing
from polyclinic.findings.completion import _codes_seen
from polyclinic.findings.placed import CARRIES
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.tensors.site import Site

__all__ = ["Link", "LinkPublic", "partial"]

Array = NDArray[np.float64]
WIDTH: Final = 7
UPPER: Final = np.triu_indices(WIDTH)


class LinkParams(ActParams):
    """Parameters of link."""

    half: int | None = Field(None, description="The half that is judged (the model saw the other); None: everybody.")


@dataclass(frozen=True)
class LinkPublic:
    """Moments (pairs of modes, R, 28) and in how many hospitals at least 11 patients carry each phenotype."""

    done: bool
    moments: Array
    carried: Array


class Link(Act):
    """Whether a phenotype's modes belong together, among patients that did not make it."""

    name = "link"
    facts = MethodFacts(
        steps={
            "link": StepMeaning(
                "how scores of two kinds of codes go together, summed over patients", "little of one patient"
            )
        }
    )
    exact = None  # whether a hospital carries a phenotype is a fact of hospitals
    Params = LinkParams
    Public = LinkPublic
    params: LinkParams

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of feature modes."""
        return list(combinations(range(len(self.placer.factors)), 2))

    def begin(self, setting: Setting, rng: np.random.Generator) -> LinkPublic:
        r = self.placer.rank
        return LinkPublic(not self.pairs, np.zeros((len(self.pairs), r, len(UPPER[0]))), np.zeros(r))

    def next(self, public: LinkPublic) -> Step | None:
        if public.done:
            return None
        return Step(
            1,
            "link",
            {"moments": public.moments.shape, "carried": public.carried.shape},
            bound=2.0**10 * PATIENTS,
            counts=False,
        )

    def combine(self, step: Step, public: LinkPublic, total: Total) -> LinkPublic:
        return replace(public, done=True, moments=total.arrays["moments"], carried=np.rint(total.arrays["carried"]))

    def contribute(
        self, step: Step, site: Site, private: Nothing, public: LinkPublic, rng: np.random.Generator
    ) -> tuple[Nothing, Contribution]:
        use = np.ones(site.patients, bool) if self.params.half is None else self.half(site) == self.params.half
        has = _codes_seen(site.counts())
        size = [np.asarray(h.sum(1)).ravel() for h in has]
        part = [
            (h @ np.abs(f)) / np.sqrt(np.maximum(n, 1.0))[:, None] for h, f, n in zip(has, self.placer.factors, size)
        ]
        out = np.zeros(public.moments.shape)
        for k, (i, j) in enumerate(self.pairs):
            there = use & (size[i] > 0) & (size[j] > 0)
            logs = [np.log(size[m][there]) for m in (i, j)]
            common = np.column_stack([np.ones(int(there.sum())), *logs, *(x**2 for x in logs)])
            for r in range(self.placer.rank):
                rows = np.column_stack([common, part[i][there, r], part[j][there, r]])
                out[k, r] = (rows.T @ rows)[UPPER]
        carried = (self.placer.shares(site) >= CARRIES).sum(0) >= 11
        return private, Contribution({"moments": out, "carried": carried.astype(np.float64)})

    def rho(self, public: LinkPublic) -> tuple[Array, Array]:
        """(R,) partial correlation and z; with more than two modes the weakest pair."""
        both = np.array([[partial(m) for m in row] for row in public.moments])  # (pairs, R, 2)
        if not len(both):
            return np.zeros(self.placer.rank), np.zeros(self.placer.rank)
        weakest = both[:, :, 1].argmin(0)
        at = both[weakest, np.arange(self.placer.rank)]
        return at[:, 0], at[:, 1]


def partial(moments: Array) -> tuple[float, float]:
    """rho and z of the last two of seven columns given the first five, from the upper triangle of their moment matrix.

    >>> rng = np.random.default_rng(0)
    >>> x = np.column_stack([np.ones(500), rng.standard_normal((500, 4))])
    >>> a = x @ np.arange(5) + rng.standard_normal(500)
    >>> rows = np.column_stack([x, a, 0.5 * a + rng.standard_normal(500)])
    >>> rho, z = partial((rows.T @ rows)[UPPER])
    >>> 0.2 < rho < 0.6, z > 3
    (True, True)
    """
    full = np.zeros((WIDTH, WIDTH))
    full[UPPER] = moments
    full = full + np.triu(full, 1).T
    n = float(full[0, 0])
    if n <= WIDTH + 1:
        return 0.0, 0.0
    c = slice(0, WIDTH - 2)
    left: Any = full[WIDTH - 2 :, c]
    rest = full[WIDTH - 2 :, WIDTH - 2 :] - left @ np.linalg.pinv(full[c, c], hermitian=True) @ left.T
    size = np.sqrt(np.maximum(np.diag(rest), 0.0))
    scale = np.sqrt(np.maximum(np.diag(full)[WIDTH - 2 :], 1e-300))
    if (size <= 1e-6 * scale).any():
        return 0.0, 0.0
    rho = float(np.clip(rest[0, 1] / (size[0] * size[1]), -1.0, 1.0))
    return rho, rho * float(np.sqrt(n - WIDTH))
