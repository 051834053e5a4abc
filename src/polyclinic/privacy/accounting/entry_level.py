"""The papers' entry-level mechanism (DPFact, LocalTF): noise on the feature factors after local passes.

It is HEURISTIC: the sensitivity Delta = 2 tau L eta is that of stochastic gradient descent on one convex block from a
public start (Wu et al. 2017), and the papers' algorithm has neither (ERRATA E0.8; a counterexample is among the tests).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from polyclinic.privacy.accounting.accountant import theorem_4_1
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.release import Step


@dataclass(frozen=True)
class EntryNoise:
    """Noise of one factor matrix in one release.

    Attributes
    ----------
    delta_2
        The claimed sensitivity Delta of one matrix.
    rho
        Its zCDP budget in one release.
    """

    delta_2: float
    rho: float

    @property
    def sd(self) -> float:
        """Standard deviation Delta / sqrt(2 rho). # ERRATA E0.1: 4.1.3 prints the variance Delta^2 / (2 rho) as it"""
        return self.delta_2 / math.sqrt(2 * self.rho)


def entry_noise(
    privacy: Privacy, *, passes: int, learning_rate: float, rounds: int, modes: int = 3
) -> EntryNoise | None:
    """The papers' noise, or None where the gradient has no bound (no ``clip``): then no epsilon exists.

    Parameters
    ----------
    privacy
        What is asked for; ``clip`` is the bound L on the data part of a row's gradient.
    passes
        Passes between two releases, b tau. # ERRATA E1.3: all of them count
    learning_rate
        The largest step eta of these passes.
    rounds
        Releases E, fixed in advance. # ERRATA E0.10
    modes
        Modes N of the tensor, patients included. # ERRATA E0.9

    Examples
    --------
    >>> noise = entry_noise(Privacy(1.2, 1e-4, level="entry", clip=1.0), passes=2, learning_rate=0.01, rounds=20)
    >>> round(noise.delta_2, 3), round(noise.rho, 6), round(noise.sd, 3)
    (0.04, 0.000977, 0.905)
    """
    if privacy.clip is None:
        return None
    rho = theorem_4_1(privacy.epsilon, privacy.delta, epochs=rounds, modes=modes)
    return EntryNoise(2 * passes * privacy.clip * learning_rate, rho)


def entry_step(step: Step, *, privacy: Privacy, passes: int, learning_rate: float, rounds: int) -> Step:
    """A step that releases all feature factors at once, with the papers' noise on each.

    The joint release of N - 1 matrices has sensitivity sqrt(N - 1) Delta and costs (N - 1) rho (ERRATA E0.9), so
    every matrix carries exactly the noise of the papers. Without a clip the step is returned as it is.
    """
    matrices = len([name for name in step.shapes if name not in step.asides])
    noise = entry_noise(privacy, passes=passes, learning_rate=learning_rate, rounds=rounds, modes=matrices + 1)
    if noise is None:
        return step
    joint = math.sqrt(matrices) * noise.delta_2
    return replace(
        step,
        sensitivity=joint,
        multiplier=noise.sd / joint,
        adjacency="entry",
        formal=False,
    )
