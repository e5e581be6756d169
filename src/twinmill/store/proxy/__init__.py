"""Links and stores that behave badly on purpose: to simulate far clusters, and to test a link before a run depends on it.

serving.py   a TCP server in a thread of its own, in front of another
shaping.py   bandwidth by direction, round trip, outages: `python -m twinmill.store.proxy.shaping --help`
faults.py    an S3 server's bad days: slow-downs, resets, truncated and damaged bodies, stalls, by a seeded script
http.py      as much of HTTP/1.1 as the faults need
"""
