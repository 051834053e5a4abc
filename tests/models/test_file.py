"""A model is one file: the same bytes, the same numbers, no patient, and nothing believed that was changed."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models.conftest import MAKERS, TENSORS, patients_for

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.models import file
from polyclinic.models.base import StoredArrays, Value
from polyclinic.models.origin import Origin
from polyclinic.plugins import plug
from polyclinic.privacy.card.card import Card
from polyclinic.util.json_types import JsonMap
from polyclinic.util.table import Table


def placed(model: Any, patients: Any) -> bytes:
    return np.asarray(model.transform(patients)).tobytes()


def test_every_estimator_places_new_patients_bit_for_bit_after_loading(model: Any, tmp_path: Path) -> None:
    kind = model.result_.kind
    path = model.save(tmp_path / f"m.{kind}")
    back = pc.load(path)
    new = patients_for(model)
    assert type(back) is type(model.result_)
    assert placed(back, new) == placed(model.result_, new) == placed(model, new)
    assert back.to_bytes() == path.read_bytes() == model.result_.to_bytes()  # the same bytes, twice
    assert back.card == model.result_.card
    assert isinstance(back.card, Card)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(back.table()) > 0
    assert kind in repr(back).lower()


@pytest.mark.parametrize("name", ["TRIP", "DPEM", "GaussianMixture", "FederatedPCA"])
def test_two_fits_with_one_seed_give_one_file(name: str) -> None:
    assert MAKERS[name]().result_.to_bytes() == MAKERS[name]().result_.to_bytes()


def test_pickle_keeps_the_model_on_the_same_machine(model: Any) -> None:
    back = pickle.loads(pickle.dumps(model))
    new = patients_for(model)
    assert placed(back, new) == placed(model, new)
    assert back.result_.to_bytes() == model.result_.to_bytes()


def test_arrays_of_a_value_cannot_be_written_to(model: Any) -> None:
    for name, a in model.result_.arrays().items():
        if name not in ("bias", "patients"):
            with pytest.raises(ValueError, match="read-only"):
                a[...] = 0


def test_no_patient_and_no_membership_is_in_a_file() -> None:
    base = example_sites("tensor")
    ids = [[f"pat-{s.name}-{i}-secret" for i in range(s.patients)] for s in base]
    named = [
        pc.Site(s.name, s.counts().with_axes([pc.Axis("patient", tuple(who)), *s.counts().axes[1:]]))
        for s, who in zip(base, ids)
    ]
    for made in (pc.TRIP(rank=3, rounds=3), pc.CPALS(rank=3, rounds=5), pc.DPEM(rank=4, rounds=3)):
        m = made.fit(named)
        data = m.result_.to_bytes()
        assert b"secret" not in data
        sizes = {s.patients for s in base} | {sum(s.patients for s in base)}
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            arrays = {n: np.load(io.BytesIO(z.read(n))) for n in z.namelist() if n.endswith(".npy")}
        assert not any(set(a.shape) & sizes for a in arrays.values())
        for rows in m.memberships_.values():  # no row of memberships, in either byte order, in any array
            for row in rows[np.abs(rows).sum(1) > 0][:20]:
                assert row.tobytes() not in data


def mutated(data: bytes, rng: np.random.Generator, how: int) -> bytes:
    at = int(rng.integers(len(data)))
    if how == 0:
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if how == 1:
        return data[:at]
    if how == 2:
        return data[:at] + rng.bytes(int(rng.integers(1, 40))) + data[at:]
    if how == 3:  # swap two stretches
        b, size = int(rng.integers(len(data))), int(rng.integers(1, 64))
        one, two = data[at : at + size], data[b : b + size]
        out = bytearray(data)
        out[b : b + len(one)], out[at : at + len(two)] = one, two
        return bytes(out)
    with zipfile.ZipFile(
        io.BytesIO(data)
    ) as z:  # a rewritten container with one changed member, checksums of zip right
        members = {n: z.read(n) for n in z.namelist()}
    name = list(members)[int(rng.integers(len(members)))]
    inside = bytearray(members[name])
    inside[int(rng.integers(len(inside)))] ^= 1 << int(rng.integers(8))
    return file._zip({**members, name: bytes(inside)})


def test_a_thousand_mutated_files_are_refused(fitted: Any) -> None:
    rng, tried = np.random.default_rng(0), 0
    for name in ("TRIP", "DPEM", "GaussianMixture", "FederatedPCA", "UnPSL"):
        data = fitted(name).result_.to_bytes()
        for k in range(250):
            changed = mutated(data, rng, k % 5)
            if changed == data:
                continue
            tried += 1
            with pytest.raises(PolyclinicError):
                file.unpack(changed, "x")
    assert tried >= 1000


def rewritten(data: bytes, **changes: Any) -> bytes:
    """The same model with other keys in its header, checksums right."""
    from hashlib import sha256

    with zipfile.ZipFile(io.BytesIO(data)) as z:
        members = {n: z.read(n) for n in z.namelist() if n != "SHA256SUMS"}
    members["model.json"] = json.dumps(json.loads(members["model.json"]) | changes).encode()
    sums = "".join(f"{sha256(members[n]).hexdigest()}  {n}\n" for n in sorted(members))
    return file._zip({**members, "SHA256SUMS": sums.encode()})


def test_a_newer_version_is_refused_by_name_and_an_unknown_key_is_kept(fitted: Any) -> None:
    data = fitted("TRIP").result_.to_bytes()
    with pytest.raises(DataError, match="version 2 of the format, this release reads up to 1"):
        file.unpack(rewritten(data, version=2))
    back = file.unpack(rewritten(data, findings="sha256:abc"))
    assert b'"findings": "sha256:abc"' in back.to_bytes()
    assert file.unpack(back.to_bytes()).origin.further == {"findings": "sha256:abc"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": "oracle"}, "unknown kind"),
        ({"format": "pickle"}, "not a model"),
        ({"version": "1"}, "not a number"),
        ({"arrays": {}}, "differ"),
        ({"axes": []}, "not phenotypes"),
        ({"placing": {"kind": "guess"}}, "unknown way to place"),
        ({"placing": None}, "lacks or misstates"),
        ({"method": "trip"}, "lacks or misstates"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(fitted: Any, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        file.unpack(rewritten(fitted("TRIP").result_.to_bytes(), **changes))


def test_an_array_that_claims_to_be_huge_allocates_nothing() -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**20)})
    with pytest.raises(DataError, match="is not what a model holds"):
        file._array(head.getvalue() + b"\0" * 8, "x")
    pickled = io.BytesIO()
    np.lib.format.write_array(pickled, np.array([{}], object), version=(1, 0), allow_pickle=True)
    with pytest.raises(DataError, match="is not what a model holds"):
        file._array(pickled.getvalue(), "x")


def test_other_files_are_refused(tmp_path: Path, fitted: Any) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        pc.load(tmp_path / "none.phenotypes")
    (tmp_path / "a.phenotypes").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DataError, match="damaged, or not a model"):
        pc.load(tmp_path / "a.phenotypes")
    np.savez(tmp_path / "b.npz", a=np.zeros(3))
    with pytest.raises(DataError, match=r"not in it|not a model"):
        pc.load(tmp_path / "b.npz")
    with pytest.raises(ConfigError, match=r"saved as \*\.phenotypes"):
        fitted("TRIP").save(tmp_path / "m.groups")
    with pytest.raises(ConfigError, match="not fitted yet"):
        pc.TRIP().save(tmp_path / "m.phenotypes")
    assert not list(tmp_path.glob("m.*"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fitted("TRIP").save(tmp_path / "m.phenotypes")
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        fitted("DPEM").save(path)
    assert path.read_bytes() == before


def test_the_model_card_inside_names_privacy_first(fitted: Any) -> None:
    with zipfile.ZipFile(io.BytesIO(fitted("DPEM private").result_.to_bytes())) as z:
        text = z.read("README.md").decode()
    assert text.startswith("---\nlibrary_name: ")
    assert "Privacy: formal patient-level" in text.split("## Use")[0]
    assert "No patient" in text


VERSION_1 = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize(
    "path", sorted([*VERSION_1.glob("v1.*s"), *VERSION_1.glob("v1.similarity")]), ids=lambda p: p.suffix
)
def test_files_of_version_1_are_read_forever(path: Path) -> None:
    """Written once by the first release of the format; never written anew."""
    value = pc.load(path)
    told = json.loads((VERSION_1 / "v1.json").read_text())[value.kind]
    found = value.transform(TENSORS[0] if value.kind == "phenotypes" else example_sites("features")[0])
    np.testing.assert_allclose(found[:3], told, rtol=1e-9, atol=1e-12)
    assert value.card.headline.startswith("none: ")
    assert pc.load(path) == file.unpack(value.to_bytes())  # and it can be written again


def test_a_private_model_of_version_1_is_read_forever() -> None:
    value = pc.load(VERSION_1 / "v1-events.phenotypes")
    assert value.card.guarantee == "formal"
    assert value.card.epsilon == pytest.approx(8.0, rel=1e-3)
    assert value.transform(TENSORS[0]).shape == (TENSORS[0].patients, value.rank)


@dataclass(frozen=True, eq=False)
class Threshold(Value):
    """A kind of model of a package of its own."""

    value: float
    kind: ClassVar[str] = "threshold"
    keys: ClassVar[tuple[str, ...]] = ("value",)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {}

    def described(self) -> dict[str, object]:
        return {"value": self.value}

    @classmethod
    def restored(cls, origin: Origin, described: JsonMap, arrays: StoredArrays) -> Self:
        return cls(origin, float(described["value"]))

    def table(self) -> Table:
        return Table(["value"], [[self.value]])


def test_a_kind_of_models_can_be_plugged_in(fitted: Any, tmp_path: Path) -> None:
    model = Threshold(fitted("TRIP").result_.origin, 0.5)
    path = model.save(tmp_path / "mine.threshold")
    with pytest.raises(DataError, match="unknown kind 'threshold'"):
        pc.load(path)
    with plug("polyclinic.models", "threshold", Threshold):
        assert pc.load(path) == model
