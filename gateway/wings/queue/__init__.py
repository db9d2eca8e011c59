"""Calls for which no route has room wait here, in a fair order, instead of being refused.

`layers.py` lets them wait. `fair_queue.py` decides the order, purely, and `promises.py` keeps the places of calls that
do not wait on a connection; `waiting_room.py` is one worker's side of it, with timers and other workers.
"""
