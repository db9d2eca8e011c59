"""Stands on `PYTHONPATH` of a gateway that is to live at another time: as many seconds later as the file says that
`OTHER_TIME` names, at every moment anew. Its store lives then, too. Python runs a module of this name before anything
else."""

import os
import time
from pathlib import Path

from gateway.store.clock import ServerClock

FILE = Path(os.environ["OTHER_TIME"])


def later_ns(real_ns=time.time_ns):  # type: ignore[no-untyped-def]
    return real_ns() + int(FILE.read_text()) * 10**9


time.time_ns = later_ns
time.time = lambda: later_ns() / 10**9

of_server = ServerClock.now
ServerClock.now = lambda clock: of_server(clock) + int(FILE.read_text())
