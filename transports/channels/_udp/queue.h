/* Double-ended queues of any type in one piece of memory, and what happens when there is no more of that. */
#ifndef UDP_QUEUE_H
#define UDP_QUEUE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A protocol that has forgotten what is under way could only send wrong bytes: the process ends instead. */
static inline void *enough(void *memory) {
    if (memory == NULL) {
        fputs("udp channel: out of memory\n", stderr);
        abort();
    }
    return memory;
}

#define DEFINE_QUEUE(name, type)                                                                              \
    struct name {                                                                                             \
        type *items;                                                                                          \
        uint32_t head, num, capacity;                                                                         \
    };                                                                                                        \
    static inline type *name##_at(const struct name *queue, uint32_t index) {                                 \
        return queue->items + queue->head + index;                                                            \
    }                                                                                                         \
    /* Room for num items from head on. */                                                                    \
    static inline void name##_make_room(struct name *queue, uint32_t head, uint32_t num) {                    \
        if (head + num > queue->capacity) {                                                                   \
            queue->capacity = 2 * (head + num) + 8;                                                           \
            queue->items = enough(realloc(queue->items, queue->capacity * sizeof(type)));                     \
        }                                                                                                     \
        if (queue->num > 0 && head != queue->head)                                                            \
            memmove(queue->items + head, queue->items + queue->head, queue->num * sizeof(type));              \
        queue->head = head;                                                                                   \
    }                                                                                                         \
    static inline type *name##_append(struct name *queue) {                                                   \
        if (queue->head + queue->num == queue->capacity)                                                      \
            name##_make_room(queue, queue->head > queue->capacity / 2 ? 0 : queue->head, queue->num + 1);     \
        return queue->items + queue->head + queue->num++;                                                     \
    }                                                                                                         \
    static inline type *name##_prepend(struct name *queue) {                                                  \
        if (queue->head == 0) name##_make_room(queue, queue->num / 4 + 8, queue->num);                        \
        queue->head--, queue->num++;                                                                          \
        return queue->items + queue->head;                                                                    \
    }                                                                                                         \
    static inline void name##_drop(struct name *queue, uint32_t num) {                                        \
        queue->head += num, queue->num -= num;                                                                \
        if (queue->num == 0) queue->head = 0;                                                                 \
    }                                                                                                         \
    /* Put all of `kept` in the place of the first num items. */                                              \
    static inline void name##_replace(struct name *queue, uint32_t num, const struct name *kept) {            \
        if (kept->num > queue->head + num)                                                                    \
            name##_make_room(queue, kept->num + 8, queue->num);                                               \
        queue->head = queue->head + num - kept->num, queue->num = queue->num - num + kept->num;               \
        if (kept->num > 0) memcpy(queue->items + queue->head, name##_at(kept, 0), kept->num * sizeof(type));  \
    }                                                                                                         \
    static inline void name##_free(struct name *queue) {                                                      \
        free(queue->items);                                                                                   \
        *queue = (struct name){0};                                                                            \
    }

DEFINE_QUEUE(tokens, int64_t)

#endif
