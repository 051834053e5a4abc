"""What is public about sites between hosts: whether it can be read, which of them fit together, and whose codes are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ProtocolMismatch
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.protocol.schema import common, schema_of, shown
from polyclinic.tensors.axis import Axis, public_axis

LIST = "code,name\nB01,heparin\nN02,paracetamol\n"
PUBLIC = public_axis("drug", LIST, "drugs.csv")
OWN = Axis("diagnosis", ("I10", "I50", "J18"), vocabulary="data")


def order(*sites: str) -> StudyOrder:
    study = {"tensor": {"modes": ["drug", "diagnosis"], "vocabulary": {"drug": "drugs.csv"}}, "method": {}}
    return StudyOrder("icu", study, {"drugs.csv": LIST}, dict.fromkeys([*sites, COORDINATOR], "00"), 1, 60.0)


def said(own: Axis = OWN, **other: object) -> dict[str, Any]:
    """What a site says of itself; of a public list it says its name alone."""
    drug = {**PUBLIC.to_json(), "labels": ["?"], "names": None}
    digests = [PUBLIC.digest(), own.digest()]
    return {
        "shape": [2, 3],
        "axes": [drug, own.to_json()],
        "digests": digests,
        "alignment": "ring",
        **other,
    }


@pytest.mark.parametrize("shape", [[-1, 3], [2.0, 3], [True, 3], [2, None], (2, 3)])
def test_sizes_are_whole_and_not_below_nothing(shape: object) -> None:
    assert shown(said(shape=[0, 3])) and shown(said())
    assert not shown(said(shape=shape))


def test_one_site_alone_is_a_setting_and_public_codes_are_the_orders() -> None:
    made = common(order("north"), {"north": said()})
    assert made == {
        "shape": [2, 3],
        "alignment": "ring",
        "axes": [PUBLIC.to_json(), OWN.to_json()],
        "sites": ["north"],
    }


def test_most_sites_are_enough_and_the_others_take_no_part() -> None:
    other = said(Axis("diagnosis", ("I10", "I50", "J20"), vocabulary="data"))
    lied = said(digests=[PUBLIC.digest(), "another"])
    for stranger in (other, lied):
        known = {"east": stranger, "north": said(), "south": said()}
        made = common(order(*known), known)
        assert made["sites"] == ["north", "south"] and made["axes"] == [PUBLIC.to_json(), OWN.to_json()]
        with pytest.raises(ProtocolMismatch, match=r"'east' has another vocabulary, .* than 'north'"):
            common(order(*known, "west", "isle"), {**known, "west": lied, "isle": lied})
    with pytest.raises(ProtocolMismatch, match="do not fit together"):
        common(order("east", "north"), {"east": lied, "north": lied})


def test_columns_without_names_fit_together_where_all_have_as_many() -> None:
    def site(name: str, columns: int) -> pc.Site:
        return pc.Site(name, features=np.zeros((4, columns)))

    method = pc.FederatedPCA(n_components=1)
    assert schema_of(method, [site("north", 2), site("south", 2)]).shape == (2,)
    with pytest.raises(ProtocolMismatch, match=r"'north' has 2 features\n.*'south' has 3 features"):
        schema_of(method, [site("north", 2), site("south", 3)])
