/* The processes of a machine as process 1 sees them: who descends from whom, ending them, collecting them.

   Jobs live on between commands. A job has a keeper, which adopts every orphan of it, so that all of the job's processes
   descend from the keeper; what descends from none belongs to the command that runs. */

#include "init.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES_MOST 4096

struct job jobs[JOBS_MOST];
int jobs_n;
struct running running;

struct process {
    pid_t pid, parent;
};

static int list_processes(struct process *found)
{
    DIR *proc = opendir("/proc");
    int n = 0;
    if (!proc)
        return -1;
    for (struct dirent *entry; n < PROCESSES_MOST && (entry = readdir(proc));) {
        char path[64], text[512], *after;
        pid_t pid = atoi(entry->d_name);
        if (pid <= 1)
            continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        if (got <= 0)
            continue;
        text[got] = 0;
        if ((after = strrchr(text, ')')) && after[2] != 'Z' && after[2] != 'X')
            found[n++] = (struct process){pid, atoi(after + 4)};
    }
    closedir(proc);
    return n;
}

static int descends_from(const struct process *all, int n, pid_t pid, pid_t keeper)
{
    for (int steps = 0; pid > 1 && steps < PROCESSES_MOST; steps++) {
        if (pid == keeper)
            return 1;
        int i = 0;
        while (i < n && all[i].pid != pid)
            i++;
        pid = i < n ? all[i].parent : 0;
    }
    return 0;
}

/* Returns whether a process had ended. */
static int collect(int flags)
{
    int status;
    pid_t ended = waitpid(-1, &status, flags);
    if (ended <= 0)
        return 0;
    if (ended == running.pid)
        running.ended = 1, running.status = status;
    for (int i = 0; i < jobs_n; i++)
        if (jobs[i].keeper == ended && !jobs[i].ended)
            jobs[i].ended = 1, jobs[i].status = status;
    return 1;
}

void collect_ended(void)
{
    while (collect(WNOHANG))
        ;
}

/* Kill what belongs to the job of the keeper `only`, or, for 0, what belongs to no job. A fork bomb may outrun this:
   returns whether there was an end. */
static int kill_by_family(pid_t only)
{
    static struct process all[PROCESSES_MOST];
    for (int round = 0; round < 200; round++) {
        int n = list_processes(all), left = 0;
        for (int i = 0; i < n; i++) {
            int in_a_job = 0;
            for (int j = 0; j < jobs_n && !only && !in_a_job; j++)
                in_a_job = !jobs[j].ended && descends_from(all, n, all[i].pid, jobs[j].keeper);
            if (only ? descends_from(all, n, all[i].pid, only) : !in_a_job)
                left++, kill(all[i].pid, SIGKILL);
        }
        collect_ended();
        if (n >= 0 && !left)
            return 1;
        usleep(500);
    }
    return 0;
}

/* kill(-1) signals under the lock that fork needs: nothing outruns it, and jobs die of it, too. */
static void kill_everything(void)
{
    do
        kill(-1, SIGKILL);
    while (collect(0));
}

void end_command(void)
{
    int with_jobs = 0;
    for (int i = 0; i < jobs_n; i++)
        with_jobs |= !jobs[i].ended;
    if (!with_jobs || !kill_by_family(0))
        kill_everything();
}

void end_job(int number)
{
    if (!jobs[number].ended && !kill_by_family(jobs[number].keeper))
        kill_everything();
}

unsigned long long memory_in_use(void)
{
    static struct process all[PROCESSES_MOST];
    unsigned long long pages = 0;
    for (int i = 0, n = list_processes(all); i < n; i++) {
        char path[64], text[128] = "";
        snprintf(path, sizeof path, "/proc/%d/statm", all[i].pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && read(fd, text, sizeof text - 1) > 0) {
            const char *space = strchr(text, ' ');
            pages += space ? strtoull(space, NULL, 10) : 0;
        }
        if (fd >= 0)
            close(fd);
    }
    return pages * (unsigned long long)sysconf(_SC_PAGESIZE);
}
