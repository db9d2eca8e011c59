"""The write-ahead log of one worker: the beginning and the end of each call, in files that outlive the worker.

Other rooms use `Journal` alone. Below it: `codec` (an entry as a line of text), `disk` (file operations, their speed),
`segments` (the row of files), `directory` (the folder of a journal, and the lock that shows whether its worker lives).
"""

from .codec import EntryKind, JournalEntry
from .directory import foreign_journals, problem_with
from .journal import KEPT_S, Journal
