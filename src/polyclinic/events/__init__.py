"""From a hospital's records to one canonical table of events, with every row accounted for."""

from polyclinic.events.accounting import Step
from polyclinic.events.table import EventTable, read_events

__all__ = ["EventTable", "Step", "read_events"]
