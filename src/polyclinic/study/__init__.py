"""The two files of a study: ``study.toml`` (what, identical everywhere) and ``node.toml`` (where, never leaves).

This is the only room that reads TOML.
"""

from polyclinic.study.cohort import CohortRule, ExcludeRule, TimeRule, VisitRule, bin_label
from polyclinic.study.node import Node, secret
from polyclinic.study.rules import CodeRule, FeatureRule, LabelRule, MethodRule, PrivacyAsked, TensorRule, hours
from polyclinic.study.source import Source, SourceKind
from polyclinic.study.study import Generated, Study

__all__ = [
    "CodeRule",
    "CohortRule",
    "ExcludeRule",
    "FeatureRule",
    "Generated",
    "LabelRule",
    "MethodRule",
    "Node",
    "PrivacyAsked",
    "Source",
    "SourceKind",
    "Study",
    "TensorRule",
    "TimeRule",
    "VisitRule",
    "bin_label",
    "hours",
    "secret",
]
