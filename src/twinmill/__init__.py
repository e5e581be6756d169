"""twinmill: two mills that meet only in two append-only logs. Importing it is silent and needs no torch."""

__version__ = "0.1.0"
