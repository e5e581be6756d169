"""The first process of a machine: serves put, get and exec over one socket, from inside the sandbox.

Self-contained, standard library only: its source text is sent into the sandbox, it is never imported by twinmill.

    frame = 4 bytes big-endian length, JSON header of that length, header["body"] bytes
    {"op": "put", "files": [[path, bytes, mode], ...]} + the files        -> {} or {"errno": n, "path": p}
    {"op": "get", "patterns": [regex], "file_bytes": n, "total_bytes": n} -> {"files": [[path, bytes], ...]} + the files
    {"op": "exec", "argv": [...], "timeout": s, "cap": bytes} + stdin     -> {"code", "timed_out", "truncated",
                                                                              "out": bytes of stdout} + stdout + stderr

It is process 1 of its pid namespace: no signal from inside can kill or stop it, and every orphan becomes its child.
It is not dumpable, so that no process inside can trace it or open its memory and files. End of file on the socket
(the host closed the machine, or died) ends it, and with it everything in the namespace.

Between two requests no other process is alive, so nothing can change a path under its hands.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import time

import python_guest

WORK = python_guest.WORK
LIBC = ctypes.CDLL(None, use_errno=True)
MEMORY_WATCH_S = 0.02
CHUNK = 65536
NOT_FOUND = 127
"""exit status of a command that could not be started, as a shell has it"""
LAST_TO_LIVE = "1000"
"""oom_score_adj of commands: where memory ends they go first, not process 1"""


def sys_call(result, what):
    """Raise what libc left in errno."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


# ---- frames ----------------------------------------------------------------------------------------------------------


def send(sock, header, body=b""):
    head = json.dumps({**header, "body": len(body)}).encode()
    sock.sendall(struct.pack(">I", len(head)) + head + body)


def _exactly(sock, count):
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def receive_header(sock):
    return json.loads(_exactly(sock, struct.unpack(">I", _exactly(sock, 4))[0]))


def receive_body(sock, header):
    return _exactly(sock, header["body"])


# ---- the namespaces of one machine -----------------------------------------------------------------------------------

NOSUID, NODEV, NOEXEC, BIND, DETACH = 2, 4, 8, 4096, 2
PR_SET_DUMPABLE = 4


def _write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _mount(source, target, kind, flags, options=""):
    sys_call(LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()), f"mount {target}")


def enter_cell(limits):
    """Called in a process that was just cloned into new user, pid, mount, net, ipc and uts namespaces: make it at home.

    One size-capped tmpfs carries the workspace, /tmp and /dev/shm, so that one cap holds for all that can be written.
    """
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{limits['uid']} {limits['uid']} 1")
    _write("/proc/self/gid_map", f"{limits['uid']} {limits['uid']} 1")
    inodes = max(1024, limits["disk"] // 4096)
    _mount("tmpfs", "/mnt", "tmpfs", NOSUID | NODEV, f"size={limits['disk']},nr_inodes={inodes},mode=0755")
    for name, target, mode in (("work", WORK, 0o755), ("tmp", "/tmp", 0o1777), ("shm", "/dev/shm", 0o1777)):
        os.mkdir(f"/mnt/{name}")
        os.chmod(f"/mnt/{name}", mode)
        _mount(f"/mnt/{name}", target, "", BIND)
    sys_call(LIBC.umount2(b"/mnt", DETACH), "umount /mnt")
    _mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)
    _mount("devpts", "/dev/pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1))  # SIOCSIFFLAGS, IFF_UP
    _write("/proc/sys/user/max_user_namespaces", "0")
    # Drop every capability. The uid is not 0 and no_new_privs is set, so that no exec brings one back.
    sys_call(LIBC.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")


# ---- put and get -----------------------------------------------------------------------------------------------------


def put(sock, header, _):
    body, offset = receive_body(sock, header), 0
    aside = f"{WORK}/.put"
    for path, size, mode in header["files"]:
        full = f"{WORK}/{path}"
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            # Written aside: a full disk leaves the old file as it was, and rename replaces a link, never follows it.
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(body[offset : offset + size])
            os.rename(aside, full)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            return {"errno": error.errno, "path": path}, b""
        offset += size
    return {}, b""


def _regular_files():
    """(relative path, lstat) of the workspace's regular files, sorted; links are not followed."""
    found, pending = [], [""]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(f"{WORK}/{folder}"))
        except OSError:
            continue  # unreadable, or a path that became too long
        for entry in entries:
            path = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append(path + "/")
            elif entry.is_file(follow_symlinks=False):
                found.append((path, entry.stat(follow_symlinks=False)))
    return sorted(found)


def get(sock, header, _):
    wanted = [re.compile(pattern, re.DOTALL) for pattern in header["patterns"]]
    files, bodies, total = [], [], 0
    for path, info in _regular_files():
        if not any(pattern.fullmatch(path) for pattern in wanted):
            continue
        if info.st_size > header["file_bytes"] or total + info.st_size > header["total_bytes"]:
            continue
        try:
            path.encode()  # a name that is not UTF-8 has no place in a record
            # O_NOATIME: that a file was read shall say that a command of the agent's read it (harness/traces.py)
            with open(os.open(f"{WORK}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NOATIME), "rb") as file:
                data = file.read(header["file_bytes"])
        except (OSError, UnicodeEncodeError):
            continue
        total += len(data)
        files.append([path, len(data)])
        bodies.append(data)
    return {"files": files}, b"".join(bodies)


# ---- exec ------------------------------------------------------------------------------------------------------------


class Sink:
    """The first `cap` bytes of a stream; the rest is read and thrown away, so that the writer does not block."""

    def __init__(self, cap):
        self.cap, self.data, self.truncated = cap, bytearray(), False

    def take(self, chunk):
        self.truncated |= len(self.data) + len(chunk) > self.cap
        self.data += chunk[: self.cap - len(self.data)]


def _memory_in_use():
    """Bytes resident in all other processes of the machine."""
    pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError), open(f"/proc/{name}/statm") as file:
                pages += int(file.read().split()[1])
    return pages * resource.getpagesize()


def _kill_all():
    """End every other process of the machine and collect them. Returns pid -> wait status.

    kill(-1) signals under the lock that fork needs, so that a fork bomb cannot outrun it."""
    ended = {}
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return ended
        ended[pid] = status


def _watch(pid, streams, stdin, deadline, memory):
    """Move bytes until process `pid` ends. streams: fd -> Sink; stdin: (fd, bytes) or None; memory: bytes, 0 = no
    watch. Returns whether time ran out."""
    poll = select.poll()
    pidfd = os.pidfd_open(pid)
    poll.register(pidfd, select.POLLIN)
    for fd in streams:
        poll.register(fd, select.POLLIN)
    if stdin:
        os.set_blocking(stdin[0], False)
        poll.register(stdin[0], select.POLLOUT)
        waiting = memoryview(stdin[1])
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return True
            if memory and _memory_in_use() > memory:
                return False
            for fd, _ in poll.poll(min(left, MEMORY_WATCH_S if memory else left) * 1000 + 1):
                if fd == pidfd:
                    return False
                if fd in streams:
                    chunk = os.read(fd, CHUNK)
                    streams[fd].take(chunk)
                    if not chunk:
                        poll.unregister(fd)
                    continue
                try:
                    waiting = waiting[os.write(fd, waiting[:CHUNK]) :]
                except OSError:
                    waiting = waiting[:0]  # it does not read its input
                if not waiting:
                    poll.unregister(fd)
                    os.close(fd)
    finally:
        os.close(pidfd)


def execute(sock, header, limits):
    deadline = time.monotonic() + header["timeout"]
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    in_r, in_w = os.pipe() if header["body"] else (os.open("/dev/null", os.O_RDONLY), -1)
    with contextlib.suppress(OSError):
        os.chmod(WORK, 0o755)  # the command before may have shut the door behind it
    fds = (in_r, out_w, err_w)
    argv = python_guest.simple_command(header["argv"])
    program = python_guest.find_program(argv)
    try:
        pid = start_python(argv, program, fds) if program else start_command(argv, fds)
    except OSError as error:
        pid = 0
        os.write(err_w, f"{argv[0]}: {os.strerror(error.errno)}\n".encode())
    for fd in fds:
        os.close(fd)
    streams = {out_r: Sink(header["cap"]), err_r: Sink(header["cap"])}
    # Only now: what goes to a command's input (a grader's secrets) must not be in the memory that it is a fork of.
    stdin = (in_w, receive_body(sock, header)) if header["body"] else None
    memory = limits["memory"] if limits["watch"] else 0
    timed_out = pid != 0 and _watch(pid, streams, stdin, deadline, memory)
    status = _kill_all().get(pid, NOT_FOUND << 8)
    for fd, sink in streams.items():
        while chunk := os.read(fd, CHUNK):
            sink.take(chunk)
        os.close(fd)
    if in_w >= 0:
        with contextlib.suppress(OSError):
            os.close(in_w)
    out, err = streams.values()
    return {
        "code": os.waitstatus_to_exitcode(status),
        "timed_out": timed_out,
        "truncated": out.truncated or err.truncated,
        "out": len(out.data),
    }, bytes(out.data + err.data)


def start_command(argv, fds):
    """Start what is not Python. subprocess uses vfork, which copies no page tables of this process. Returns the pid."""
    stdin, stdout, stderr = fds
    child = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=WORK, start_new_session=True)
    child.returncode = 0  # collected by _kill_all
    with contextlib.suppress(OSError):
        _write(f"/proc/{child.pid}/oom_score_adj", LAST_TO_LIVE)
    return child.pid


def start_python(argv, program, fds):
    """Run Python in a fork of this process, which has one running already. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.closerange(3, 1 << 16)
        LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        _write("/proc/self/oom_score_adj", LAST_TO_LIVE)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(WORK)
        code = python_guest.run(argv, *program)
    finally:
        os._exit(code)


# ---- the server ------------------------------------------------------------------------------------------------------


OPERATIONS = {"put": put, "get": get, "exec": execute}


def serve(sock, limits):
    """Answer until the host closes its end. `limits`: see limits.py."""
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for kind, value in limits["rlimits"].items():
        resource.setrlimit(getattr(resource, kind), (value, value))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a process 1 without a handler does not get the signal
    os.umask(0o022)
    os.chdir("/")
    with contextlib.suppress(EOFError, ConnectionError):
        send(sock, {"hello": 1})
        while True:
            header = receive_header(sock)
            send(sock, *OPERATIONS[header["op"]](sock, header, limits))


def main(fd):
    """A machine of its own bubblewrap, which has made the namespaces and mounts. The first frame carries the limits."""
    sock = socket.socket(fileno=fd)
    limits = receive_header(sock)
    python_guest.note_loaded()
    serve(sock, limits)


def refuse(sock, error):
    """Tell the host why there is no machine."""
    with contextlib.suppress(OSError):
        send(sock, {"refused": str(error), "errno": getattr(error, "errno", 0) or errno.EIO})
