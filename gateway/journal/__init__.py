"""A worker's journal: what it has begun and ended, in files that survive the worker.

`Journal` is all that the rest of the house needs. Beneath it: `lines` is an entry as text, `disk` what is done to the
files, `shelf` how they stand, `pace` whether the disk keeps up, `home` the folder with the lock that tells the living
from the dead. `place` says what a folder is not good for.
"""

from .codec import EntryKind, JournalEntry
from .directory import foreign_journals
from .journal import KEPT_S, Journal
from .place import problem_with

__all__ = ["KEPT_S", "EntryKind", "Journal", "JournalEntry", "foreign_journals", "problem_with"]
