"""A section of the report by somebody else: one file with its template, plugged in by an entry point (``polyclinic.sections``)."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jinja2 import Environment, Template, TemplateSyntaxError
from markupsafe import Markup

from polyclinic.errors import ConfigError
from polyclinic.plugins import Plugin, did_you_mean, plugged
from polyclinic.report.contents import RunContents
from polyclinic.util.table import Table

Shown = Mapping[str, Table | None]


_log: Final = logging.getLogger(__name__)


def log_failure(what: str) -> None:
    """One line of the log for a section that could not be made."""
    _log.warning("%s", what)


class _Named(dict[str, Table | None]):
    """The report's tables; a name that is none of them is told which there are."""

    def __missing__(self, name: str) -> None:
        hint = did_you_mean(name, self)
        raise ConfigError(
            f"the report has no table {name!r}{'; ' if hint else ''}{hint}", hint=f"there are: {', '.join(self)}"
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
        values = self.values(run, _Named(tables))
        if values is None:
            return None
        names = {"run": run, "card": run.card, "tables": tables}
        if conflicts := sorted(set(names) & set(values)):
            raise ConfigError(
                f"values named {', '.join(conflicts)}", hint="the template has these already: call yours otherwise"
            )
        text = self.template.read_text(encoding="utf-8") if isinstance(self.template, Path) else self.template
        code = environment.compile(text, filename=self.file)  # with its name: a fault in it is told with file and line
        return Markup(Template.from_code(environment, code, environment.make_globals(None)).render(**names, **values))

    @property
    def file(self) -> str:
        """Where the template is."""
        return str(self.template) if isinstance(self.template, Path) else f"<template of {self.title}>"

    def at(self, error: Exception) -> str:
        """File and line of the template where it failed; empty where it was not the template."""
        line = error.lineno if isinstance(error, TemplateSyntaxError) else None
        frame = error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == self.file:
                line = frame.tb_lineno
            frame = frame.tb_next
        return "" if line is None else f"{self.file}, line {line}"


@dataclass(frozen=True)
class Tab:
    """A section as it stands on the page."""

    id: str
    title: str
    html: Markup
    name: str = ""
    package: str = ""


def plugged_sections(
    environment: Environment,
    run: RunContents,
    tables: Shown,
    *,
    own: Collection[str] = (),
    failed: Callable[[str], None] = log_failure,
) -> list[Tab]:
    """The sections that are plugged in, in order of their names; one that fails says so in its place.

    Parameters
    ----------
    environment, run, tables
        What templates need.
    own
        Titles of the report's own tabs: a section of the same title gets its package's name beside it.
    failed
        Is told of every section that could not be made: which, of which package, why, and where.
    """
    tabs: list[Tab] = []
    for name, entry in sorted(plugged("polyclinic.sections").items()):
        title, section = name, None
        try:
            section = _section(entry)
            title = section.title
            html = section.made(environment, run, tables)
        except Exception as e:  # another's section may not take the report with it
            place = section.at(e) if section is not None else ""
            fault = f"({entry.value}) could not be made: {type(e).__name__}: {e}{f' ({place})' if place else ''}; package {entry.package}"
            failed(f"section {name!r} {fault}")
            html = Markup("<h2>{}</h2><p>This section {}</p>").format(title, fault)
        if html is not None:
            tabs.append(Tab("more-" + re.sub(r"[^a-z0-9]+", "-", name.lower()), title, html, name, entry.package))
    return _told_apart(tabs, own)


def _section(entry: Plugin) -> Section:
    section = entry.load()
    if not isinstance(section, Section):
        raise ConfigError(f"{entry.value} is a {type(section).__name__}, not a polyclinic.report.section.Section")
    return section


def _told_apart(made: list[Tab], own: Collection[str]) -> list[Tab]:
    """Tabs of one title, or of one of the report's own, with the package that each comes from, and its name there.

    >>> tabs = [Tab("a", "Traffic", Markup(""), "a", "one"), Tab("b", "traffic", Markup(""), "b", "two")]
    >>> [t.title for t in _told_apart(tabs, ["Summary"])]
    ['Traffic (one: a)', 'traffic (two: b)']
    """
    often = Counter([*(t.title.strip().casefold() for t in made), *(t.strip().casefold() for t in own)])
    return [
        t if often[t.title.strip().casefold()] == 1 else replace(t, title=f"{t.title} ({t.package}: {t.name})")
        for t in made
    ]
