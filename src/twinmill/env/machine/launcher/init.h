/* What the files of process 1 share: init.c (requests), command.c (starting, watching), family.c (processes, ending). */

#ifndef TWINMILL_INIT_H
#define TWINMILL_INIT_H

#include "launcher.h"

#define NOT_FOUND 127 /* exit status of a command that could not be started, as a shell has it */
#define JOBS_MOST 16

extern struct init {
    const struct limits *limits;
    pid_t (*fork_python)(void);
    int host;     /* the socket */
    int children; /* readable when a child has ended */
    int landlock; /* rules that commands put on themselves; -1 = this kernel has none */
} init;

/* ---- command.c ---- */

struct sink { /* the first `cap` bytes of a stream; the rest is thrown away, so that the writer does not block */
    int fd;
    char *data;
    size_t used, room, cap;
    int truncated;
};

long long now_ms(void);
void become_command(const int io[3]);
pid_t start_command(char **argv, const int io[3], int *error);
int looks_like_python(char **argv);
int drink(struct sink *s); /* one read; whether there may be more */
int watch_command(struct sink out[2], int in, const char *waiting, size_t left, long long deadline);

/* ---- family.c ---- */

extern struct running { /* the command; pid 0 = none */
    pid_t pid;
    int status, ended;
} running;

extern struct job {
    pid_t keeper;
    int status, ended;
} jobs[JOBS_MOST];
extern int jobs_n;

void collect_ended(void);
void end_command(void); /* every process that is no job's ends and is collected */
void end_job(int number);
unsigned long long memory_in_use(void); /* bytes resident in all other processes */

#endif
