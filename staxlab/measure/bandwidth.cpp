// What this machine's memory can do (Section 13.1): read, write and copy as fast as plain code can.
//
// The two kinds of store are the point. An ordinary store to a line that is not in the cache makes the processor read
// that line first (write allocate), so copying n bytes moves 3n; a non-temporal ("streaming") store goes to memory
// without reading, and moves 2n. Every probe walks over `count` floats, a multiple of BLOCK (128), on 64-byte aligned
// addresses, with the given number of threads. Written with the compilers' vector extensions: no intrinsic headers, so it builds in a moment.

#include <stdint.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
enum { LANES = VECTOR_BYTES / 4, UNROLL = 8, BLOCK = 16 * 8 };  // BLOCK: the same for every vector width

// A compiler may recognise a plain loop as memcpy or memset, which choose their own kind of store. The barrier says that
// memory may have changed, so the loop stays what it says.
#define KEEP_LOOP asm volatile("" ::: "memory")

#if defined(__clang__)
#define HAS_STREAMING 1
static inline void stream(vec* to, vec value) { __builtin_nontemporal_store(value, to); }
#elif defined(__AVX512F__)
#define HAS_STREAMING 1
static inline void stream(vec* to, vec value) { __builtin_ia32_movntps512((float*)to, value); }
#elif defined(__AVX__)
#define HAS_STREAMING 1
static inline void stream(vec* to, vec value) { __builtin_ia32_movntps256((float*)to, value); }
#elif defined(__SSE__)
#define HAS_STREAMING 1
static inline void stream(vec* to, vec value) { __builtin_ia32_movntps((float*)to, value); }
#else
#define HAS_STREAMING 0
static inline void stream(vec* to, vec value) { *to = value; }
#endif

// Streaming stores are weakly ordered: wait until they are visible before another thread may rely on them.
static inline void fence() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_sfence();
#else
    __sync_synchronize();
#endif
}

namespace {

// Lines are asked for one page ahead, as generated kernels do: the processor's own prefetching stops at page borders.
static inline void ahead(const float* p) { __builtin_prefetch(p + 1024); }

// The sum of all elements: one read each. Eight running sums hide the latency of the addition.
float read_all(const float* from, int64_t count, int32_t threads) {
    float total = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : total)
    for (int64_t part = 0; part < threads; part++) {
        const int64_t blocks = count / BLOCK, begin = blocks * part / threads, end = blocks * (part + 1) / threads;
        vec sums[UNROLL] = {};
        for (const float* p = from + begin * BLOCK; p < from + end * BLOCK; p += LANES * UNROLL)
            for (int k = 0; k < UNROLL; k++) {
                ahead(p + k * LANES);
                sums[k] += *(const vec*)(p + k * LANES);
            }
        for (int k = 1; k < UNROLL; k++) sums[0] += sums[k];
        for (int lane = 0; lane < LANES; lane++) total += sums[0][lane];
    }
    return total;
}

#define FOR_EACH_BLOCK(BODY)                                                                                         \
    _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int64_t part = 0; part < threads; part++) { \
        const int64_t blocks = count / BLOCK, begin = blocks * part / threads, end = blocks * (part + 1) / threads;  \
        for (int64_t at = begin * BLOCK; at < end * BLOCK; at += LANES * UNROLL) {                                   \
            for (int k = 0; k < UNROLL; k++) { BODY; }                                                               \
            KEEP_LOOP;                                                                                               \
        }                                                                                                            \
        fence();                                                                                                     \
    }

void copy_ordinary(float* to, const float* from, int64_t count, int32_t threads) {
    FOR_EACH_BLOCK(ahead(from + at + k * LANES); *(vec*)(to + at + k * LANES) = *(const vec*)(from + at + k * LANES))
}

void copy_streaming(float* to, const float* from, int64_t count, int32_t threads) {
    FOR_EACH_BLOCK(ahead(from + at + k * LANES); stream((vec*)(to + at + k * LANES), *(const vec*)(from + at + k * LANES)))
}

void write_ordinary(float* to, float value, int64_t count, int32_t threads) {
    FOR_EACH_BLOCK(*(vec*)(to + at + k * LANES) = vec{} + value)
}

void write_streaming(float* to, float value, int64_t count, int32_t threads) {
    FOR_EACH_BLOCK(stream((vec*)(to + at + k * LANES), vec{} + value))
}

enum Probe { READ, COPY, STREAMING_COPY, WRITE, STREAMING_WRITE };

}  // namespace

// The one entry point. In: {probe, to, from, count, threads}, addresses as integers. Out: the sum that READ computed, as
// an integer, in request[0] (so that it cannot be optimised away), and in request[1] whether stores can stream here.
extern "C" void bandwidth(int64_t* request) {
    float* to = (float*)request[1];
    const float* from = (const float*)request[2];
    const int64_t count = request[3];
    const int32_t threads = (int32_t)request[4];
    const int64_t probe = request[0];
    if (probe == READ) request[0] = (int64_t)read_all(from, count, threads);
    if (probe == COPY) copy_ordinary(to, from, count, threads);
    if (probe == STREAMING_COPY) copy_streaming(to, from, count, threads);
    if (probe == WRITE) write_ordinary(to, 2.0f, count, threads);
    if (probe == STREAMING_WRITE) write_streaming(to, 3.0f, count, threads);
    request[1] = HAS_STREAMING;
}
