/* Network namespaces. Making and ending one is the dearest part of a machine, so empty ones are kept ready, and one in
   which nothing ever happened is used again. They belong to the forge's user namespace: nobody inside a machine can
   configure them. */

#include "launcher.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int own_net = -1;
static size_t spares;

static const char *const TRACES[] = {"dev", "unix", "snmp", "netstat"};
#define TRACE_BYTES 8192
static char first_day[4][TRACE_BYTES]; /* what those files say of a namespace in which nothing happened */

static int read_trace(const char *name, char *into)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/net/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC), used = 0;
    for (ssize_t got = 1; fd >= 0 && got > 0 && used < TRACE_BYTES - 1; used += (int)got)
        if ((got = read(fd, into + used, (size_t)(TRACE_BYTES - 1 - used))) < 0)
            break;
    if (fd >= 0)
        close(fd);
    into[used] = 0;
    return fd;
}

/* Whether the namespace that we are in looks as on its first day. Whoever has sent, refused or bound anything in it has
   changed a counter or left a name, and it is thrown away: no machine learns anything of an earlier one. */
static int untouched(void)
{
    static char now[TRACE_BYTES];
    for (size_t i = 0; i < 4; i++)
        if ((read_trace(TRACES[i], now) < 0 && first_day[i][0]) || strcmp(now, first_day[i]) != 0)
            return 0;
    return 1;
}

static struct {
    int *fd;
    size_t n, room;
} pool;

static void pool_push(int fd)
{
    if (pool.n == pool.room) {
        int *more = realloc(pool.fd, (2 * pool.room + 16) * sizeof *more);
        if (!more) {
            close(fd);
            return;
        }
        pool.fd = more, pool.room = 2 * pool.room + 16;
    }
    pool.fd[pool.n++] = fd;
}

/* Leaves us in it. */
static int make_net(void)
{
    static int first = 1;
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) < 0)
        return failed("make a network namespace");
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int up = probe < 0 ? -1 : ioctl(probe, SIOCSIFFLAGS, &lo);
    close(probe);
    int net = up < 0 ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (net >= 0 && first)
        for (size_t i = 0; i < 4; i++)
            read_trace(TRACES[i], first_day[i]);
    first = 0;
    return net < 0 ? failed("bring the loopback up") : net;
}

/* Leaves us in it, and returns a descriptor of it. */
int take_net(void)
{
    while (pool.n > 0) {
        int net = pool.fd[--pool.n];
        if (setns(net, CLONE_NEWNET) == 0 && untouched())
            return net;
        close(net);
    }
    return make_net();
}

void give_net(int net)
{
    if (pool.n < 4 * spares)
        pool_push(net);
    else
        close(net);
}

void leave_net(void)
{
    if (setns(own_net, CLONE_NEWNET) < 0)
        _exit(1);
}

int prepare_nets(int how_many_spares)
{
    spares = (size_t)how_many_spares;
    own_net = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    return own_net < 0 ? failed("open the network namespace") : 0;
}

int nets_wanted(void)
{
    return pool.n < spares;
}

void add_spare_net(void)
{
    int net = make_net();
    leave_net();
    if (net >= 0)
        pool_push(net);
    else
        spares = 0; /* machines will say why */
}
