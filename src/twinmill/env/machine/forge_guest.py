"""The forge: one warm Python inside bubblewrap from which every machine is cloned, a few milliseconds each.

Self-contained like init_guest, which it finds as a module. It reads orders from a packet socket, each with the guest's
end of the new machine's own socket, and reports every death:

    host -> {"id": n, "limits": {...}} + one file descriptor
    host <- {"gone": n, "status": wait status, "cpu_s": of everything that ran in it}

A machine is a clone of this process into new user, pid, mount, net, ipc and uts namespaces (inside bubblewrap's): it
shares pages with it, but can neither see nor signal it. End of file on the order socket ends it and all machines.
"""

import array
import contextlib
import ctypes
import gc
import json
import os
import platform
import select
import signal
import socket
import sys

import init_guest

NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET"""
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
LIBC = ctypes.PyDLL(None, use_errno=True)  # PyDLL: the call must not let go of the interpreter's lock
ORDER_BYTES = 65536


def clone():
    """fork into new namespaces. The raw call: fork and then unshare would need a second fork for the pid namespace.

    Sound because this process has one thread: there is no lock for a child to find held."""
    number = SYS_CLONE[platform.machine()]
    return init_guest.sys_call(LIBC.syscall(number, NAMESPACES | signal.SIGCHLD, 0, 0, 0, 0), "clone")


def live(sock, limits):
    """The child's whole life."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keep = sock.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, 1 << 16)
        try:
            init_guest.enter_cell(limits)
        except OSError as error:
            init_guest.refuse(sock, error)
            return
        init_guest.serve(sock, limits)
    finally:
        # An exception ends in status 1: the host calls that the machine's own death.
        os._exit(0 if sys.exc_info()[0] is None else 1)


def obey(orders, machines):
    """Take one order. Returns False when the host is gone."""
    data, ancillary, _, _ = orders.recvmsg(ORDER_BYTES, socket.CMSG_SPACE(4))
    if not data:
        return False
    order = json.loads(data)
    with socket.socket(fileno=array.array("i", ancillary[0][2])[0]) as sock:
        try:
            pid = clone()
        except (OSError, KeyError) as error:
            init_guest.refuse(sock, error)
            return True
        if pid == 0:
            live(sock, order["limits"])
        machines[pid] = order["id"]
    return True


def bury(orders, machines):
    """Report the machines that ended."""
    while machines:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        report = {"gone": machines.pop(pid, None), "status": status, "cpu_s": usage.ru_utime + usage.ru_stime}
        # BlockingIOError: the host has not asked for thousands of deaths, nor will for this; the others: it is gone itself
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionError):
            orders.send(json.dumps(report).encode(), socket.MSG_DONTWAIT)


def main(fd):
    orders = socket.socket(fileno=fd)
    init_guest.python_guest.warm()
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.collect()
    gc.freeze()  # no collection in a machine writes to the pages they share
    machines = {}
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if wake_r in ready:
            os.read(wake_r, 4096)
            bury(orders, machines)
        if orders.fileno() in ready and not obey(orders, machines):
            return
