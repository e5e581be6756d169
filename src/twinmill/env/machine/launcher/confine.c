/* What the processes of a machine give up for good.

   System calls: a list of what is denied, not of what is allowed, since an agent's machine has to look like a user's.
   Denied is what needs privileges that nobody inside has (so that a kernel's mistake in checking them is out of reach),
   and what has no use in here but a history of holes in the kernel. They fail with EPERM, as on a guarded system; what is
   newer than this list, and the 32-bit and x32 entries, are "not implemented", as on an older kernel. ptrace stays: it
   is how debuggers work, process 1 cannot be traced, and there is no other user to attack. */

#include "launcher.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the native launcher knows x86_64 and aarch64; elsewhere the Python one serves"
#endif

#define NEWEST_KNOWN 470 /* listns, Linux 6.19 */
#define NEW_NAMESPACES                                                                                                 \
    (CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP | 0x80)

static const int DENIED[] = {
    /* other file systems and roots: the machine's are made */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_swapon, SYS_swapoff, SYS_quotactl,
    428 /* open_tree */, 429 /* move_mount */, 430 /* fsopen */, 431 /* fsconfig */, 432 /* fsmount */, 433 /* fspick */,
    442 /* mount_setattr */, 443 /* quotactl_fd */, 467 /* open_tree_attr */,
    SYS_open_by_handle_at, /* opens files outside of the root, to whom may */
    SYS_setns,
    /* the kernel itself */
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load,
    SYS_reboot, SYS_syslog, SYS_acct,
    /* the clock of everybody */
    SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
    /* large and rarely needed parts of the kernel, each with a record of escapes */
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_vmsplice,
    425 /* io_uring_setup */, 426 /* io_uring_enter */, 427 /* io_uring_register */, SYS_fanotify_init,
    /* where memory lies in the whole host */
    SYS_mbind, SYS_migrate_pages, SYS_move_pages, SYS_set_mempolicy,
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl, SYS_lookup_dcookie, SYS_nfsservctl,
#endif
};
static const int FAMILIES[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}; /* AF_VSOCK would reach a hypervisor */
static const unsigned TERMINAL_INJECTION[] = {0x5412 /* TIOCSTI */, 0x541C /* TIOCLINUX */};

static struct sock_filter program[256];
static unsigned short length;

static void emit(uint16_t code, uint32_t k, uint8_t if_true, uint8_t if_false)
{
    program[length++] = (struct sock_filter){code, if_true, if_false, k};
}

#define RETURN(value) emit(BPF_RET | BPF_K, (value), 0, 0)
#define LOAD(field) emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field), 0, 0)
#define REFUSE(error) RETURN(SECCOMP_RET_ERRNO | (error))
#define UNLESS(condition, k) emit(BPF_JMP | BPF_K | (condition), (k), 0, 1) /* skips one instruction */
#define ONLY_FOR(number, instructions) emit(BPF_JMP | BPF_K | BPF_JEQ, (number), 0, (instructions))

static void build(void)
{
    length = 0;
    LOAD(arch);
    emit(BPF_JMP | BPF_K | BPF_JEQ, ARCHITECTURE, 1, 0);
    REFUSE(ENOSYS);
    LOAD(nr);
    UNLESS(BPF_JGT, NEWEST_KNOWN); /* the x32 numbers are far above */
    REFUSE(ENOSYS);
    UNLESS(BPF_JEQ, 435); /* clone3 has its flags in memory, where a filter cannot look; libc falls back to clone */
    REFUSE(ENOSYS);
    for (size_t i = 0; i < sizeof DENIED / sizeof *DENIED; i++) {
        UNLESS(BPF_JEQ, (uint32_t)DENIED[i]);
        REFUSE(EPERM);
    }
    for (int i = 0; i < 2; i++) { /* no further namespaces */
        ONLY_FOR(i ? SYS_unshare : SYS_clone, 4);
        LOAD(args[0]);
        UNLESS(BPF_JSET, i ? NEW_NAMESPACES : NEW_NAMESPACES & ~0xff); /* the low byte of clone's is a signal */
        REFUSE(EPERM);
        RETURN(SECCOMP_RET_ALLOW);
    }
    const size_t families = sizeof FAMILIES / sizeof *FAMILIES;
    ONLY_FOR(SYS_socket, 2 * families + 2);
    LOAD(args[0]);
    for (size_t i = 0; i < families; i++) {
        UNLESS(BPF_JEQ, (uint32_t)FAMILIES[i]);
        RETURN(SECCOMP_RET_ALLOW);
    }
    REFUSE(EAFNOSUPPORT);
    ONLY_FOR(SYS_ioctl, 5);
    LOAD(args[1]);
    for (int i = 0; i < 2; i++) {
        UNLESS(BPF_JEQ, TERMINAL_INJECTION[i]);
        REFUSE(EPERM);
    }
    RETURN(SECCOMP_RET_ALLOW);
}

int filter_system_calls(void)
{
    if (length == 0)
        build();
    struct sock_fprog filter = {length, program};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
        return failed("filter system calls");
    return 0;
}

int give_up_capabilities(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    for (int i = 0; prctl(PR_CAPBSET_DROP, i, 0, 0, 0) == 0; i++)
        ;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return failed("set no_new_privs");
    return syscall(SYS_capset, &head, none) < 0 ? failed("drop capabilities") : 0;
}

int limit_resources(const struct limits *l)
{
    const struct {
        int kind, bound;
        uint64_t value;
    } bounds[] = {
        {RLIMIT_AS, l->memory > 0, l->memory},
        {RLIMIT_NPROC, l->processes > 0, l->processes},
        {RLIMIT_NOFILE, l->files > 0, l->files},
        {RLIMIT_FSIZE, 1, l->disk + (1 << 20)}, /* above the disk: a full disk says that it is full */
        {RLIMIT_CORE, 1, 0},
        {RLIMIT_MSGQUEUE, 1, 0},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        __rlimit_resource_t kind = (__rlimit_resource_t)bounds[i].kind;
        struct rlimit now, both = {bounds[i].value, bounds[i].value};
        if (getrlimit(kind, &now) == 0 && now.rlim_max < both.rlim_max)
            both.rlim_cur = both.rlim_max = now.rlim_max; /* the host's own limit is stricter */
        if (bounds[i].bound && setrlimit(kind, &both) < 0)
            return failed("set a resource limit");
    }
    return 0;
}

/* Landlock: a second fence around what can be written, should a mount ever be writable by mistake. Commands put it on
   themselves, process 1 does not: so it is outside of their domain, and landlock too forbids them to trace it. */

#define FS(name) LANDLOCK_ACCESS_FS_##name
#define CHANGES                                                                                                        \
    (FS(WRITE_FILE) | FS(REMOVE_DIR) | FS(REMOVE_FILE) | FS(MAKE_CHAR) | FS(MAKE_DIR) | FS(MAKE_REG) | FS(MAKE_SOCK) | \
     FS(MAKE_FIFO) | FS(MAKE_BLOCK) | FS(MAKE_SYM) | (1ULL << 13) /* REFER, 5.19 */)
#define TRUNCATE (1ULL << 14)  /* 6.2 */
#define IOCTL_DEV (1ULL << 15) /* 6.10 */

int landlock_rules(void)
{
    static const struct {
        const char *path;
        uint64_t allowed;
    } places[] = {
        {WORK, CHANGES & ~(FS(MAKE_CHAR) | FS(MAKE_BLOCK))},
        {"/tmp", CHANGES & ~(FS(MAKE_CHAR) | FS(MAKE_BLOCK))},
        {"/dev/shm", CHANGES & ~(FS(MAKE_CHAR) | FS(MAKE_BLOCK))},
        {"/dev", FS(WRITE_FILE)},
        {"/proc", FS(WRITE_FILE)},
    };
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 2) /* the first one forbids every rename between folders */
        return -1;
    uint64_t newer = (version >= 3 ? TRUNCATE : 0) | (version >= 5 ? IOCTL_DEV : 0);
    struct landlock_ruleset_attr handled = {.handled_access_fs = CHANGES | newer};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled.handled_access_fs, 0);
    for (size_t i = 0; rules >= 0 && i < sizeof places / sizeof *places; i++) {
        struct landlock_path_beneath_attr rule = {.allowed_access = places[i].allowed | newer};
        rule.parent_fd = open(places[i].path, O_PATH | O_CLOEXEC);
        long added = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
        close(rule.parent_fd);
        if (added < 0) {
            close(rules);
            rules = -1;
        }
    }
    return rules;
}

void landlock_enter(int rules)
{
    if (rules >= 0 && syscall(SYS_landlock_restrict_self, rules, 0) < 0)
        _exit(126); /* no command runs without it where it was promised */
}
