"""From a hospital's records to one canonical table of events, with every row accounted for."""

from polyclinic.records.databases.attrition import Stage
from polyclinic.records.events.event_table import EventTable, read_events

__all__ = ["EventTable", "Stage", "read_events"]
