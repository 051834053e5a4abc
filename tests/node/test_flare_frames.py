"""What FLARE says of a request that a site or a coordinator receives: how many bytes, never which."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from polyclinic.node.flare import controller, executor


@pytest.mark.parametrize("kind", [executor.StudyExecutor, controller.StudyController], ids=["site", "coordinator"])
def test_bytes_of_a_request_are_not_written_out(
    kind: type, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumableBufferList, "__repr__", list.__repr__)  # as FLARE has it; put back afterwards
    kind("an order")
    received = ConsumableBufferList([b"letters of 30", b" bytes in two parts"])
    cell = SimpleNamespace(
        decode_pass_through_channels=(), decode_pass_through_topics=(), get_fobs_context=lambda props: {}
    )
    answered: list[bytes] = []

    def callback(request: object) -> object:
        answered.append(b"".join(received))
        return new_cell_message({}, None)

    with caplog.at_level(logging.DEBUG):
        Adapter(callback, SimpleNamespace(fqcn="site"), cell).call(SimpleNamespace(headers={}, result=lambda: received))
    assert answered == [b"letters of 30 bytes in two parts"]
    said = [r.getMessage() for r in caplog.records if "incoming data" in r.getMessage()]
    assert said and all("32 bytes" in s and "letters" not in s for s in said)
