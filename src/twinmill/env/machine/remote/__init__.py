"""Machines on other hosts, over HTTP: a server over any local backend, and the backend `remote` that asks it.

    client.py    RemoteMachine: the machine protocol, one connection pool and one heartbeat for each server
    server.py    HTTP: who may ask, how large a body may be, answers that show that the server lives
    host.py      what is behind it: tenants and their quotas, machines and their leases
    journal.py   what a killed server leaves, and how the next one ends it

Bodies are packed records (records/machines.py). Every request says whose it is: `Authorization: Bearer TOKEN`.

    POST    /v1/machines                     Idempotency-Key: KEY     CreateMachine -> MachineMade
    POST    /v1/machines/KEY                 Call -> what it gives
    DELETE  /v1/machines/KEY                 -> Done, also where there is none
    GET     /v1/machines/KEY/ports/PORT/ID   bytes from a new connection to a port inside
    POST    /v1/machines/KEY/ports/PORT/ID   bytes to the same connection
    POST    /v1/leases                       Beat -> Beaten
    GET     /v1/status                       -> MachinesStatus
    GET     /v1/health                       200, without a token; 503 while the server drains

Everything may be asked again after a lost answer: a machine has the key that its client chose, a call has its number,
and a close finds nothing left to do. So a client tries again while a bad line lasts, and nothing is done twice.

Not covered: encryption (put a proxy with TLS before it where the line is not your own), more than one server behind
one address, machines that outlive their server, a bound on what a tenant may ask of one machine (memory, disk), the
routes of other systems: E2B's machines are made of templates and reached through a host name each, which is no thin
adapter over these.
"""
