/* A caching pool for the results and temporaries of CPU programs (Section 8.5).

   Memory fresh from the operating system costs a page fault per page when it is first written: for a 64 MiB result about
   twenty milliseconds, several times what a kernel at memory bandwidth takes. Blocks therefore come back to the pool
   when the last tensor over them dies, and the next result of that size is written into pages that are already there.

   Sizes are rounded up to classes, eight to each power of two, so a block fits whatever comes next of nearly its size. At
   most `limit` bytes rest in the pool; beyond, those that have rested longest are returned to the system. Where the
   system has no memory left, all that rests is returned and the request made once more. A deleter may run on any thread
   and without the interpreter's lock, so the pool has a lock of its own; a child made by fork gets it unlocked. Nothing is
   released when the process ends: tensors may die later than the interpreter. */

#define _GNU_SOURCE /* posix_memalign, madvise */

#include "pool.h"

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
static const size_t HUGE_PAGE = (size_t)2 << 20, MOST_BYTES = (size_t)1 << 56;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block *stacks[CLASSES + 1];
static Block *oldest, *newest;
static PoolStatistics now; /* all of it under the lock */

/* -- blocks at rest, under the lock ------------------------------------------------------------------------------- */

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
    now.resting_bytes -= block->capacity;
    now.resting_blocks--;
}

static void link_block(Block *block) {
    block->above = NULL;
    block->below = stacks[block->size_class];
    if (block->below) block->below->above = block;
    stacks[block->size_class] = block;
    block->newer = NULL;
    block->older = newest;
    if (newest) newest->newer = block; else oldest = block;
    newest = block;
    now.resting_bytes += block->capacity;
    now.resting_blocks++;
}

/* Takes blocks out, longest at rest first, until at most so many bytes rest; they are chained by `below`. */
static Block *evict(size_t bytes) {
    Block *leaving = NULL;
    while (oldest && now.resting_bytes > bytes) {
        Block *old = oldest;
        unlink_block(old);
        now.returned_bytes += old->capacity;
        old->below = leaving;
        leaving = old;
    }
    return leaving;
}

static void count_lent(size_t bytes) {
    now.lent_bytes += bytes;
    now.lent_blocks++;
    if (now.lent_bytes > now.peak_lent_bytes) now.peak_lent_bytes = now.lent_bytes;
    if (now.lent_bytes + now.resting_bytes > now.peak_held_bytes)
        now.peak_held_bytes = now.lent_bytes + now.resting_bytes;
}

/* -- memory of the system, outside the lock: both can take long --------------------------------------------------- */

static Block *obtain(size_t capacity, int size_class) {
    Block *block = calloc(1, sizeof *block);
    size_t alignment = capacity >= 2 * HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    if (!block || posix_memalign(&block->memory, alignment, capacity)) {
        free(block);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    if (alignment == HUGE_PAGE) madvise(block->memory, capacity, MADV_HUGEPAGE); /* one fault for 512 pages; a wish */
#endif
    block->capacity = capacity;
    block->size_class = size_class;
    FORBID(block->memory, capacity);
    return block;
}

static void return_all(Block *leaving) {
    while (leaving) {
        Block *next = leaving->below;
        ALLOW(leaving->memory, leaving->capacity);
        free(leaving->memory);
        free(leaving);
        leaving = next;
    }
}

/* -- taking and giving -------------------------------------------------------------------------------------------- */

Block *pool_take(size_t bytes) {
    if (bytes > MOST_BYTES) return NULL; /* no machine has as much, and sizes below do not overflow */
    size_t capacity;
    int size_class = class_of(bytes, &capacity);
    pthread_mutex_lock(&lock);
    Block *block = stacks[size_class];
    if (block) {
        unlink_block(block);
        now.hits++;
        now.hit_bytes += capacity;
        count_lent(capacity);
    }
    pthread_mutex_unlock(&lock);
    if (!block) {
        block = obtain(capacity, size_class);
        Block *leaving = NULL;
        if (!block) {
            pthread_mutex_lock(&lock);
            leaving = evict(0);
            now.emptied++;
            pthread_mutex_unlock(&lock);
            return_all(leaving);
            block = obtain(capacity, size_class);
            if (!block) return NULL;
        }
        pthread_mutex_lock(&lock);
        now.misses++;
        now.system_bytes += capacity;
        count_lent(capacity);
        pthread_mutex_unlock(&lock);
    }
    ALLOW(block->memory, bytes);
    atomic_store_explicit(&block->references, 1, memory_order_relaxed);
    return block;
}

void pool_keep(Block *block) { atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed); }

void pool_give(Block *block) {
    if (atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) != 1) return;
    FORBID(block->memory, block->capacity);
    pthread_mutex_lock(&lock);
    now.lent_bytes -= block->capacity;
    now.lent_blocks--;
    Block *leaving = NULL;
    if (block->capacity > now.limit) {
        now.returned_bytes += block->capacity;
        block->below = NULL;
        leaving = block;
    } else {
        leaving = evict(now.limit - block->capacity);
        block->resident = true;
        link_block(block);
    }
    pthread_mutex_unlock(&lock);
    return_all(leaving);
}

/* -- tensors over a block ----------------------------------------------------------------------------------------- */

static void record_dead(DLManagedTensor *record) {
    Block *block = (Block *)record;
    atomic_store_explicit(&block->described, false, memory_order_release);
    pool_give(block);
}

static void loan_dead(DLManagedTensor *record) {
    Block *block = record->context;
    free(record);
    pool_give(block);
}

DLManagedTensor *pool_describe(Block *block, void *data, DLDataType dtype, int32_t ndim, const int64_t *shape,
                               const int64_t *strides) {
    DLManagedTensor *record = &block->record;
    int64_t *dimensions = block->dimensions;
    if (ndim <= INSIDE_DIMENSIONS && !atomic_exchange_explicit(&block->described, true, memory_order_acquire)) {
        record->deleter = record_dead;
    } else { /* another tensor over the block uses the record inside */
        record = malloc(sizeof *record + 2 * sizeof(int64_t) * (size_t)ndim);
        if (!record) {
            pool_give(block);
            return NULL;
        }
        dimensions = (int64_t *)(record + 1);
        record->deleter = loan_dead;
    }
    if (ndim) {
        memcpy(dimensions, shape, sizeof(int64_t) * (size_t)ndim);
        memcpy(dimensions + ndim, strides, sizeof(int64_t) * (size_t)ndim);
    }
    record->version = (DLVersion){1, 0};
    record->context = block;
    record->flags = 0;
    record->tensor = (DLTensor){data, {DEVICE_CPU, 0}, ndim, dtype, dimensions, dimensions + ndim, 0};
    return record;
}

/* -- reading and setting ------------------------------------------------------------------------------------------ */

PoolStatistics pool_read(void) {
    pthread_mutex_lock(&lock);
    PoolStatistics read = now;
    pthread_mutex_unlock(&lock);
    return read;
}

void pool_restart_counts(void) {
    pthread_mutex_lock(&lock);
    now.hits = now.misses = now.hit_bytes = now.system_bytes = now.returned_bytes = now.emptied = 0;
    now.peak_lent_bytes = now.lent_bytes;
    now.peak_held_bytes = now.lent_bytes + now.resting_bytes;
    pthread_mutex_unlock(&lock);
}

void pool_shrink(size_t bytes) {
    pthread_mutex_lock(&lock);
    Block *leaving = evict(bytes);
    pthread_mutex_unlock(&lock);
    return_all(leaving);
}

void pool_set_limit(size_t bytes) {
    pthread_mutex_lock(&lock);
    now.limit = bytes;
    Block *leaving = evict(bytes);
    pthread_mutex_unlock(&lock);
    return_all(leaving);
}

size_t pool_usual_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t gib = (size_t)1 << 30, eighth = pages > 0 && page > 0 ? (size_t)pages * (size_t)page / 8 : gib;
    return eighth < gib ? eighth : gib;
}

/* Nobody else holds the lock while the process is copied, so the copy is whole and its lock can be opened. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

void pool_start(void) {
    static bool started;
    if (started) return;
    started = true;
    now.limit = pool_usual_limit();
    pthread_atfork(before_fork, after_fork, after_fork);
}
