/* A command: started without copying process 1, watched until it ends or its time is over. */

#include "init.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MEMORY_WATCH_MS 20

extern char **environ;

long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void become_command(const int io[3])
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    for (int i = 0; i < 3; i++)
        dup2(io[i], i);
    landlock_enter(init.landlock);
    syscall(436 /* close_range */, 3, ~0U, 0);
    signal(SIGPIPE, SIG_DFL); /* the interpreter that this is a clone of ignores them */
    signal(SIGXFSZ, SIG_DFL);
    write_file("/proc/self/oom_score_adj", "1000"); /* where memory ends commands go first, not process 1 */
    if (chdir(WORK) < 0)
        _exit(126);
}

static int exec_by_path(char **argv)
{
    const char *path = getenv("PATH");
    char full[4096];
    int error = ENOENT;
    if (strchr(argv[0], '/')) {
        execve(argv[0], argv, environ);
        return errno;
    }
    for (const char *at = path ? path : "/usr/bin:/bin", *end; *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, ':');
        if (snprintf(full, sizeof full, "%.*s/%s", (int)(end - at), at, argv[0]) >= (int)sizeof full)
            continue;
        execve(full, argv, environ);
        if (errno != ENOENT && errno != ENOTDIR)
            error = errno;
    }
    return error;
}

/* vfork copies no page tables; the child shares our memory until it has become its program. */
pid_t start_command(char **argv, const int io[3], int *error)
{
    volatile int why = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        become_command(io);
        why = exec_by_path(argv);
        _exit(NOT_FOUND);
    }
    *error = pid < 0 ? errno : why;
    if (why)
        waitpid(pid, NULL, 0);
    return *error ? 0 : pid;
}

/* Whether an interpreter may run it; python_guest.py looks closer, in the fork. */
int looks_like_python(char **argv)
{
    const char *word = argv[0];
    if (strcmp(word, "sh") == 0 && argv[1] && strcmp(argv[1], "-c") == 0 && argv[2])
        return strncmp(argv[2], "python", 6) == 0;
    return (strcmp(word, "python3") == 0 || strcmp(word, "python") == 0) && argv[1];
}

/* Returns whether there may be more. */
int drink(struct sink *s)
{
    static char spill[65536];
    ssize_t got = read(s->fd, spill, sizeof spill);
    if (got <= 0)
        return got < 0 && errno == EINTR;
    size_t kept = (size_t)got < s->cap - s->used ? (size_t)got : s->cap - s->used;
    s->truncated |= kept < (size_t)got;
    if (s->used + kept > s->room) {
        size_t room = 2 * (s->used + kept) < s->cap ? 2 * (s->used + kept) : s->cap;
        if (!(s->data = realloc(s->data, room)))
            _exit(1);
        s->room = room;
    }
    if (kept)
        memcpy(s->data + s->used, spill, kept);
    s->used += kept;
    return 1;
}

/* Move bytes until the running command ends. Returns whether time ran out. */
int watch_command(struct sink out[2], int in, const char *waiting, size_t left, long long deadline)
{
    struct pollfd fds[] = {{init.children, POLLIN, 0}, {init.host, POLLRDHUP, 0}, {out[0].fd, POLLIN, 0},
                           {out[1].fd, POLLIN, 0}, {in, POLLOUT, 0}};
    int timed_out = 0;
    while (!running.ended) {
        long long rest = deadline - now_ms();
        if ((timed_out = rest <= 0))
            break;
        if (init.limits->watch_memory && memory_in_use() > init.limits->memory)
            break;
        if (init.limits->watch_memory && rest > MEMORY_WATCH_MS)
            rest = MEMORY_WATCH_MS;
        poll(fds, 5, (int)(rest > 1000000 ? 1000000 : rest));
        if (fds[1].revents)
            _exit(0); /* the host is gone */
        for (int i = 2; i < 4; i++)
            if (fds[i].revents && !drink(&out[i - 2]))
                fds[i].fd = -1;
        if (fds[4].revents) {
            ssize_t done = left ? write(in, waiting, left < 65536 ? left : 65536) : -1;
            if (done > 0)
                waiting += done, left -= (size_t)done;
            if (!left || (done < 0 && errno != EAGAIN && errno != EINTR)) {
                fds[4].fd = -1; /* all is said, or it does not read its input */
                close(in);
            }
        }
        if (fds[0].revents) { /* orphans are collected at once: zombies count as processes */
            char drained[1024];
            while (read(init.children, drained, sizeof drained) > 0)
                ;
            collect_ended();
        }
    }
    if (fds[4].fd >= 0)
        close(in);
    return timed_out;
}
