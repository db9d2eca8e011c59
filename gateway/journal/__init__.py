"""A worker's journal: what it has begun and ended, in files that survive the worker.

`Journal` is all that the rest of the house needs. Beneath it: `lines` is an entry as text, `disk` what is done to the
files, `shelf` how they stand, `pace` whether the disk keeps up, `home` the folder with the lock that tells the living
from the dead. `place` says what a folder is not good for.
"""

from .home import strangers
from .journal import KEPT_S, Journal
from .lines import Entry, Kind
from .place import problem_with

__all__ = ["KEPT_S", "Entry", "Journal", "Kind", "problem_with", "strangers"]
