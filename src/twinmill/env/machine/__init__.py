"""Machines: what executes an agent's commands. Backends are named by a literal map and imported when asked for."""

from importlib import import_module
from typing import Any

from twinmill.records.tasks import MachineSpec

from .base import Capability, Machine

BACKENDS = {
    "namespace": "twinmill.env.machine.namespace:NamespaceMachine",
    "native": "twinmill.env.machine.namespace:NativeMachine",
    "bubblewrap": "twinmill.env.machine.namespace:BubblewrapMachine",
    "remote": "twinmill.env.machine.remote.client:RemoteMachine",
    "fake": "twinmill.env.machine.fake:FakeMachine",
}
"""backend -> module:class; the class takes a MachineSpec. namespace is bubblewrap where it works and gives what the task
needs, else native; remote takes a `server` besides"""


def make_machine(backend: str, spec: MachineSpec, **more: Any) -> Machine:
    """A machine that is not started yet. `more`: what the backend's class takes besides. Raises ValueError for an unknown
    backend, or a need that nobody knows."""
    if backend not in BACKENDS:
        raise ValueError(f"no machine backend {backend!r}: one of {', '.join(BACKENDS)}")
    if unknown := set(spec.needs) - set(Capability):
        raise ValueError(f"no capability {', '.join(sorted(unknown))} of machines: one of {', '.join(Capability)}")
    module, name = BACKENDS[backend].split(":")
    machine: Machine = getattr(import_module(module), name)(spec, **more)
    return machine
