"""What FLARE does with the frames of a message, under our settings: how long one may be, and that none is written out in words."""

from __future__ import annotations


def limit_frames() -> None:
    """FLARE believes a length of up to 2 GB in front of a frame and allocates it (measured: 2.3 GB after 200 garbage
    connections to a loopback port). Ours are never longer than one message. Must come before FLARE's drivers are imported."""
    from nvflare.fuel.f3.drivers import net_utils

    from polyclinic.node.enrolment.startup_files import FRAME

    net_utils.MAX_FRAME_SIZE = FRAME
    net_utils.MAX_PAYLOAD_SIZE = net_utils.MAX_FRAME_SIZE - 16 - net_utils.MAX_HEADER_SIZE


def unspoken() -> None:
    """A request's bytes are named by their number, not written out.

    FLARE makes a sentence for its debug log of every request that it receives, with all its bytes in it, also where that log is
    off (``Adapter.call``): about 90 ms of processor for 10 MB, more than anything else that a site does with a large total. And
    what a site receives has no place in a log.
    """
    from nvflare.fuel.utils import buffer_list

    buffer_list.ConsumableBufferList.__repr__ = _named


def _named(buffers: list[bytes]) -> str:
    return f"<{sum(map(len, buffers)):,} bytes>"
