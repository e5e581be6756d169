"""Machines: what executes an agent's commands. Backends are named by a literal map and imported when asked for."""

from importlib import import_module

from twinmill.records.tasks import MachineSpec

from .base import Machine

BACKENDS = {
    "namespace": "twinmill.env.machine.namespace:NamespaceMachine",
    "fake": "twinmill.env.machine.fake:FakeMachine",
}
"""backend -> module:class; the class takes a MachineSpec"""


def make_machine(backend: str, spec: MachineSpec) -> Machine:
    """A machine that is not started yet. Raises ValueError for an unknown backend."""
    if backend not in BACKENDS:
        raise ValueError(f"no machine backend {backend!r}: one of {', '.join(BACKENDS)}")
    module, name = BACKENDS[backend].split(":")
    machine: Machine = getattr(import_module(module), name)(spec)
    return machine
