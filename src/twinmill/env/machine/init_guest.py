"""The first process of a machine in bubblewrap: serves requests over one socket, from inside the sandbox.

Self-contained, standard library only: its source text is sent into the sandbox, it is never imported by twinmill.

What it says and how: frames.py. It is the readable reference of launcher/init.c, without background jobs.

It is process 1 of its pid namespace: no signal from inside can kill or stop it, and every orphan becomes its child.
It is not dumpable, so that no process inside can trace it or open its memory and files. End of file on the socket
(the host closed the machine, or died) ends it, and with it everything in the namespace.

Between two requests no other process is alive, so nothing can change a path under its hands.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import time

import python_guest

WORK = python_guest.WORK
LIBC = ctypes.CDLL(None, use_errno=True)
LOOK_S = 0.02
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


def send(sock, *fields):
    parts = [field if isinstance(field, bytes) else str(field).encode() for field in fields]
    body = b"".join(part for field in parts for part in (struct.pack("<I", len(field)), field))
    sock.sendall(struct.pack("<II", len(body) + 4, len(parts)) + body)


def _exactly(sock, count):
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class Message:
    """Read field by field, never further than asked for: what follows may be a command's input."""

    def __init__(self, sock):
        self.sock, self.fields = sock, struct.unpack("<II", _exactly(sock, 8))[1]

    def length(self):
        """Begin a field."""
        self.fields -= 1
        return struct.unpack("<I", _exactly(self.sock, 4))[0]

    def field(self):
        return _exactly(self.sock, self.length())

    def text(self):
        return self.field().decode("utf-8", "surrogateescape")

    def number(self):
        return int(self.field())


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


def put(message, _):
    aside, wrong = f"{WORK}/.put", None
    while message.fields:
        path, mode, content = message.text(), message.number(), message.field()
        if wrong:
            continue
        full = f"{WORK}/{path}"
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            # Written aside: a full disk leaves the old file as it was, and rename replaces a link, never follows it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
            os.rename(aside, full)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            wrong = ("error", error.errno, path)
    return wrong or ("ok",)


def list_files(message, _):
    """Regular files of the workspace; links are not followed. A folder that cannot be read is left out."""
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
                found += [os.fsencode(path), entry.stat(follow_symlinks=False).st_size]
    return ("ok", *found)


def read(message, _):
    most, found = message.number(), []
    while message.fields:
        path = message.text()
        with contextlib.suppress(OSError):
            # O_NOATIME: that a file was read shall say that a command of the agent's read it (harness/traces.py)
            fd = os.open(f"{WORK}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME)
            with open(fd, "rb") as file:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    found += [os.fsencode(path), file.read(most)]
    return ("ok", *found)


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


def _collect(ended):
    """Take note of what has ended: zombies count as processes."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]


def _kill_all(ended):
    """End every other process of the machine and collect them into `ended`, pid -> wait status.

    kill(-1) signals under the lock that fork needs, so that a fork bomb cannot outrun it."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        ended[pid] = status


def _watch(pid, ended, streams, stdin, deadline, memory):
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
            _collect(ended)
            if memory and _memory_in_use() > memory:
                return False
            for fd, _ in poll.poll(min(left, LOOK_S) * 1000 + 1):
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


def execute(message, limits):
    deadline = time.monotonic() + message.number() / 1000
    cap, argv = message.number(), []
    for _ in range(message.number()):
        argv.append(message.text())
    input_bytes = message.length()
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    in_r, in_w = os.pipe() if input_bytes else (os.open("/dev/null", os.O_RDONLY), -1)
    with contextlib.suppress(OSError):
        os.chmod(WORK, 0o755)  # the command before may have shut the door behind it
    fds = (in_r, out_w, err_w)
    argv = python_guest.simple_command(argv)
    program = python_guest.find_program(argv)
    try:
        pid = start_python(argv, program, fds) if program else start_command(argv, fds)
    except OSError as error:
        pid = 0
        os.write(err_w, f"{argv[0]}: {os.strerror(error.errno)}\n".encode())
    for fd in fds:
        os.close(fd)
    streams = {out_r: Sink(cap), err_r: Sink(cap)}
    # Only now: what goes to a command's input (a grader's secrets) must not be in the memory that it is a fork of.
    stdin = (in_w, _exactly(message.sock, input_bytes)) if input_bytes else None
    memory = limits["memory"] if limits["watch"] else 0
    ended = {}
    timed_out = pid != 0 and _watch(pid, ended, streams, stdin, deadline, memory)
    _kill_all(ended)
    status = ended.get(pid, NOT_FOUND << 8)
    for fd, sink in streams.items():
        while chunk := os.read(fd, CHUNK):
            sink.take(chunk)
        os.close(fd)
    if in_w >= 0:
        with contextlib.suppress(OSError):
            os.close(in_w)
    out, err = streams.values()
    code, truncated = os.waitstatus_to_exitcode(status), out.truncated or err.truncated
    return "ok", code, int(timed_out), int(truncated), bytes(out.data), bytes(err.data)


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


REQUESTS = {"put": put, "list": list_files, "read": read, "exec": execute}


def serve(sock, limits):
    """Answer until the host closes its end. `limits`: see limits.py."""
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for kind, value in limits["rlimits"].items():
        resource.setrlimit(getattr(resource, kind), (value, value))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a process 1 without a handler does not get the signal
    os.umask(0o022)
    os.chdir("/")
    with contextlib.suppress(EOFError, ConnectionError):
        send(sock, "hello")
        while True:
            message = Message(sock)
            send(sock, *REQUESTS[message.text()](message, limits))


def main(fd):
    """A machine of its own bubblewrap, which has made the namespaces and mounts. The first frame carries the limits."""
    sock = socket.socket(fileno=fd)
    limits = json.loads(Message(sock).field())
    python_guest.note_loaded()
    serve(sock, limits)


def refuse(sock, error):
    """Tell the host why there is no machine."""
    with contextlib.suppress(OSError):
        send(sock, "refused", str(error))
