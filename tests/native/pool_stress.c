/* The pool under many threads, without an interpreter: test_memory.py compiles this with pool.c, under ThreadSanitizer and
   under AddressSanitizer. Every block is filled with a number of its own and looked at before it is given back, half of
   them by another thread than the one that took it; meanwhile others clear the pool, move its limit and read its counts. */

#include "pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 4000, BOX = 64 };

static pthread_mutex_t box_lock = PTHREAD_MUTEX_INITIALIZER;
static DLManagedTensor *box[BOX];
static atomic_int wrong;

static void look_and_drop(DLManagedTensor *tensor) {
    unsigned char *data = tensor->tensor.data;
    for (int64_t k = 1; k < tensor->tensor.shape[0]; k++)
        if (data[k] != data[0]) atomic_fetch_add(&wrong, 1);
    tensor->deleter(tensor);
}

static void swap(int place, DLManagedTensor *tensor) {
    pthread_mutex_lock(&box_lock);
    DLManagedTensor *other = box[place];
    box[place] = tensor;
    pthread_mutex_unlock(&box_lock);
    if (other) look_and_drop(other);
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument + 1;
    const int64_t one = 1;
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1103515245u + 12345u;
        int64_t bytes = 1 + (int64_t)((seed >> 8) % 5000);
        Block *block = pool_take((size_t)bytes);
        if (!block) exit(3);
        memset(block->memory, (int)(seed >> 16), (size_t)bytes);
        const DLDataType byte = {1, 8, 1};
        pool_keep(block);
        DLManagedTensor *whole = pool_describe(block, block->memory, byte, 1, &bytes, &one);
        DLManagedTensor *again = pool_describe(block, block->memory, byte, 1, &bytes, &one);
        if (!whole || !again) exit(4);
        swap((int)((seed >> 20) % BOX), whole);
        look_and_drop(again);
    }
    return NULL;
}

static void *disturb(void *argument) {
    for (int round = 0; round < ROUNDS / 20; round++) {
        pool_set_limit(round % 3 ? 1 << 20 : 10000);
        PoolStatistics read = pool_read();
        if (read.resting_bytes > read.limit) atomic_fetch_add(&wrong, 1);
        if (round % 5 == 0) pool_shrink(0);
        if (round % 7 == 0) pool_restart_counts();
    }
    return NULL;
}

int main(void) {
    pthread_t thread[THREADS + 1];
    pool_start();
    for (uintptr_t k = 0; k < THREADS; k++) pthread_create(&thread[k], NULL, work, (void *)k);
    pthread_create(&thread[THREADS], NULL, disturb, NULL);
    for (int k = 0; k <= THREADS; k++) pthread_join(thread[k], NULL);
    for (int k = 0; k < BOX; k++) swap(k, NULL);
    PoolStatistics end = pool_read();
    pool_shrink(0);
    PoolStatistics cleared = pool_read();
    printf("wrong %d lent %zu blocks %zu resting %zu\n", atomic_load(&wrong), end.lent_bytes, end.lent_blocks,
           cleared.resting_bytes);
    return 0;
}
