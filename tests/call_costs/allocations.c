/* Counts what Python's allocator for objects is requested, by whatever thread: PyMem_SetAllocator in the C API's "Memory
 * Management". What comes from a free list (floats, small tuples) asks nobody, and costs next to nothing. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator; /* PyMemAllocatorEx */

enum { OBJECTS = 2 }; /* PYMEM_DOMAIN_OBJ */

void PyMem_GetAllocator(int domain, Allocator *allocator);
void PyMem_SetAllocator(int domain, Allocator *allocator);

static Allocator original;
static uint64_t num_allocations;

static void *counted_malloc(void *context, size_t size) {
    num_allocations++;
    return original.malloc(context, size);
}

static void *counted_calloc(void *context, size_t number, size_t size) {
    num_allocations++;
    return original.calloc(context, number, size);
}

void count_allocations(void) {
    PyMem_GetAllocator(OBJECTS, &original);
    Allocator counting = original;
    counting.malloc = counted_malloc;
    counting.calloc = counted_calloc;
    PyMem_SetAllocator(OBJECTS, &counting);
}

uint64_t allocations(void) {
    return num_allocations;
}
