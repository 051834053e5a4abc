"""The sections of ``node.toml`` about the node as a service: ``[monitor]``, ``[courier]``."""

from __future__ import annotations

from pydantic import Field, field_validator

from polyclinic.config.toml import TomlSection


def address(listen: str) -> tuple[str, int]:
    """Host and port of a ``listen`` setting.

    >>> address("127.0.0.1:9464"), address("[::1]:9464")
    (('127.0.0.1', 9464), ('::1', 9464))
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("not HOST:PORT, e.g. 127.0.0.1:9464")
    return host.strip("[]"), int(port)


class MonitorRule(TomlSection):
    """``[monitor]``: health and metrics for the hospital's own monitoring; off unless it is written."""

    listen: str | None = Field(
        None, description="HOST:PORT of /health and /metrics, e.g. 127.0.0.1:9464; none: no port."
    )
    notify: str | None = Field(
        None,
        min_length=1,
        description="Command that is run, without a shell, on events: the owner is asked, a study failed, the node is down, "
        "the coordinator or the data are away, a certificate ends soon; "
        "one JSON object on its standard input.",
    )
    every: float = Field(15.0, ge=1.0, le=3600.0, description="Seconds between two looks.")

    @field_validator("listen")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is not None:
            address(value)
        return value


class CourierRule(TomlSection):
    """``[courier]``: Studies through folders that people or tools copy (SFTP, rsync, S3, a USB stick). No socket is opened."""

    inbox: str = Field(min_length=1, description="Folder where files for this site appear.")
    outbox: str = Field(min_length=1, description="Folder from which files of this site are taken.")
    every: float = Field(1.0, gt=0, le=3600.0, description="Seconds between two checks of the inbox.")
    resend: float = Field(
        60.0, gt=0, description="Seconds after which a message to another site without a receipt is written again."
    )
