/* What a clone of the forge does to become a machine. It comes with new mount, pid, ipc and uts namespaces and a network
   namespace from the pool, and is still as privileged as the forge.

   The file system. The forge's root (read-only: /usr, Python, a small /etc and /dev) is every machine's root. What can be
   written (/work, /tmp, /dev/shm) is one overlay over one tmpfs, whose size is the machine's disk. Layers hang below
   each other at /mnt, which is covered in the end:

       /mnt          the machine's own tmpfs: upper (what it wrote), scratch (overlayfs needs it)
       /mnt/l        the layer below it: the forge's, which is empty, or the frozen one of the machine it is a fork of
       /mnt/l/l      the one below that, and so on

   So a fork copies nothing: parent and children each get an empty layer over the parent's last one. Where nothing lies
   below (a machine that is no fork and has none), there is no overlay but the tmpfs itself: an overlay moves no access
   time of a file that is copied by copy_file_range, or that lies in a lower layer, and honeypots tell by these times who
   read them (harness/traces.py). Who needs that of a fork, too, gets a copy instead (namespace.py). */

#include "launcher.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 4
#endif

static const struct {
    const char *name, *target;
    mode_t mode;
} WRITABLE[] = {{"work", WORK, 0755}, {"tmp", "/tmp", 01777}, {"shm", "/dev/shm", 01777}};
#define WRITABLE_N (sizeof WRITABLE / sizeof *WRITABLE)

int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t done = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return done < 0 ? -1 : 0;
}

static int mount_own_tmpfs(const struct settings *s, const struct limits *l)
{
    char options[96];
    uint64_t inodes = l->disk / 4096 < 1024 ? 1024 : l->disk / 4096;
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=0700", (unsigned long long)l->disk,
             (unsigned long long)inodes);
    if (mount("tmpfs", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
        return failed("mount a tmpfs");
    if (mkdir("/mnt/l", 0700) < 0 || mkdir("/mnt/scratch", 0700) < 0 || mkdir("/mnt/upper", 0755) < 0 ||
        mkdir("/mnt/all", 0755) < 0)
        return failed("make the folders of a layer");
    for (size_t i = 0; i < WRITABLE_N; i++) {
        char path[32];
        snprintf(path, sizeof path, "/mnt/upper/%s", WRITABLE[i].name);
        if (mkdir(path, 0700) < 0 || chown(path, s->outside, s->outside) < 0 || chmod(path, WRITABLE[i].mode) < 0)
            return failed("make the folders of a layer");
    }
    return 0;
}

#define FIRST 1 /* depth of a machine with nothing below but the forge's empty layer */

static int bind_writable(const char *root)
{
    for (size_t i = 0; i < WRITABLE_N; i++) {
        char path[32];
        snprintf(path, sizeof path, "%s/%s", root, WRITABLE[i].name);
        umount2(WRITABLE[i].target, MNT_DETACH); /* of a machine that is being forked */
        if (mount(path, WRITABLE[i].target, NULL, MS_BIND, NULL) < 0)
            return failed("bind what can be written");
    }
    return 0;
}

static int mount_overlay(const struct settings *s, int depth)
{
    char options[4096], below[2 * LAYERS_MOST + 16] = "/mnt";
    int at = snprintf(options, sizeof options, "upperdir=/mnt/upper,workdir=/mnt/scratch,%slowerdir=",
                      s->user_xattr ? "userxattr," : "");
    for (int i = 0; i < depth; i++) {
        strcat(below, "/l");
        at += snprintf(options + at, sizeof options - (size_t)at, "%s%s/upper", i ? ":" : "", below);
    }
    if (mount("overlay", "/mnt/all", "overlay", MS_NOSUID | MS_NODEV, options) < 0)
        return failed("mount an overlay");
    if (bind_writable("/mnt/all") < 0)
        return -1;
    return umount2("/mnt/all", MNT_DETACH) < 0 ? failed("put the overlay in place") : 0;
}

int uncover_layers(void)
{
    return umount2("/mnt", MNT_DETACH) < 0 ? failed("uncover the layers") : 0;
}

int stack_layer(const struct settings *s, const struct limits *l, const char *below, int depth)
{
    if (depth > LAYERS_MOST) {
        errno = ELOOP;
        return failed("fork a fork of a fork");
    }
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, below, OPEN_TREE_CLONE | O_CLOEXEC | 0x8000 /* AT_RECURSIVE */);
    if (tree < 0)
        return failed("hold the layers below");
    int result = -1;
    if (umount2("/mnt", MNT_DETACH) < 0)
        failed("let go of the layers below");
    else if (mount_own_tmpfs(s, l) == 0) {
        if (syscall(SYS_move_mount, tree, "", AT_FDCWD, "/mnt/l", MOVE_MOUNT_F_EMPTY_PATH) < 0)
            failed("hang the layers below");
        else if ((depth == FIRST ? bind_writable("/mnt/upper") : mount_overlay(s, depth)) == 0)
            result = mount("/opt", "/mnt", NULL, MS_BIND, NULL) < 0 ? failed("cover the layers") : 0;
    }
    int error = errno;
    close(tree);
    errno = error;
    return result;
}

/* A new /proc has to be mounted while the old one is still to be seen, or an unprivileged forge may not. */
static int mount_proc(void)
{
    int context = (int)syscall(SYS_fsopen, "proc", 1 /* FSOPEN_CLOEXEC */);
    if (context < 0 || syscall(SYS_fsconfig, context, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) < 0)
        return failed("make a /proc");
    int proc = (int)syscall(SYS_fsmount, context, 1, 2 | 4 | 8 /* MOUNT_ATTR_NOSUID, NODEV, NOEXEC */);
    close(context);
    if (proc < 0)
        return failed("mount /proc");
    umount2("/proc", MNT_DETACH);
    if (syscall(SYS_move_mount, proc, "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return failed("put /proc in place");
    close(proc);
    umount2("/dev/pts", MNT_DETACH);
    if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") < 0)
        return failed("mount /dev/pts");
    return 0;
}

/* Become an ordinary user, and then the only user of a user namespace below which no further one can be made. */
static int enter_user_namespace(const struct settings *s)
{
    char map[64];
    if (getuid() != s->outside &&
        (setgroups(0, NULL) < 0 || setresgid(s->outside, s->outside, s->outside) < 0 ||
         setresuid(s->outside, s->outside, s->outside) < 0))
        return failed("give up root");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* or its own files in /proc are root's; nobody else lives here yet */
    if (unshare(CLONE_NEWUSER) < 0)
        return failed("make a user namespace");
    snprintf(map, sizeof map, "%u %u 1", (unsigned)s->inside, (unsigned)s->outside);
    if (write_file("/proc/self/setgroups", "deny") < 0 || write_file("/proc/self/uid_map", map) < 0 ||
        write_file("/proc/self/gid_map", map) < 0)
        return failed("map the user");
    if (write_file("/proc/sys/user/max_user_namespaces", "0") < 0)
        return failed("forbid user namespaces");
    return 0;
}

int become_machine(const struct settings *s, const struct limits *l, const char *below, int depth, const int *groups,
                   int groups_n)
{
    for (int i = 0; i < groups_n; i++)
        if (write(groups[i], "0", 1) < 0)
            return failed("enter a control group");
    if (unshare(CLONE_NEWCGROUP) < 0) /* only now: its root is the machine's own group */
        return failed("make a control group namespace");
    if (strcmp(below, "/mnt") != 0 && uncover_layers() < 0)
        return -1;
    if (stack_layer(s, l, below, depth) < 0 || mount_proc() < 0)
        return -1;
    if (sethostname("localhost", 9) < 0)
        return failed("set the host name");
    if (enter_user_namespace(s) < 0 || give_up_capabilities() < 0 || limit_resources(l) < 0 ||
        filter_system_calls() < 0)
        return -1;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) /* not earlier: a change of user forgets it */
        return failed("be tied to the forge");
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* nobody inside traces it or opens its memory and files */
    prctl(PR_SET_NAME, "init");
    return 0;
}
