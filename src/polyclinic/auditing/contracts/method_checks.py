"""The contract battery: what every protocol must pass, ours or a stranger's (``pc.check_protocol``)."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

import numpy as np

from polyclinic.auditing.contracts.additive import check_additive
from polyclinic.auditing.contracts.result import Battery, Skip, checks_of, example_sites, run_checks
from polyclinic.auditing.contracts.same_bits import arrays_in, bits_of, near
from polyclinic.errors import ConfigError, PeerLost, PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.models.base import Value
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Message, Method, MethodFacts, seeds
from polyclinic.protocol.loop import RunOptions, Simulation
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site, pooled
from polyclinic.report.contents import RunContents
from polyclinic.report.export.tables import export
from polyclinic.report.html import render
from polyclinic.studies.run_folder import Run, RunFolder
from polyclinic.util.threads import one_thread

Given = Sequence[Site] | None
E = TypeVar("E", bound=PolyclinicError)


class Checks:
    """The parts, each a function that raises AssertionError, or Skip with a reason."""

    def __init__(self, method: Method, sites: Sequence[Site], noise_seed: int = 7) -> None:
        self.method, self.sites, self.noise_seed = method, list(sites), noise_seed

    def fold(self, sites: Given = None, method: Method | None = None, **options: Unpack[RunOptions]) -> Simulation:
        """A run with injected noise, so that it can be repeated."""
        hospitals = list(self.sites if sites is None else sites)
        options.setdefault("doors", {s.name: ReleaseGate(s.name, noise=self.noise(s.name)) for s in hospitals})
        return Simulation(method or self.method, hospitals, **options)

    def noise(self, name: str) -> SimulatedNoise:
        """Noise that repeats: only tests may do this."""
        return SimulatedNoise(seeds(self.noise_seed, "noise", name))

    def run(self, sites: Given = None, method: Method | None = None, **options: Unpack[RunOptions]) -> Outcome:
        return self.fold(sites, method, **options).run()

    def refused(self, kind: type[E], sites: Given = None, **options: Unpack[RunOptions]) -> E | None:
        """The error that a run ends with; None if it ends without."""
        try:
            self.run(sites, **options)
        except kind as e:
            return e
        return None

    @property
    def private(self) -> bool:
        return noisy(self.method.params.privacy)

    def twin_part(self) -> None:
        """without noise, several sites give the model of their pooled patients"""
        if self.method.exact is None:
            raise Skip("the method is not an exact federation of its central twin")
        if self.private:
            raise Skip("noise is on")
        federated, central = self.run(), self.run([pooled(self.sites, "all")])
        equal, gap = near(federated.public, central.public, self.method.exact)
        assert equal, f"differs by {gap:.2e}, promised {self.method.exact:.0e}"

    def order_part(self) -> None:
        """the order of the sites does not change the model"""
        a, b = self.run(), self.run(self.sites[::-1])
        assert bits_of(a.public) == bits_of(b.public), "reversing the list of sites changes the model"

    def seed_part(self) -> None:
        """the same seed gives the same model"""
        a, b = self.run(), self.run()
        assert bits_of(a.public) == bits_of(b.public), "the same seed gives two models"

    def releases_part(self) -> None:
        """only releases leave a site, their shapes do not depend on a patient, and each is in the ledger"""
        fold = self.fold()
        outcome = fold.run()
        charges = [len(p.door.ledger.charges()) for p in fold.parties.values()]
        assert set(charges) == {len(outcome.releases)}, f"{charges} ledger entries for {len(outcome.releases)} releases"
        less = self.run([self.sites[0].take(np.arange(1, self.sites[0].patients)), *self.sites[1:]])
        # by name: how many rounds a method takes may depend on the sums, what a step sends may not
        shapes, shapes_without = ({x.step.name: dict(x.step.shapes) for x in o.releases} for o in (outcome, less))
        for name in sorted(shapes.keys() & shapes_without.keys()):
            assert shapes[name] == shapes_without[name], f"step {name!r}: shapes depend on the patients"

    def budget_part(self) -> None:
        """the ledger adds up to the reported epsilon, and a smaller limit stops the run before the release"""
        if not self.private:
            raise Skip("privacy is off")
        from polyclinic.privacy.policy.policy import Policy

        privacy, fold = self.method.params.privacy, self.fold()
        fold.run()
        epsilons = [p.door.ledger.epsilon(privacy.delta) for p in fold.parties.values()]
        assert max(epsilons) <= privacy.epsilon * 1.001, f"spent {max(epsilons):.4f}, asked for {privacy.epsilon}"
        tight = {s.name: ReleaseGate(s.name, policy=Policy(max_epsilon_total=privacy.epsilon / 2)) for s in self.sites}
        assert self.refused(PolicyRefusal, doors=tight), "a policy of half the budget did not stop the run"

    def additive_part(self) -> None:
        """a contribution with noise is the sum of those of two groups of patients, bit for bit"""
        if not (self.private and self.method.additive):
            raise Skip("privacy is off, or the method does not declare additive contributions")
        check_additive(self.method, self.sites[0], self.fold())

    def resume_part(self) -> None:
        """a run resumed from the checkpoint of any round gives the same model"""
        with one_thread():
            fold = self.fold()
            states = []
            while fold.advance():
                states.append(wire.encode(fold.state(), limit=2**40))
            bits = bits_of(fold.public)
        if self.private:
            raise Skip("noise is on: a resumed run re-sends stored releases (part 12)")
        for at in sorted({0, len(states) // 2, len(states) - 1}):
            resumed = self.fold()
            resumed.restore(wire.decode(states[at], limit=2**40))
            with one_thread():
                while resumed.advance():
                    pass
            assert bits_of(resumed.public) == bits, f"restoring after sum {at + 1} of {len(states)} changes the model"

    def silent_part(self) -> None:
        """without one site the run continues with a quorum, or stops and can be resumed"""
        silent_site = self.sites[-1].name
        error = self.refused(PeerLost, silent=lambda step, name: name == silent_site)
        assert error, "a run that needs all sites went on without one"
        outcome = self.run(silent=lambda step, name: name == silent_site, quorum=len(self.sites) - 1)
        assert outcome.history, "a quorum of the sites did not finish a round"

    def wire_part(self) -> None:
        """every message can be encoded and decoded, and another version is refused"""
        fold = self.fold()
        while fold.advance():
            state = fold.public
            copied = wire.unpack(self.method.Public, wire.decode(wire.encode(wire.pack(state))))
            assert bits_of(copied) == bits_of(state), "the public state does not survive the wire"
        data = wire.encode_message(Message("a", "b", "x", 1, "s", 0, {}), f"{self.method.name}/{self.method.version}")
        try:
            wire.decode_message(data, f"{self.method.name}/{self.method.version + 1}")
        except ProtocolMismatch as e:
            assert self.method.name in str(e)
        else:
            raise AssertionError("a message of another version was accepted")

    def degenerate_part(self) -> None:
        """an empty site and a site with one patient give a finite model or an error with a hint"""
        first = self.sites[0]
        sites = [*self.sites[1:], first.take([0])]
        if self.method.needs == "tensor":
            sites.append(replace(first.take(np.arange(0)), name="empty"))
        try:
            outcome = self.run(sites)
        except PolyclinicError as e:
            assert e.hint or e.faults, f"an error that says nothing to do: {e}"
            return
        for a in arrays_in(wire.pack(outcome.public)):
            assert np.isfinite(a).all(), "not finite"

    def axes_part(self) -> None:
        """the model keeps the codes and their order, and a site with another order is refused"""
        if self.method.needs != "tensor":
            raise Skip("the method reads features, which have no code axes")
        outcome = self.run()
        axes = self.sites[0].counts().axes[1:]
        assert tuple(a.labels for a in outcome.setting.axes) == tuple(a.labels for a in axes)
        tensor = self.sites[0].counts()
        other_order = replace(tensor.axes[1], labels=(axes[0].labels or ())[::-1])
        turned = tensor.with_axes([tensor.axes[0], other_order, *tensor.axes[2:]])
        error = self.refused(ProtocolMismatch, [Site(self.sites[0].name, turned), *self.sites[1:]])
        assert error, "a site with another order of codes was not refused"
        assert self.sites[0].name in str(error)

    def sums_part(self) -> None:
        """the aggregations plain and masked give the same model"""
        if self.private:
            raise Skip("noise shares differ between sums by design")
        if any(r.step.how == "gather" for r in self.run().releases):
            raise Skip("the method gathers contributions, which secure sums exclude")
        equal, gap = near(self.run().public, self.run(adder=by_name("masked")).public, 1e-6)
        assert equal, f"masked differs from plain by {gap:.1e}, promised 1e-06"

    def retry_part(self) -> None:
        """a repeated step sends the same bytes again, and only what the aggregation leaks is charged again"""
        fold = self.fold()
        fold.begin()
        step = self.method.next_step(fold.public)
        assert step is not None
        party = next(iter(fold.parties.values()))
        first = party.contribute(step, fold.public, fold.roster)
        repeat = party.contribute(step, fold.public, fold.roster)
        assert all(np.array_equal(first.arrays[k], repeat.arrays[k]) for k in first.arrays), (
            "another release for one attempt"
        )
        charges = len(party.door.ledger.charges())
        roster = replace(fold.roster, attempt=fold.roster.attempt + 1)
        second_attempt = party.contribute(step, fold.public, roster)
        assert all(np.array_equal(first.arrays[k], second_attempt.arrays[k]) for k in first.arrays), (
            "noise was drawn again for another attempt"
        )
        leaks = bool(fold.adder.leakage(roster, step))
        assert len(party.door.ledger.charges()) == charges + leaks, (
            "the charge of another attempt differs from its leak"
        )

    def return_part(self) -> None:
        """a site that misses a step and returns leaves the model finite"""
        silent_site = self.sites[0].name
        outcome = self.run(
            silent=lambda step, name: name == silent_site and step.round == 2, quorum=len(self.sites) - 1
        )
        for a in arrays_in(wire.pack(outcome.public)):
            assert np.isfinite(a).all(), "not finite"

    def facts_part(self) -> None:
        """the method has a name, and its facts explain every step to the data owner"""
        name = self.method.name
        assert name and name == "".join(name.lower().split()), f"name {name!r} must be lower-case without blanks"
        if self.method.facts == MethodFacts():
            raise Skip("the method has no facts, so its card says that no attack was studied")
        missing = {r.step.name for r in self.run().releases if self.method.facts.meaning(r.step.name) is None}
        assert not missing, f"steps without a meaning in {type(self.method).__name__}.facts.steps: {sorted(missing)}"

    def starts_part(self) -> None:
        """of several starts the same one is kept every time, and the card counts the releases of all"""
        if not isinstance(self.method, Estimator) or "n_starts" not in type(self.method.params).model_fields:
            raise Skip("the method has no n_starts")
        try:
            starts = [self.method.with_params(n_starts=n) for n in (1, 2, 2)]
        except ConfigError:
            raise Skip("the method refuses several starts with these parameters") from None
        single, best, repeat = (m.fit(self.sites) for m in starts)
        assert best.privacy_.releases >= single.privacy_.releases, "the card forgets a start"
        if not self.private:
            differences = _unlike(best.result_, repeat.result_)
            assert not differences, f"two starts, fitted twice: {', '.join(differences)} differ"

    def fitted(self) -> Any:
        """A fitted estimator, with injected noise; Skip where the method makes no value."""
        if not isinstance(self.method, Estimator):
            raise Skip("the method is not an estimator")
        model = copy.copy(self.method)
        model.publish(self.run(method=model))
        if "result_" not in vars(model):
            raise Skip("the method has no model: define learned(origin) to save, load and apply it")
        return model

    def placed(self, model: Any) -> bytes:
        first = self.sites[0]
        return np.asarray(model.transform(first if self.method.needs == "tensor" else first.matrix())).tobytes()

    def fit_part(self) -> None:
        """the fitted model computes the same phenotype scores as the estimator"""
        model = self.fitted()
        value = model.result_
        assert value.card.guarantee == model.privacy_.guarantee, "the value has another card"
        assert self.placed(value) == self.placed(value), "the scores of one patient differ between two calls"
        for name, a in value.arrays().items():
            assert np.isfinite(a).all() or name == "scale", f"{name} is not finite"
            sizes = {s.patients for s in self.sites} | {sum(s.patients for s in self.sites)}
            assert not set(a.shape) & sizes, f"{name} {a.shape} has a row for every patient"

    def save_part(self) -> None:
        """a saved and loaded model computes the same scores, and one model always gives the same file"""
        from polyclinic.models.file import load, unpack

        value = self.fitted().result_
        with tempfile.TemporaryDirectory() as folder:
            path = value.save(Path(folder) / f"model.{value.kind}")
            loaded = load(path)
            assert path.read_bytes() == loaded.to_bytes() == value.to_bytes(), "two files of one model differ"
        assert self.placed(loaded) == self.placed(value), "the loaded model computes other scores"
        data = bytearray(value.to_bytes())
        data[len(data) // 2] ^= 1
        try:
            unpack(bytes(data))
        except PolyclinicError:
            return
        raise AssertionError("a file with a changed bit was read")

    def pickle_part(self) -> None:
        """a pickled estimator keeps its parameters and its model"""
        model = self.fitted()
        unpickled = pickle.loads(pickle.dumps(model))
        assert unpickled.get_params() == model.get_params()
        assert unpickled.result_.to_bytes() == model.result_.to_bytes(), "the model changed on the way"
        assert self.placed(unpickled.result_) == self.placed(model.result_)

    def publish_part(self) -> None:
        """the public state alone, as sent between hosts, gives the model of one process"""
        model = self.fitted()
        outcome = self.run(method=copy.copy(self.method))
        if outcome.releases and any(r.step.how == "gather" for r in outcome.releases):
            raise Skip("the method gathers contributions: it runs in one process")
        public = wire.unpack(self.method.Public, wire.decode(wire.encode(wire.pack(outcome.public))))
        remote = copy.copy(self.method)
        assert isinstance(remote, Estimator)
        remote.publish(replace(outcome, public=public, privates={}, closed={}, lines=()))
        differences = _unlike(model.result_, remote.result_)
        assert not differences, f"{', '.join(differences)} differ without the sites' private states"

    def report_part(self) -> None:
        """the run folder and the report show the model and its guarantee, and name no patient"""
        if not isinstance(self.method, Estimator):
            raise Skip("the method is not an estimator")
        model = copy.copy(self.method)
        model.publish(self.run(method=model))
        contents, page, files = _published(model, sorted(s.name for s in self.sites))
        headline = contents.card.headline
        assert escape(headline, quote=False) in page or headline in page, "the report does not say what is guaranteed"
        assert contents.card.guarantee == model.privacy_.guarantee, "the report has another card than the model"
        value = vars(model).get("result_")
        assert (value is None) == (contents.model is None), "what was learned is not in the folder"
        if value is not None and contents.model is not None:
            assert contents.model.arrays().keys() == value.arrays().keys(), "the folder holds another model"
        patients = self.patients_in([page.encode(), *files])
        assert not patients, f"patients are named in the run folder: {', '.join(patients[:5])}"

    def patients_in(self, texts: list[bytes]) -> list[str]:
        """Names of patients that occur in the texts."""
        names = {x for s in self.sites if s.tensor is not None for x in s.tensor.axes[0].labels or () if len(x) > 6}
        return sorted(x for x in names if any(x.encode() in text for text in texts))


def _unlike(first: Value, second: Value) -> list[str]:
    """Names of the arrays in which two models differ."""
    a, b = first.arrays(), second.arrays()
    differ = [n for n in a if n in b and not np.array_equal(a[n], b[n], equal_nan=True)]
    return differ + sorted(a.keys() ^ b.keys())


def _published(model: Estimator, sites: list[str]) -> tuple[RunContents, str, list[bytes]]:
    """What a run folder with the model says, its report, and all its files."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run")
        study = {"study": {"name": "battery", "seed": 0}, "method": {"name": model.name}}
        folder.write_json(folder.study, {"study": study, "sites": sites})
        Run.write(folder, model, metrics={"rounds": model.traffic_.rounds})
        contents = RunContents.read(folder)
        page = render(contents)
        export(folder)
        return contents, page, [p.read_bytes() for p in folder.path.rglob("*") if p.is_file()]


PARTS: Final = checks_of(
    Checks,
    (
        *("twin", "order", "seed", "releases", "budget", "resume", "silent", "wire", "degenerate", "axes", "sums"),
        *("retry", "return", "facts", "fit", "save", "pickle", "publish", "starts", "additive", "report"),
    ),
)


def check_protocol(
    method: Method, sites: Sequence[Site] | None = None, *, parts: Sequence[int | str] | None = None
) -> Battery:
    """Run the contract checks on a method. Raises AssertionError with all results if a check fails.

    Parameters
    ----------
    method
        An instance of a :class:`~polyclinic.protocol.interfaces.Method`, with few rounds.
    sites
        At least three sites; small generated ones by default.
    parts
        Which parts to run, by name (``"order"``, ``"resume"``, ``"save"``, ``"report"`` ...) or number; all by default.

    Examples
    --------
    >>> from polyclinic import TRIP
    >>> print(check_protocol(TRIP(rank=2, rounds=3), parts=["seed", "report"]))
    contract checks of trip
     3 seed       passed  the same seed gives the same model
    21 report     passed  the run folder and the report show the model and its guarantee, and name no patient
    """
    if not isinstance(method, Method):
        kind = f"the class {method.__name__}" if isinstance(method, type) else f"a {type(method).__name__}"
        raise ConfigError(
            f"check_protocol needs a method, got {kind}", hint="e.g. pc.check_protocol(pc.TRIP(rank=2, rounds=3))"
        )
    checks = Checks(method, sites if sites is not None else example_sites(method.needs))
    return run_checks(method.name, checks, PARTS, parts)
