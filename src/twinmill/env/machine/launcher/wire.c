/* Messages. Read unbuffered, and never beyond the field that is asked for: what follows may be the input of a command
   (a grader's secrets), which must not lie in the memory that the command is a fork of. */

#include "launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char *failed_step = "";

int failed(const char *step)
{
    failed_step = step;
    return -1;
}

static int take_exactly(int fd, void *to, size_t size)
{
    char *at = to;
    while (size > 0) {
        ssize_t got = recv(fd, at, size, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

static uint32_t little_endian(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void put_little_endian(char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (char)(value >> 8 * i);
}

int message_open(struct message *m, int fd)
{
    unsigned char head[8];
    m->fd = fd, m->left = 0;
    if (take_exactly(fd, head, 8) < 0)
        return -1;
    m->fields = little_endian(head + 4);
    return 0;
}

int message_next(struct message *m, uint32_t *length)
{
    unsigned char head[4];
    if (m->fields == 0 || m->left != 0 || take_exactly(m->fd, head, 4) < 0)
        return -1;
    m->fields--;
    m->left = *length = little_endian(head);
    return 0;
}

int message_take(struct message *m, void *to, size_t size)
{
    if (size > m->left || take_exactly(m->fd, to, size) < 0)
        return -1;
    m->left -= (uint32_t)size;
    return 0;
}

char *message_text(struct message *m)
{
    uint32_t length;
    char *text;
    if (message_next(m, &length) < 0 || !(text = malloc((size_t)length + 1)))
        return NULL;
    if (message_take(m, text, length) < 0) {
        free(text);
        return NULL;
    }
    text[length] = 0;
    return text;
}

int message_number(struct message *m, uint64_t *value)
{
    char digits[24];
    uint32_t length;
    if (message_next(m, &length) < 0 || length >= sizeof digits || message_take(m, digits, length) < 0)
        return -1;
    digits[length] = 0;
    *value = strtoull(digits, NULL, 10);
    return 0;
}

void message_skip(struct message *m)
{
    char thrown_away[4096];
    uint32_t length;
    do {
        while (m->left > 0)
            if (message_take(m, thrown_away, m->left < sizeof thrown_away ? m->left : sizeof thrown_away) < 0)
                return;
    } while (m->fields > 0 && message_next(m, &length) == 0);
}

static char *room_for(struct answer *a, size_t size)
{
    if (a->used == 0)
        a->used = 8; /* the head */
    if (a->used + size > a->room) {
        a->room = 2 * (a->used + size) + 256;
        a->data = realloc(a->data, a->room);
        if (!a->data)
            _exit(1); /* commands have used up what process 1 needs */
    }
    a->used += size;
    return a->data + a->used - size;
}

void answer_bytes(struct answer *a, const void *data, size_t size)
{
    char *to = room_for(a, size + 4);
    put_little_endian(to, (uint32_t)size);
    if (size)
        memcpy(to + 4, data, size);
    a->fields++;
}

void answer_text(struct answer *a, const char *text)
{
    answer_bytes(a, text, strlen(text));
}

void answer_number(struct answer *a, long long value)
{
    char digits[24];
    answer_bytes(a, digits, (size_t)snprintf(digits, sizeof digits, "%lld", value));
}

int answer_send(struct answer *a, int fd)
{
    (void)room_for(a, 0);
    put_little_endian(a->data, (uint32_t)(a->used - 4));
    put_little_endian(a->data + 4, a->fields);
    int result = 0;
    for (size_t at = 0; at < a->used && result == 0;) {
        ssize_t sent = send(fd, a->data + at, a->used - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            result = -1;
        at += sent > 0 ? (size_t)sent : 0;
    }
    free(a->data);
    memset(a, 0, sizeof *a);
    return result;
}
