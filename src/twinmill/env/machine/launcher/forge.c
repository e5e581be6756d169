/* The forge: takes orders from a packet socket, with descriptors, and reports every death on it.

       start    id, parent, disk, memory, processes, files, watch, n + socket, n times cgroup.procs
       freeze   id, disk + reply    before forks: what the machine wrote so far becomes a layer that nobody writes to
       connect  id, port + reply    the reply carries a socket connected to that port inside
       -> {"gone": id, "status": wait status, "cpu_s": of everything that ran in it}

   `parent` is the id of a machine that was just frozen, or "" for an empty machine. A machine that cannot be made says
   why on its own socket (refused, step, reason); a reply is one packet, empty when all went well. End of file on the
   order socket ends the forge and, by their parent's death signal, all machines. */

#include "launcher.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ORDER_BYTES 65536
#define FDS_MOST 8

static const struct settings *settings;
static int orders = -1, children = -1, own_mounts = -1;

/* ---- the machines ---- */

static struct machine {
    uint64_t id;
    pid_t pid;
    int pidfd, net, depth;
} *machines;
static size_t machines_n, machines_room;

static struct machine *find(uint64_t id)
{
    for (size_t i = machines_n; i > 0; i--)
        if (machines[i - 1].id == id)
            return &machines[i - 1];
    return NULL;
}

static void refuse(int sock, int error)
{
    struct answer a = {0};
    answer_text(&a, "refused");
    answer_text(&a, failed_step);
    answer_text(&a, strerror(error));
    answer_send(&a, sock);
}

static pid_t clone_into_namespaces(int *pidfd)
{
    struct clone_args args = {
        .flags = CLONE_PIDFD | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS,
        .pidfd = (uint64_t)(uintptr_t)pidfd,
        .exit_signal = SIGCHLD,
    };
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

static void close_all_but(const int *kept, int n)
{
    int sorted[FDS_MOST], from = 3;
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > kept[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = kept[i];
    }
    for (int i = 0; i < n; from = sorted[i++] + 1)
        if (sorted[i] > from)
            syscall(436 /* close_range */, from, sorted[i] - 1, 0);
    syscall(436 /* close_range */, from, ~0U, 0);
}

/* The child's whole life but for what it leaves to the interpreter. fds: the socket, then entrances to groups. */
static char **live(const struct limits *l, const char *below, int depth, int *fds, int fds_n,
                   pid_t (*fork_python)(void))
{
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    close_all_but(fds, fds_n);
    if (become_machine(settings, l, below, depth, fds + 1, fds_n - 1) < 0) {
        refuse(fds[0], errno);
        _exit(1);
    }
    for (int i = 1; i < fds_n; i++)
        close(fds[i]);
    return serve_machine(fds[0], l, fork_python);
}

struct order {
    char data[ORDER_BYTES], *field[16];
    int fields, fds[FDS_MOST], fds_n;
};

static uint64_t number(const struct order *o, int i)
{
    return i < o->fields ? strtoull(o->field[i], NULL, 10) : 0;
}

static int enter_mounts_of(const struct machine *m)
{
    return setns(m->pidfd, CLONE_NEWNS) < 0 ? failed("enter the machine's mounts") : 0;
}

static void leave_mounts(void)
{
    if (setns(own_mounts, CLONE_NEWNS) < 0)
        _exit(1);
}

static char **start(struct order *o, pid_t (*fork_python)(void))
{
    static struct limits l;
    l = (struct limits){.disk = number(o, 3), .memory = number(o, 4), .processes = number(o, 5), .files = number(o, 6),
                        .watch_memory = (int)number(o, 7)};
    int is_fork = o->field[2][0] != 0, pidfd = -1, error = 0;
    struct machine *parent = is_fork ? find(number(o, 2)) : NULL;
    int depth = parent ? parent->depth : 1;
    const char *below = is_fork ? "/mnt/l" : "/mnt";
    if (machines_n == machines_room) {
        struct machine *more = realloc(machines, (2 * machines_room + 64) * sizeof *more);
        parent = NULL; /* may have moved; found again below */
        if (more)
            machines = more, machines_room = 2 * machines_room + 64;
    }
    parent = is_fork ? find(number(o, 2)) : NULL;
    pid_t pid = -1;
    int net = machines_n < machines_room ? take_net() : failed("remember one more machine");
    if (net < 0)
        error = errno;
    else if (o->fds_n != 1 + (int)number(o, 8)) /* some were lost: it would live outside of its control groups */
        error = EMFILE, failed("receive the machine's descriptors");
    else if (is_fork && !parent)
        error = ESRCH, failed("find the machine to fork");
    else if (is_fork && enter_mounts_of(parent) < 0)
        error = errno;
    else {
        pid = clone_into_namespaces(&pidfd);
        if (pid == 0)
            return live(&l, below, depth, o->fds, o->fds_n, fork_python);
        if (pid < 0)
            error = errno, failed("clone into new namespaces");
        if (is_fork)
            leave_mounts();
    }
    if (pid > 0)
        machines[machines_n++] = (struct machine){number(o, 1), pid, pidfd, net, depth};
    else {
        refuse(o->fds[0], error);
        if (net >= 0)
            give_net(net);
    }
    leave_net();
    return NULL;
}

static void reply(int sock, const char *text, int error, int fd)
{
    char packet[256], control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {packet, error ? (size_t)snprintf(packet, sizeof packet, "%s: %s", text, strerror(error)) : 1};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
    if (!error)
        packet[0] = 0;
    if (fd >= 0) {
        m.msg_control = control, m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void freeze(struct order *o)
{
    struct machine *m = find(number(o, 1));
    struct limits l = {.disk = number(o, 2)};
    int error = 0;
    if (!m)
        error = ESRCH, failed("find the machine");
    else if (enter_mounts_of(m) < 0)
        error = errno;
    else {
        if (uncover_layers() < 0 || stack_layer(settings, &l, "/mnt", m->depth + 1) < 0)
            error = errno;
        else
            m->depth++;
        leave_mounts();
    }
    reply(o->fds[0], failed_step, error, -1);
}

static void connect_inside(struct order *o)
{
    struct machine *m = find(number(o, 1));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(o, 2)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int sock = -1, error = m ? 0 : ESRCH;
    failed("connect");
    if (m && setns(m->net, CLONE_NEWNET) == 0) {
        sock = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (sock < 0 || (connect(sock, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS))
            error = errno;
        leave_net();
    } else if (m)
        error = errno;
    reply(o->fds[0], failed_step, error, error ? -1 : sock);
    if (sock >= 0)
        close(sock);
}

/* ---- the loop ---- */

static int parse(struct order *o, size_t size)
{
    size_t at = 8;
    uint32_t length;
    for (o->fields = 0; at + 4 <= size && o->fields < 16; o->fields++) {
        memcpy(&length, o->data + at, 4);
        o->data[at] = 0; /* ends the field before */
        if (length > size - at - 4)
            return -1;
        o->field[o->fields] = o->data + at + 4;
        at += 4 + (size_t)length;
    }
    o->data[at] = 0;
    return o->fields;
}

static int receive(struct order *o)
{
    char control[CMSG_SPACE(sizeof o->fds)];
    struct iovec data = {o->data, ORDER_BYTES - 1};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(orders, &m, MSG_CMSG_CLOEXEC);
    if (got <= 0)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    o->fds_n = 0;
    if (c && c->cmsg_type == SCM_RIGHTS) {
        o->fds_n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(o->fds, CMSG_DATA(c), (size_t)o->fds_n * sizeof(int));
    }
    return parse(o, (size_t)got);
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static void bury(void)
{
    struct rusage used;
    int status;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &used)) > 0;) {
        for (size_t i = 0; i < machines_n; i++) {
            if (machines[i].pid != pid)
                continue;
            char report[128];
            double cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
            int size = snprintf(report, sizeof report, "{\"gone\": %llu, \"status\": %d, \"cpu_s\": %.6f}",
                                (unsigned long long)machines[i].id, status, cpu_s);
            close(machines[i].pidfd);
            give_net(machines[i].net);
            machines[i] = machines[--machines_n];
            send(orders, report, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL); /* who never listens misses some */
            break;
        }
    }
}

static int prepare(void)
{
    sigset_t child;
    struct rlimit files;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    own_mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max; /* two descriptors a machine */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    return children < 0 || own_mounts < 0 ? failed("prepare") : prepare_nets(settings->spares);
}

char **serve_orders(int socket_of_orders, const struct settings *s, pid_t (*fork_python)(void))
{
    static struct order o;
    settings = s, orders = socket_of_orders;
    if (prepare() < 0)
        return NULL;
    while (1) {
        struct pollfd fds[] = {{orders, POLLIN, 0}, {children, POLLIN, 0}};
        if (poll(fds, 2, nets_wanted() ? 0 : -1) == 0) {
            add_spare_net();
            continue;
        }
        if (fds[1].revents) {
            char drained[1024];
            while (read(children, drained, sizeof drained) > 0)
                ;
            bury();
        }
        if (!fds[0].revents)
            continue;
        if (receive(&o) < 1)
            return NULL;
        if (strcmp(o.field[0], "start") == 0 && o.fds_n > 0 && o.fields > 8) {
            char **python = start(&o, fork_python);
            if (python)
                return python;
        } else if (strcmp(o.field[0], "freeze") == 0 && o.fds_n > 0)
            freeze(&o);
        else if (strcmp(o.field[0], "connect") == 0 && o.fds_n > 0)
            connect_inside(&o);
        for (int i = 0; i < o.fds_n; i++)
            close(o.fds[i]);
    }
}
