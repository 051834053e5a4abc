"""``node.toml``: where a hospital's data are; it never leaves the hospital."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr

from polyclinic.config.cohort import ExcludeRule
from polyclinic.config.service import CourierRule, MonitorRule
from polyclinic.config.source import Source
from polyclinic.config.toml import NAME, TomlFile, TomlSection
from polyclinic.errors import ConfigError


class SiteIdentity(TomlSection):
    """``[site]``: who this hospital is, and the one folder where everything about it is kept."""

    name: str = Field(pattern=NAME, description="Unique in the federation.")
    folder: str = Field("site", description="Folder of tensors, caches and checkpoints; erasable as a whole.")
    retention: str = Field(
        "90d",
        pattern=r"^(none|keep|\d+[dh])$",
        description="How long results (memberships) of a study stay: 90d, 12h, none, keep.",
    )
    resume_for: str = Field(
        "14d",
        pattern=r"^(none|keep|\d+[dh])$",
        description="How long a stopped study may be resumed. Then its data are deleted.",
    )
    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu", description="Where this hospital computes; results do not depend on it beyond the last digits."
    )
    rehearsal: bool = Field(
        False, description="No real patient is behind this file; allows seeded noise. Never at a hospital."
    )


class Node(TomlFile):
    """Read and check a hospital's node file: where the data are, and what their owner allows. It never leaves the hospital.

    ``Node.read(path)`` reads a file, ``Node.parse(values)`` a mapping. All faults are reported at once. Every key is described
    on the page of both files (docs/reference/files.md).

    Parameters
    ----------
    site
        Name, folder, retention.
    source
        Kind and place of the records.
    exclude
        Patients who declined.
    policy, ledger, keys
        The owner's rules, the privacy ledger, and the keys of the federation. They are kept as written.
    monitor, courier
        Monitoring, and studies by exchanged folders.

    See Also
    --------
    Study : what is asked.
    check : checks a node and its database.

    Examples
    --------
    >>> n = Node.parse({"site": {"name": "north"}, "source": {"kind": "files", "events": "events.csv"}})
    >>> n.name, n.source.events
    ('north', 'events.csv')
    """

    site: SiteIdentity
    source: Source
    exclude: ExcludeRule | None = None
    policy: dict[str, Any] = Field(default_factory=dict)
    ledger: dict[str, object] = Field(default_factory=dict)
    keys: dict[str, Any] = Field(default_factory=dict)
    monitor: MonitorRule | None = None
    courier: CourierRule | None = None
    _skip_faulty: bool = PrivateAttr(default=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "", folder: Path | None = None) -> Self:
        """Check plain values; a study file is refused by name."""
        if "study" in values and "site" not in values:
            hint = "polyclinic simulate STUDY --out DIR runs it, polyclinic check NODE --study STUDY checks it"
            raise ConfigError(f"{where or 'node'}: a study file ([study]), not a node file ([site])", hint=hint)
        return super().parse(values, where=where, folder=folder)

    @property
    def skip_faulty(self) -> bool:
        """Whether a fault in one patient's records leaves out that patient only, as in a study with a formal guarantee."""
        return self._skip_faulty

    def with_source(self, **changed: object) -> Node:
        """Return the same node with other keys of its source."""
        node = self.named(self.name)
        return node.model_copy(update={"source": self.source.model_copy(update=changed)})

    def skipping_faulty(self) -> Node:
        """Return the same node, whose readers leave out a patient instead of refusing the source."""
        node = self.named(self.name)
        node._skip_faulty = True
        return node

    @property
    def name(self) -> str:
        """Name of the hospital."""
        return self.site.name

    @property
    def home(self) -> Path:
        """The one folder where everything about this site is kept."""
        return self.path(self.site.folder)

    def named(self, name: str) -> Node:
        """The same node under another name."""
        node = self.model_copy(update={"site": self.site.model_copy(update={"name": name})})
        node._folder, node._skip_faulty = self._folder, self._skip_faulty
        return node


def secret(value: str, folder: Path) -> str:
    """A value that may be kept elsewhere: ``env:NAME`` or ``file:PATH``; anything else is itself."""
    if value.startswith("env:"):
        name = value[4:]
        if name not in os.environ:
            raise ConfigError(f"environment variable {name} is not set", hint=f"export {name}=... before the command")
        return os.environ[name]
    if value.startswith("file:"):
        path = folder / value[5:]
        if not path.is_file():
            raise ConfigError(f"{path}: no such file", hint="write the secret there, readable by you only")
        return path.read_text(encoding="utf-8").strip()
    return value
