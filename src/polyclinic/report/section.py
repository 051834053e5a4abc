"""A section of the report by somebody else: one file with its template, plugged in by an entry point (``polyclinic.sections``)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment
from markupsafe import Markup

from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean, plugged
from polyclinic.report.contents import RunContents
from polyclinic.table import Table

__all__ = ["Section", "Shown", "Tab", "plugged_sections"]

Shown = Mapping[str, Table | None]


_log: Final = logging.getLogger(__name__)


class _Named(dict[str, Table | None]):
    """The report's tables; a name that is none of them is told which there are."""

    def __missing__(self, name: str) -> None:
        near = did_you_mean(name, self)
        raise ConfigError(
            f"the report has no table {name!r}{'; ' if near else ''}{near}", hint=f"there are: {', '.join(self)}"
        )


@dataclass(frozen=True)
class Section:
    """A tab of the report.

    Parameters
    ----------
    title
        On the tab.
    template
        Jinja: its text, or the path of its file. Values are escaped; scripts and styles of its own do not run, for the page
        allows none but the report's. It may use the classes of the report's style, and ``run``, ``card`` and ``tables``.
    values
        What the template needs, from the run and from the report's tables, in which small counts and codes of few patients are
        already left out: take from those what a reader may see (``docs/reference/tables.md`` has their columns; a table that
        this run does not have is None). None: nothing to show for this run, no tab.
    """

    title: str
    template: str | Path
    values: Callable[[RunContents, Shown], Mapping[str, object] | None]

    def made(self, environment: Environment, run: RunContents, tables: Shown) -> Markup | None:
        """The section's HTML; None: no tab."""
        found = self.values(run, _Named(tables))
        if found is None:
            return None
        given = {"run": run, "card": run.card, "tables": tables}
        if taken := sorted(set(given) & set(found)):
            raise ConfigError(
                f"values named {', '.join(taken)}", hint="the template has these already: call yours otherwise"
            )
        text = self.template.read_text(encoding="utf-8") if isinstance(self.template, Path) else self.template
        return Markup(environment.from_string(text).render(**given, **found))


@dataclass(frozen=True)
class Tab:
    """A section as it stands on the page."""

    id: str
    title: str
    html: Markup


def plugged_sections(environment: Environment, run: RunContents, tables: Shown) -> list[Tab]:
    """The sections that are plugged in, in order of their names; one that fails says so in its place."""
    made = []
    for name, entry in sorted(plugged("polyclinic.sections").items()):
        title = name
        try:
            section = entry.load()
            if not isinstance(section, Section):
                raise ConfigError(
                    f"{entry.value} is a {type(section).__name__}, not a polyclinic.report.section.Section"
                )
            title = section.title
            html = section.made(environment, run, tables)
        except Exception as e:  # another's section may not take the report with it
            _log.warning("section %r (%s) could not be made: %s: %s", name, entry.value, type(e).__name__, e)
            html = Markup("<h2>{}</h2><p>This section ({}) could not be made: {}: {}</p>").format(
                title, entry.value, type(e).__name__, e
            )
        if html is not None:
            made.append(Tab("more-" + re.sub(r"[^a-z0-9]+", "-", name.lower()), title, html))
    return made
