// What this machine's memory can do (Section 13.1): read, write and copy as fast as plain code can.
//
// The two kinds of store are the point. An ordinary store to a line that is not in the cache makes the processor read
// that line first (write allocate), so copying n bytes moves 3n; a non-temporal ("streaming") store goes to memory
// without reading, and moves 2n. How fast a cache is shows where the buffers are small and walked over many times. Every
// probe walks over `count` floats, a multiple of BLOCK (128), on 64-byte aligned addresses, with the given number of
// threads. Written with the compilers' vector extensions: no intrinsic headers, so it builds in a moment.

#include <stdint.h>
#include <time.h>

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

// Lines are asked for one page ahead, as generated kernels do: the processor's own prefetching stops at page borders. In a
// cache that would cost as much as the loads themselves, so the kernels come with it (FAR) and without.
template <bool FAR>
static inline void ahead(const float* p) {
    if (FAR) __builtin_prefetch(p + 1024);
}

struct Job {
    float* to;
    const float* from;
    int64_t count;
    int32_t threads;
    int64_t passes;  // over the buffers, of which each thread walks over its own part again and again
};

static inline int64_t nanoseconds() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// Every thread does `pass(begin, end)`, where these are elements of its part, once to warm its caches if there is more than
// one pass to do, and then as often as it is told. Gives the nanoseconds from when all are ready until all are done.
template <class Pass>
int64_t every_thread(const Job& job, const Pass& pass) {
    const int64_t blocks = job.count / BLOCK;
#pragma omp parallel for num_threads(job.threads) schedule(static)
    for (int64_t part = 0; part < job.threads; part++) {
        const int64_t begin = blocks * part / job.threads * BLOCK, end = blocks * (part + 1) / job.threads * BLOCK;
        if (job.passes > 1) pass(begin, end, (int64_t)1);
    }
    const int64_t started = nanoseconds();
#pragma omp parallel for num_threads(job.threads) schedule(static)
    for (int64_t part = 0; part < job.threads; part++) {
        const int64_t begin = blocks * part / job.threads * BLOCK, end = blocks * (part + 1) / job.threads * BLOCK;
        pass(begin, end, job.passes);
        fence();
    }
    return nanoseconds() - started;
}

// The sum of all elements: one read each. Eight running sums hide the latency of the addition.
template <bool FAR>
int64_t read_all(const Job& job, float* total) {
    return every_thread(job, [&](int64_t begin, int64_t end, int64_t passes) {
        vec sums[UNROLL] = {};
        for (int64_t done = 0; done < passes; done++) {
            for (const float* p = job.from + begin; p < job.from + end; p += LANES * UNROLL)
                for (int k = 0; k < UNROLL; k++) {
                    ahead<FAR>(p + k * LANES);
                    sums[k] += *(const vec*)(p + k * LANES);
                }
            KEEP_LOOP;
        }
        for (int k = 1; k < UNROLL; k++) sums[0] += sums[k];
        float mine = 0;
        for (int lane = 0; lane < LANES; lane++) mine += sums[0][lane];
#pragma omp atomic
        *total += mine;
    });
}

#define FOR_EACH_BLOCK(BODY)                                                       \
    every_thread(job, [&](int64_t begin, int64_t end, int64_t passes) {            \
        for (int64_t done = 0; done < passes; done++)                                  \
            for (int64_t at = begin; at < end; at += LANES * UNROLL) {             \
                for (int k = 0; k < UNROLL; k++) { BODY; }                         \
                KEEP_LOOP;                                                         \
            }                                                                      \
    })

template <bool FAR>
int64_t copy_ordinary(const Job& job) {
    float* const to = job.to;
    const float* const from = job.from;
    return FOR_EACH_BLOCK(ahead<FAR>(from + at + k * LANES);
                          *(vec*)(to + at + k * LANES) = *(const vec*)(from + at + k * LANES));
}

template <bool FAR>
int64_t copy_streaming(const Job& job) {
    float* const to = job.to;
    const float* const from = job.from;
    return FOR_EACH_BLOCK(ahead<FAR>(from + at + k * LANES);
                          stream((vec*)(to + at + k * LANES), *(const vec*)(from + at + k * LANES)));
}

int64_t write_ordinary(const Job& job, float value) {
    float* const to = job.to;
    return FOR_EACH_BLOCK(*(vec*)(to + at + k * LANES) = vec{} + value);
}

int64_t write_streaming(const Job& job, float value) {
    float* const to = job.to;
    return FOR_EACH_BLOCK(stream((vec*)(to + at + k * LANES), vec{} + value));
}

enum Probe { READ, COPY, STREAMING_COPY, WRITE, STREAMING_WRITE };

template <bool FAR>
int64_t run(int64_t probe, const Job& job, float* total) {
    switch (probe) {
        case READ: return read_all<FAR>(job, total);
        case COPY: return copy_ordinary<FAR>(job);
        case STREAMING_COPY: return copy_streaming<FAR>(job);
        case WRITE: return write_ordinary(job, 2.0f);
        default: return write_streaming(job, 3.0f);
    }
}

}  // namespace

// The one entry point. In: {probe, to, from, count, threads, passes, far}, addresses as integers; `far` asks for lines ahead
// of time. Out: the sum that READ computed, over all passes and the first one that warms the caches, as an integer, in
// request[0] (so that it cannot be optimised away), in request[1] whether stores can stream here, and in request[2] the nanoseconds of all passes together.
extern "C" void bandwidth(int64_t* request) {
    const Job job = {(float*)request[1], (const float*)request[2], request[3], (int32_t)request[4], request[5]};
    float total = 0;
    const int64_t took = request[6] ? run<true>(request[0], job, &total) : run<false>(request[0], job, &total);
    if (request[0] == READ) request[0] = (int64_t)total;
    request[1] = HAS_STREAMING;
    request[2] = took;
}
