// clang++ compiles OpenMP to calls of LLVM's runtime, but PyTorch's CPU wheels bring GNU's, and a second runtime would be
// a second pool of threads. The five entry points that a statically divided loop needs are written here in terms of
// GNU's. Included only when the two do not match (-DSTAX_OPENMP_SHIM).
#pragma once

extern "C" {
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
void GOMP_critical_start();
void GOMP_critical_end();
int omp_get_thread_num();
int omp_get_num_threads();

struct stax_region {
    void (*task)(int*, int*, ...);
    int count;
    void* shared[64];
};

// The loop's body expects its shared variables as separate arguments; passing more than it takes does no harm.
#define STAX_P8 void*, void*, void*, void*, void*, void*, void*, void*
#define STAX_S8(k) s[k], s[k + 1], s[k + 2], s[k + 3], s[k + 4], s[k + 5], s[k + 6], s[k + 7]
static void stax_run_region(void* pointer) {
    const stax_region* r = (const stax_region*)pointer;
    void* const* s = r->shared;
    int thread = omp_get_thread_num(), bound = 0;
    if (r->count <= 8)
        ((void (*)(int*, int*, STAX_P8))r->task)(&thread, &bound, STAX_S8(0));
    else if (r->count <= 24)
        ((void (*)(int*, int*, STAX_P8, STAX_P8, STAX_P8))r->task)(
            &thread, &bound, STAX_S8(0), STAX_S8(8), STAX_S8(16));
    else
        ((void (*)(int*, int*, STAX_P8, STAX_P8, STAX_P8, STAX_P8, STAX_P8, STAX_P8, STAX_P8, STAX_P8))r->task)(
            &thread, &bound, STAX_S8(0), STAX_S8(8), STAX_S8(16), STAX_S8(24), STAX_S8(32), STAX_S8(40), STAX_S8(48),
            STAX_S8(56));
}

#define STAX_HIDDEN __attribute__((visibility("hidden")))
STAX_HIDDEN void __kmpc_fork_call(void*, int count, void (*task)(int*, int*, ...), ...) {
    stax_region region{task, count, {}};
    if (count > 64) __builtin_trap();  // more arguments than a kernel may have
    __builtin_va_list list;
    __builtin_va_start(list, task);
    for (int k = 0; k < count; ++k) region.shared[k] = __builtin_va_arg(list, void*);
    __builtin_va_end(list);
    GOMP_parallel(stax_run_region, &region, 0, 0);
}

STAX_HIDDEN int __kmpc_global_thread_num(void*) { return omp_get_thread_num(); }

// The share of one thread in iterations lower..upper (inclusive): as even as possible, in order.
#define STAX_STATIC(suffix, T)                                                                                     \
    STAX_HIDDEN void __kmpc_for_static_init_##suffix(                                                              \
        void*, int thread, int, int* last, T* lower, T* upper, T* stride, long long step, long long) {             \
        const T threads = (T)omp_get_num_threads(), trips = *upper < *lower ? 0 : (T)((*upper - *lower) / step + 1); \
        const T share = trips / threads, rest = trips % threads, me = (T)thread;                                   \
        const T begin = me * share + (me < rest ? me : rest), count = share + (me < rest ? 1 : 0), first = *lower; \
        *last = count > 0 && begin + count == trips;                                                               \
        *lower = (T)(first + begin * step);                                                                        \
        *upper = (T)(first + (begin + count - 1) * step);                                                          \
        *stride = (T)(trips * step);                                                                               \
        if (count == 0) { *lower = 1; *upper = 0; }                                                                \
    }
STAX_STATIC(8, long long)
STAX_STATIC(8u, unsigned long long)
STAX_HIDDEN void __kmpc_for_static_fini(void*, int) {}

// Threads merge their values of a reduction clause one after the other.
STAX_HIDDEN int __kmpc_reduce_nowait(
    void*, int, int, decltype(sizeof(0)), void*, void (*)(void*, void*), void*) {
    GOMP_critical_start();
    return 1;
}
STAX_HIDDEN void __kmpc_end_reduce_nowait(void*, int, void*) { GOMP_critical_end(); }
}
