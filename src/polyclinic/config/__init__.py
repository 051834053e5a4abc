"""The two files of a study: ``study.toml`` (what, identical everywhere) and ``node.toml`` (where, never leaves).

This is the only room that reads TOML.
"""

from polyclinic.config.cohort import CohortRule, ExcludeRule, TimeRule, VisitRule, bin_label
from polyclinic.config.node import Node, secret
from polyclinic.config.sections import CodeRule, FeatureRule, LabelRule, MethodRule, PrivacyAsked, TensorRule, hours
from polyclinic.config.source import Source, SourceKind
from polyclinic.config.study import Generated, Study

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
