/* Process 1 of a machine. It serves one request after another over the machine's socket (see also files.c):

       exec        milliseconds, cap, n, argv[n], stdin  -> ok, code, timed out, truncated, stdout, stderr
       background  log, argv*     -> ok, number    a job: it lives on between commands; log: file in the workspace, or ""
       jobs                       -> ok, (number, "" or exit code)*
       stop        number         -> ok            the job and everything that it started is killed
       refresh                    -> ok            after a freeze: what can be written is another file system now

   No signal from inside can kill or stop it, and every orphan becomes its child. End of file on the socket (the host
   closed the machine, or died) ends it, and with it everything in its pid namespace. Between two requests no process is
   alive but jobs. */

#include "init.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct init init;

static int exit_code(int status)
{
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static char **take_argv(struct message *m, uint64_t n)
{
    char **argv = n && n <= m->fields && n < 100000 ? calloc(n + 1, sizeof *argv) : NULL;
    for (uint64_t i = 0; argv && i < n; i++)
        if (!(argv[i] = message_text(m)))
            return NULL;
    return argv;
}

static void free_argv(char **argv)
{
    for (char **word = argv; *word; word++)
        free(*word);
    free(argv);
}

static int pipes(int ours[3], int theirs[3], int with_input)
{
    int in[2] = {open("/dev/null", O_RDONLY | O_CLOEXEC), -1}, out[2], err[2];
    if (with_input) {
        close(in[0]);
        if (pipe2(in, O_CLOEXEC) < 0)
            return -1;
        fcntl(in[1], F_SETFL, O_NONBLOCK);
    }
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
        return -1;
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    theirs[0] = in[0], theirs[1] = out[1], theirs[2] = err[1];
    ours[0] = in[1], ours[1] = out[0], ours[2] = err[0];
    return 0;
}

/* The command's input, in pages of their own that are given back: a later fork must not find it in its memory. */
static char *take_input(struct message *m, size_t size)
{
    char *input = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (input == MAP_FAILED)
        _exit(1);
    if (message_take(m, input, size) < 0)
        _exit(0);
    return input;
}

/* Returns 1 in the fork that shall run *python. */
static int serve_exec(struct message *m, char ***python)
{
    uint64_t milliseconds, cap, n;
    uint32_t input_size;
    char **argv, *input = NULL;
    int ours[3], theirs[3], error = 0;
    if (message_number(m, &milliseconds) < 0 || message_number(m, &cap) < 0 || message_number(m, &n) < 0 ||
        !(argv = take_argv(m, n)) || message_next(m, &input_size) < 0)
        return -1;
    long long deadline = now_ms() + (long long)milliseconds;
    if (pipes(ours, theirs, input_size > 0) < 0)
        _exit(1);
    chmod(WORK, 0755); /* the command before may have shut the door behind it */
    pid_t pid;
    if (looks_like_python(argv)) {
        if ((pid = init.fork_python()) == 0) {
            become_command(theirs);
            prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
            *python = argv;
            return 1;
        }
        error = pid < 0 ? errno : 0;
    } else
        pid = start_command(argv, theirs, &error);
    for (int i = 0; i < 3; i++)
        close(theirs[i]);
    if (input_size > 0)
        input = take_input(m, input_size);
    struct sink out[2] = {{.fd = ours[1], .cap = cap}, {.fd = ours[2], .cap = cap}};
    running = (struct running){.pid = pid, .status = NOT_FOUND << 8};
    int timed_out = 0;
    if (!error) {
        timed_out = watch_command(out, ours[0], input, input_size, deadline);
        end_command();
    } else if (ours[0] >= 0)
        close(ours[0]);
    for (int i = 0; i < 2; i++) {
        while (drink(&out[i]))
            ;
        close(out[i].fd);
    }
    if (input)
        munmap(input, input_size);
    struct answer a = {0};
    answer_text(&a, "ok");
    answer_number(&a, exit_code(running.status));
    answer_number(&a, timed_out);
    answer_number(&a, out[0].truncated || out[1].truncated);
    answer_bytes(&a, out[0].data, out[0].used);
    if (error) {
        char complaint[512];
        snprintf(complaint, sizeof complaint, "%s: %s\n", argv[0], strerror(error));
        answer_text(&a, complaint);
    } else
        answer_bytes(&a, out[1].data, out[1].used);
    free(out[0].data);
    free(out[1].data);
    free_argv(argv);
    return answer_send(&a, m->fd);
}

static pid_t start_job(char **argv, int log, int *error)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), told[2];
    if (pipe2(told, O_CLOEXEC) < 0)
        _exit(1);
    pid_t keeper = fork();
    if (keeper == 0) {
        int io[3] = {null, log, log}, why, status = 0;
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        prctl(PR_SET_PDEATHSIG, 0);
        close(init.host);
        pid_t job = start_command(argv, io, &why);
        if (write(told[1], &why, sizeof why) < 0 || why)
            _exit(NOT_FOUND);
        syscall(436 /* close_range */, 0, ~0U, 0);
        for (pid_t ended; (ended = waitpid(-1, &status, 0)) != job;)
            if (ended < 0 && errno != EINTR)
                _exit(1);
        _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    }
    close(told[1]);
    if (keeper < 0)
        *error = errno;
    else if (read(told[0], error, sizeof *error) != sizeof *error)
        *error = EAGAIN;
    close(told[0]);
    close(null);
    return keeper;
}

static int serve_background(struct message *m)
{
    struct answer a = {0};
    char *log = message_text(m), **argv = log ? take_argv(m, m->fields) : NULL, path[4096];
    int error = jobs_n == JOBS_MOST ? EAGAIN : 0;
    if (!argv)
        return -1;
    snprintf(path, sizeof path, "%s%s", *log ? WORK "/" : "/dev/null", log);
    int out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (out < 0 && !error)
        error = errno;
    if (!error) {
        pid_t keeper = start_job(argv, out, &error);
        if (!error)
            jobs[jobs_n++] = (struct job){.keeper = keeper};
        else if (keeper > 0)
            waitpid(keeper, NULL, 0);
    }
    if (out >= 0)
        close(out);
    answer_text(&a, error ? "error" : "ok");
    answer_number(&a, error ? error : jobs_n - 1);
    answer_text(&a, argv[0]);
    free_argv(argv);
    free(log);
    return answer_send(&a, m->fd);
}

static int serve_jobs(struct message *m)
{
    struct answer a = {0};
    message_skip(m);
    collect_ended();
    answer_text(&a, "ok");
    for (int i = 0; i < jobs_n; i++) {
        answer_number(&a, i);
        if (!jobs[i].ended)
            answer_text(&a, "");
        else
            answer_number(&a, exit_code(jobs[i].status));
    }
    return answer_send(&a, m->fd);
}

static int serve_stop(struct message *m)
{
    struct answer a = {0};
    uint64_t number;
    if (message_number(m, &number) < 0)
        return -1;
    if (number < (uint64_t)jobs_n)
        end_job((int)number);
    answer_text(&a, "ok");
    return answer_send(&a, m->fd);
}

static int serve_refresh(struct message *m)
{
    struct answer a = {0};
    message_skip(m);
    if (init.landlock >= 0) {
        close(init.landlock);
        init.landlock = landlock_rules();
    }
    answer_text(&a, "ok");
    return answer_send(&a, m->fd);
}

static const struct {
    const char *name;
    int (*serve)(struct message *m);
} REQUESTS[] = {{"put", serve_put},   {"list", serve_list}, {"read", serve_read}, {"background", serve_background},
                {"jobs", serve_jobs}, {"stop", serve_stop}, {"refresh", serve_refresh}};

char **serve_machine(int sock, const struct limits *l, pid_t (*fork_python)(void))
{
    struct answer hello = {0};
    struct message m;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    init = (struct init){.limits = l, .fork_python = fork_python, .host = sock, .landlock = landlock_rules(),
                         .children = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)};
    umask(022);
    answer_text(&hello, "hello");
    answer_text(&hello, init.landlock >= 0 ? "landlock" : "");
    if (chdir("/") < 0 || answer_send(&hello, sock) < 0)
        _exit(0);
    while (message_open(&m, sock) == 0) {
        char *name = message_text(&m), **python = NULL;
        int result = -1;
        if (name && strcmp(name, "exec") == 0) {
            if ((result = serve_exec(&m, &python)) == 1)
                return python;
        } else
            for (size_t i = 0; name && i < sizeof REQUESTS / sizeof *REQUESTS; i++)
                if (strcmp(name, REQUESTS[i].name) == 0)
                    result = REQUESTS[i].serve(&m);
        free(name);
        if (result < 0)
            break;
    }
    _exit(0);
}
