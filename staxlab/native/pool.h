/* The pool of memory: plain C, so that it can be tried without an interpreter (tests/native/pool_stress.c). */

#ifndef STAXLAB_POOL_H
#define STAXLAB_POOL_H

#include "dlpack.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Tensors of at most so many dimensions are described inside their block; others cost an allocation. */
enum { INSIDE_DIMENSIONS = 8 };

/* A piece of memory. Whoever uses it holds a reference: a call that computes into it, a tensor over it. It returns to the
   pool with the last one. The record of one tensor over it lies inside, so that a result costs no allocation. */
typedef struct Block {
    DLManagedTensor record; /* first: its deleter is given its address */
    int64_t dimensions[2 * INSIDE_DIMENSIONS];
    atomic_bool described;  /* a tensor uses the record */
    atomic_int references;
    void *memory;
    size_t capacity; /* bytes */
    int size_class;
    bool resident; /* it has been in use before: its pages are there */
    struct Block *above, *below; /* in the stack of its size class */
    struct Block *older, *newer; /* among all blocks at rest */
} Block;

/* None of these needs the interpreter's lock, and any thread may call them. */

Block *pool_take(size_t bytes);  /* with one reference; NULL where the system has no memory even once the pool is emptied */
void pool_keep(Block *block);    /* one reference more */
void pool_give(Block *block);    /* one reference less */

/* What hands memory at `data`, in a block, to PyTorch as a tensor: takes over a reference, which goes when the tensor's
   storage dies. NULL (and the reference gone) where the system has no memory. */
DLManagedTensor *pool_describe(Block *block, void *data, DLDataType dtype, int32_t ndim, const int64_t *shape,
                               const int64_t *strides);

typedef struct {
    size_t lent_bytes, lent_blocks, resting_bytes, resting_blocks; /* now */
    size_t hits, misses, hit_bytes, system_bytes; /* requests served from rest and by the system, and their bytes */
    size_t returned_bytes, emptied;               /* to the system; how often because it had no memory left */
    size_t peak_lent_bytes, peak_held_bytes;      /* the most that was lent, and lent or at rest, at a time */
    size_t limit;                                 /* of the bytes at rest */
} PoolStatistics;

PoolStatistics pool_read(void);
void pool_restart_counts(void);      /* peaks and sums; what is lent and at rest stays what it is */
void pool_shrink(size_t bytes);      /* return what has rested longest, until at most so many bytes rest */
void pool_set_limit(size_t bytes);
size_t pool_usual_limit(void);       /* an eighth of the machine's memory, at most one GiB */
void pool_start(void);

#endif
