/* A caching pool for the results and temporaries of CPU programs (Section 8.5).

   Memory fresh from the operating system costs a page fault per page when it is first written: for a 64 MiB result about
   twenty milliseconds, several times what a kernel at memory bandwidth takes. Blocks therefore come back to the pool
   when the last tensor over them dies, and the next result of that size is written into pages that are already there.

   Sizes are rounded up to classes, eight to each power of two, so a block fits whatever comes next of nearly its size. At
   most `limit` bytes rest in the pool; beyond, those that have rested longest are returned to the system. A deleter may
   run on any thread and without the interpreter's lock, so the pool has a lock of its own. */

#include "native.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Under AddressSanitizer a block at rest, and what a block has beyond the bytes asked for, are forbidden: the pool would
   otherwise hide what an allocation of its own would show. */
#if defined(__SANITIZE_ADDRESS__)
#define CHECKED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHECKED 1
#endif
#endif
#ifdef CHECKED
#include <sanitizer/asan_interface.h>
#define FORBID(pointer, bytes) ASAN_POISON_MEMORY_REGION(pointer, bytes)
#define ALLOW(pointer, bytes) ASAN_UNPOISON_MEMORY_REGION(pointer, bytes)
#else
#define FORBID(pointer, bytes) ((void)0)
#define ALLOW(pointer, bytes) ((void)0)
#endif

enum { FINE = 64, FINE_CLASSES = 16, CLASSES = FINE_CLASSES + 8 * 48, ALIGNMENT = 64 };
static const size_t HUGE_PAGE = (size_t)2 << 20;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block *stacks[CLASSES + 1];
static Block *oldest, *newest;
static size_t limit, resting_bytes, resting_blocks, taken, reused, lent_bytes;

/* The class of a size, and the capacity of its blocks. */
static int class_of(size_t bytes, size_t *capacity) {
    size_t units = bytes ? (bytes + FINE - 1) / FINE : 1;
    if (units <= FINE_CLASSES) {
        *capacity = units * FINE;
        return (int)units;
    }
    int exponent = 63 - __builtin_clzll((unsigned long long)(units - 1)); /* 2^exponent < units <= 2^(exponent+1) */
    size_t step = (size_t)1 << (exponent - 3), base = (size_t)1 << exponent;
    size_t steps = (units - base + step - 1) / step; /* 1..8 */
    *capacity = (base + steps * step) * FINE;
    return FINE_CLASSES + 8 * (exponent - 4) + (int)steps;
}

static void unlink_block(Block *block) {
    if (block->above) block->above->below = block->below; else stacks[block->size_class] = block->below;
    if (block->below) block->below->above = block->above;
    if (block->older) block->older->newer = block->newer; else oldest = block->newer;
    if (block->newer) block->newer->older = block->older; else newest = block->older;
    resting_bytes -= block->capacity;
    resting_blocks--;
}

static void destroy(Block *block) {
    ALLOW(block->managed.tensor.data, block->capacity);
    free(block->managed.tensor.data);
    free(block);
}

static void released(DLManagedTensor *managed) { pool_give((Block *)managed); }

Block *pool_take(size_t bytes) {
    size_t capacity;
    int size_class = class_of(bytes, &capacity);
    pthread_mutex_lock(&lock);
    taken++;
    lent_bytes += capacity;
    Block *block = stacks[size_class];
    if (block) {
        unlink_block(block);
        reused++;
    }
    pthread_mutex_unlock(&lock);
    if (block) {
        ALLOW(block->managed.tensor.data, bytes);
        return block;
    }
    block = calloc(1, sizeof *block);
    void *data = NULL;
    size_t alignment = capacity >= 2 * HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    if (!block || posix_memalign(&data, alignment, capacity)) {
        free(block);
        pthread_mutex_lock(&lock);
        lent_bytes -= capacity;
        pthread_mutex_unlock(&lock);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    if (alignment == HUGE_PAGE) madvise(data, capacity, MADV_HUGEPAGE); /* one fault for 512 pages; a wish, not a need */
#endif
    block->capacity = capacity;
    block->size_class = size_class;
    block->managed.version = (DLVersion){1, 0};
    block->managed.deleter = released;
    block->managed.tensor.data = data;
    block->managed.tensor.device.type = DEVICE_CPU;
    block->managed.tensor.shape = block->shape;
    block->managed.tensor.strides = block->strides;
    FORBID(data, capacity);
    ALLOW(data, bytes);
    return block;
}

/* Takes blocks out, longest at rest first, until at most so many bytes rest; they are chained by `below`. Under the lock. */
static Block *evict(size_t bytes) {
    Block *leaving = NULL;
    while (oldest && resting_bytes > bytes) {
        Block *old = oldest;
        unlink_block(old);
        old->below = leaving;
        leaving = old;
    }
    return leaving;
}

/* Outside the lock, since returning memory to the system can take long. */
static void destroy_all(Block *leaving) {
    while (leaving) {
        Block *next = leaving->below;
        destroy(leaving);
        leaving = next;
    }
}

void pool_give(Block *block) {
    Block *leaving = NULL;
    FORBID(block->managed.tensor.data, block->capacity);
    pthread_mutex_lock(&lock);
    lent_bytes -= block->capacity;
    if (block->capacity > limit) {
        leaving = block;
        block->below = NULL;
    } else {
        leaving = evict(limit - block->capacity);
        block->above = NULL;
        block->below = stacks[block->size_class];
        if (block->below) block->below->above = block;
        stacks[block->size_class] = block;
        block->newer = NULL;
        block->older = newest;
        if (newest) newest->newer = block; else oldest = block;
        newest = block;
        resting_bytes += block->capacity;
        resting_blocks++;
    }
    pthread_mutex_unlock(&lock);
    destroy_all(leaving);
}

/* {"taken", "reused", "lent_bytes", "resting_bytes", "resting_blocks", "limit"} */
PyObject *pool_statistics(PyObject *module, PyObject *unused) {
    pthread_mutex_lock(&lock);
    size_t t = taken, r = reused, l = lent_bytes, b = resting_bytes, n = resting_blocks, m = limit;
    pthread_mutex_unlock(&lock);
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n}", "taken", (Py_ssize_t)t, "reused", (Py_ssize_t)r, "lent_bytes",
                         (Py_ssize_t)l, "resting_bytes", (Py_ssize_t)b, "resting_blocks", (Py_ssize_t)n, "limit",
                         (Py_ssize_t)m);
}

static void shrink_to(size_t bytes) {
    pthread_mutex_lock(&lock);
    Block *leaving = evict(bytes);
    pthread_mutex_unlock(&lock);
    destroy_all(leaving);
}

PyObject *pool_clear(PyObject *module, PyObject *unused) {
    shrink_to(0);
    Py_RETURN_NONE;
}

PyObject *pool_limit(PyObject *module, PyObject *bytes) {
    Py_ssize_t value = PyLong_AsSsize_t(bytes);
    if (value == -1 && PyErr_Occurred()) return NULL;
    if (value < 0) {
        PyErr_SetString(PyExc_ValueError, "the pool's limit cannot be negative");
        return NULL;
    }
    pthread_mutex_lock(&lock);
    limit = (size_t)value;
    pthread_mutex_unlock(&lock);
    shrink_to((size_t)value);
    Py_RETURN_NONE;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

/* An eighth of the machine's memory, at most one GiB, rests in the pool unless the user says otherwise. */
void pool_start(void) {
    static bool started;
    if (started) return;
    started = true;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t gib = (size_t)1 << 30, eighth = pages > 0 && page > 0 ? (size_t)pages * (size_t)page / 8 : gib;
    limit = eighth < gib ? eighth : gib;
    pthread_atfork(before_fork, after_fork, after_fork);
}
