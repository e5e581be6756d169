/* The native launcher: what its files share. Read in this order:

       forge.c     takes orders from the host, clones machines, reports deaths
       nets.c      the pool of network namespaces
       cell.c      what a clone does to become a machine: control group, file system, user namespace
       confine.c   what it gives up for good: capabilities, system calls, places to write to
       init.c      process 1 of the machine: its requests; command.c and family.c: starting, watching, ending commands;
                   files.c: put, list, read
       wire.c      messages

   A machine is a clone of the forge, which is a Python with the usual modules loaded: what runs Python inside forks
   process 1 and finds an interpreter there. Process 1 itself runs nothing but this C code. The readable reference of
   the same behaviour is forge_guest.py and init_guest.py, which serve where this file was not compiled. */

#ifndef TWINMILL_LAUNCHER_H
#define TWINMILL_LAUNCHER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define WORK "/work"

struct settings { /* of the forge: the same for all its machines */
    uid_t outside, inside; /* user and group of every process, as the forge sees it and as the machine does */
    int user_xattr;        /* the forge is root of a user namespace only: overlays keep their notes in user.* */
    int spares;            /* empty network namespaces kept ready */
};

struct limits { /* of one machine; 0 = not bound by an rlimit */
    uint64_t disk, memory, processes, files;
    int watch_memory; /* no memory control group: process 1 adds up what is resident */
};

/* ---- wire.c: a message is a list of byte strings: u32 size of the rest, u32 count, then u32 length and bytes of each,
   all little-endian ---- */

struct message { /* being read from a stream, field by field, never further than asked for */
    int fd;
    uint32_t fields; /* that were not begun yet */
    uint32_t left;   /* bytes of the field that was begun */
};

int message_open(struct message *m, int fd);               /* 0, or -1: the other end is gone */
int message_next(struct message *m, uint32_t *length);     /* begins a field */
int message_take(struct message *m, void *to, size_t size); /* bytes of the field */
char *message_text(struct message *m);                     /* a whole field, terminated; the caller frees it */
int message_number(struct message *m, uint64_t *value);    /* a whole field of decimal digits */
void message_skip(struct message *m);                      /* whatever is left of the message */

struct answer {
    char *data;
    size_t used, room;
    uint32_t fields;
};

void answer_bytes(struct answer *a, const void *data, size_t size);
void answer_text(struct answer *a, const char *text);
void answer_number(struct answer *a, long long value);
int answer_send(struct answer *a, int fd); /* and empties it */

/* ---- errors: the step that failed is kept beside errno, for the host to name ---- */

extern const char *failed_step;
int failed(const char *step); /* -1 */

/* ---- cell.c ---- */

#define LAYERS_MOST 32 /* generations of forks of forks */

/* In the mount namespace of a machine, or of a new clone: stack an empty size-capped layer over what `below` holds. */
int stack_layer(const struct settings *s, const struct limits *l, const char *below, int depth);
int uncover_layers(void);
int become_machine(const struct settings *s, const struct limits *l, const char *below, int depth, const int *groups,
                   int groups_n);
int write_file(const char *path, const char *text);

/* ---- confine.c ---- */

int give_up_capabilities(void);
int limit_resources(const struct limits *l);
int filter_system_calls(void);
int landlock_rules(void); /* descriptor of the rules that commands put on themselves; -1 = this kernel has none */
void landlock_enter(int rules);

/* ---- files.c: each reads the rest of its message and sends the answer; -1 = the host is gone ---- */

int serve_put(struct message *m);
int serve_list(struct message *m);
int serve_read(struct message *m);

/* ---- init.c ---- */

/* Process 1's life. Returns only in a fork that shall run `argv` with the interpreter that it finds in its memory. */
char **serve_machine(int sock, const struct limits *l, pid_t (*fork_python)(void));

/* ---- nets.c ---- */

int prepare_nets(int spares);
int nets_wanted(void);
void add_spare_net(void);
int take_net(void);      /* an empty one, which the caller is in then; -1 */
void give_net(int net);  /* back; its machine has ended */
void leave_net(void);    /* to the forge's own */

/* ---- forge.c ---- */

char **serve_orders(int orders, const struct settings *s, pid_t (*fork_python)(void)); /* NULL = the host is gone */

#endif
