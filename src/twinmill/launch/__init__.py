"""Who starts what where. The only room that knows about processes.

spec        ProcessSpec, Restart: what to start and what to do when it ends
supervisor  Supervisor: starts, forwards, watches, restarts, stops; one thread, one loop
child       one started process: its pipe, its log, its end
family      a process with all that descends from it, and how to end them all
death       watch_parent: a process ends when its supervisor is gone, even by kill -9
beat        Heart: a process says that it still moves
lock        RunLock: a run is free when the last process of its last life is gone
lines       what the terminal shows of all this
"""
