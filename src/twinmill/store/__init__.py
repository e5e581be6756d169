"""Durable things: blobs, append-only logs with cursors, run folders, metrics. Synchronous; no torch.

Layers, each on top of the one before:

    requests.py one try each: what transfers are made of
    blobs.py    keys -> bytes in a folder, in memory or in a bucket; create-if-absent is what all rests on
    transfer.py many objects at once, up and down: flight.py bounds and repeats, spans.py plans ranges, sinks.py says where
                to, sending.py and fetching.py are its inside
    proxy/      links and stores that behave badly on purpose
    frame.py    one record per object, sealed against truncation, bit rot and being moved to another key
    log.py      append-only lanes (one writer each) and durable cursors
    ledger.py   the episodes log: Admit, Attempt, Close, re-grades, beats
    audit.py    an independent reader that proves the whole ledger from the raw objects
    runs.py     where the files of one run lie
    metrics.py  JSON lines, with optional sinks
"""
