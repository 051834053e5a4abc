"""From a hospital's records to one canonical table of events, with every row accounted for."""

from polyclinic.events.accounting import Stage
from polyclinic.events.table import EventTable, read_events

__all__ = ["EventTable", "Stage", "read_events"]
