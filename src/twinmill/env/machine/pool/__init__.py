"""Many machines: who may start when, one host's pool, what a burst will cost.

scheduler.py   decisions alone: group affinity, admission by pressure, AIMD, retries
local.py       the pool of this process on the real clock; its journal is journal.py
simulator.py   the same scheduler on a virtual clock, with costs that were measured (calibrate.py)
"""
