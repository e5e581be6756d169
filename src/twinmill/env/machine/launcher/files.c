/* put, list and read: the workspace as the host sees it. Process 1 has the rights of the commands and no more, so that
   what they leave in its way (links, pipes, closed folders) can mislead it to nothing that they could not do.

       put    (path, mode, content)*    -> ok | error, errno, path
       list                             -> ok, (path, size)* of regular files, links not followed
       read   most bytes of one, path*  -> ok, (path, content)* of those that can be read */

#include "launcher.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ASIDE ".put"

static int open_below(int folder, const char *path, uint64_t flags)
{
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_BENEATH};
    return (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
}

static int set_errno(int error)
{
    errno = error;
    return -1;
}

/* The folder of `path`, made with its parents. `path` is cut into pieces and made whole again. */
static int make_parents(int work, char *path)
{
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        struct stat there;
        *slash = 0;
        int made = mkdirat(work, path, 0755);
        if (made < 0 && errno == EEXIST)
            made = fstatat(work, path, &there, 0) < 0 ? -1 : S_ISDIR(there.st_mode) ? 0 : set_errno(EEXIST);
        *slash = '/';
        if (made < 0)
            return -1;
    }
    char *last = strrchr(path, '/');
    if (!last)
        return open_below(work, ".", O_PATH | O_DIRECTORY);
    *last = 0;
    int folder = open_below(work, path, O_PATH | O_DIRECTORY);
    *last = '/';
    return folder;
}

/* From the message into the file; what does not fit is taken and lost. */
static int write_field(struct message *m, int file)
{
    static char chunk[65536];
    int error = 0;
    while (m->left > 0) {
        size_t size = m->left < sizeof chunk ? m->left : sizeof chunk;
        if (message_take(m, chunk, size) < 0)
            _exit(0); /* the host is gone */
        for (size_t at = 0; at < size && !error;) {
            ssize_t done = write(file, chunk + at, size - at);
            if (done < 0 && errno != EINTR)
                error = errno;
            at += done > 0 ? (size_t)done : 0;
        }
    }
    return error ? set_errno(error) : 0;
}

/* Written aside: a full disk leaves the old file as it was, and rename replaces a link, never follows it. */
static int put_one(struct message *m, int work, char *path, mode_t mode)
{
    int folder = make_parents(work, path);
    if (folder < 0)
        return -1;
    int file = openat(work, ASIDE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    int result = file < 0 ? -1 : write_field(m, file), error = errno;
    if (file >= 0 && close(file) < 0 && result == 0)
        result = -1, error = errno;
    const char *last = strrchr(path, '/');
    if (result == 0 && renameat(work, ASIDE, folder, last ? last + 1 : path) < 0)
        result = -1, error = errno;
    if (result < 0)
        unlinkat(work, ASIDE, 0);
    close(folder);
    errno = error;
    return result;
}

int serve_put(struct message *m)
{
    struct answer a = {0};
    int work = open(WORK, O_PATH | O_DIRECTORY | O_CLOEXEC), error = 0;
    char *path = NULL;
    while (m->fields >= 3 && !error) {
        uint64_t mode = 0;
        uint32_t length;
        free(path);
        path = message_text(m);
        if (!path || message_number(m, &mode) < 0 || message_next(m, &length) < 0)
            return -1;
        unlinkat(work, ASIDE, 0);
        if (put_one(m, work, path, (mode_t)mode) < 0)
            error = errno;
    }
    message_skip(m);
    answer_text(&a, error ? "error" : "ok");
    if (error) {
        answer_number(&a, error);
        answer_text(&a, path);
    }
    free(path);
    close(work);
    return answer_send(&a, m->fd);
}

struct pending { /* folders to look into, as paths below the workspace that end in a slash, or "" */
    char **path;
    size_t n, room;
};

static void push(struct pending *p, const char *folder, const char *name)
{
    if (p->n == p->room) {
        p->room = 2 * p->room + 16;
        p->path = realloc(p->path, p->room * sizeof *p->path);
    }
    if (!p->path || asprintf(&p->path[p->n], "%s%s%s", folder, name, *name ? "/" : "") < 0)
        _exit(1);
    p->n++;
}

static void list_folder(struct answer *a, struct pending *p, const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, WORK "/%s", folder) >= (int)sizeof path)
        return;
    DIR *open_folder = opendir(path);
    if (!open_folder)
        return; /* it may not be read */
    for (struct dirent *entry; (entry = readdir(open_folder));) {
        struct stat info;
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
            fstatat(dirfd(open_folder), name, &info, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (S_ISDIR(info.st_mode))
            push(p, folder, name);
        else if (S_ISREG(info.st_mode) && snprintf(path, sizeof path, "%s%s", folder, name) < (int)sizeof path) {
            answer_text(a, path);
            answer_number(a, (long long)info.st_size);
        }
    }
    closedir(open_folder);
}

int serve_list(struct message *m)
{
    struct answer a = {0};
    struct pending folders = {0};
    message_skip(m);
    answer_text(&a, "ok");
    push(&folders, "", "");
    while (folders.n > 0) {
        char *folder = folders.path[--folders.n];
        list_folder(&a, &folders, folder);
        free(folder);
    }
    free(folders.path);
    return answer_send(&a, m->fd);
}

static void read_one(struct answer *a, int work, const char *path, uint64_t most)
{
    struct stat info;
    /* O_NOATIME: that a file was read shall say that a command of the agent's read it (harness/traces.py) */
    int file = openat(work, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
    if (file < 0)
        return;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode)) {
        size_t wanted = (uint64_t)info.st_size < most ? (size_t)info.st_size : (size_t)most, have = 0;
        char *data = malloc(wanted + 1);
        if (!data)
            _exit(1);
        for (ssize_t got; have < wanted && (got = read(file, data + have, wanted - have)) > 0;)
            have += (size_t)got;
        answer_text(a, path);
        answer_bytes(a, data, have);
        free(data);
    }
    close(file);
}

int serve_read(struct message *m)
{
    struct answer a = {0};
    uint64_t most;
    int work = open(WORK, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (message_number(m, &most) < 0)
        return -1;
    answer_text(&a, "ok");
    while (m->fields > 0) {
        char *path = message_text(m);
        if (!path)
            return -1;
        read_one(&a, work, path, most);
        free(path);
    }
    close(work);
    return answer_send(&a, m->fd);
}
