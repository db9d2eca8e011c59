"""Stands on `PYTHONPATH` of a process whose machine's clock is to be wrong: it is ahead by `CLOCK_AHEAD_S` seconds."""

import os
import time

AHEAD_S = float(os.environ["CLOCK_AHEAD_S"])
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + AHEAD_S
time.time_ns = lambda: _time_ns() + int(AHEAD_S * 1e9)
