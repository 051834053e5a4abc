"""The canonical form under every signature: it has the same bytes in every version, and for every type that means the same."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from polyclinic.protocol.wire.sealed import digest

BODY: dict[str, Any] = {
    "n": None,
    "b": [True, False],
    "i": [0, -5, 2**70],
    "t": ("x", "\u00fc"),
    "y": b"ab",
    "f": 1.5,
    "a": np.arange(6).reshape(2, 3),
    "e": np.zeros(0, np.uint8),
}


def test_a_body_has_the_digest_that_it_always_had() -> None:
    assert digest(BODY).hex() == "595cdaa5741962aa1475ff379b17fb7d45210554d6bf3dff145c970d92a4ec52"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float64(1.5), 1.5),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (MappingProxyType({"a": 2}), {"a": 2}),
        ((1, 2), [1, 2]),
        (np.arange(3, dtype=">i8"), np.arange(3, dtype="<i8")),
        (np.arange(6)[::2], np.array([0, 2, 4])),
        (np.str_("x"), "x"),
    ],
)
def test_what_means_the_same_has_the_same_digest(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


def test_what_differs_has_another_digest() -> None:
    unlike = [
        None,
        True,
        False,
        1,
        0,
        "1",
        b"1",
        1.0,
        [1],
        [[1]],
        {"1": 1},
        np.array([1]),
        np.array([[1]]),
        np.array([1.0]),
        [],
        {},
        "",
    ]
    assert len({digest(v) for v in unlike}) == len(unlike)


@pytest.mark.parametrize("bad", [object(), {1: 2}, np.array(["a"]), 1j, {3}, [[[[[[[[[[1]]]]]]]]]]])
def test_a_body_that_has_no_form_is_refused(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        digest(bad)
