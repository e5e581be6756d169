"""Audit: what an attempt did is held against the known ways to cheat. See `Auditor` and `rules/`."""

from .auditor import AuditConfig, Auditor, earned, examine, flagged, hack_score, judged
from .honeypots import PlantedSet, plant

__all__ = ["AuditConfig", "Auditor", "PlantedSet", "earned", "examine", "flagged", "hack_score", "judged", "plant"]
