// What kernels of attention are made of (Section 9.10): products of tiles, and the softmax of a strip of scores.
//
// A strip is a few rows of queries against a tile of keys. Its scores are small enough to stay in the nearest cache,
// and a block of sums within it stays in registers. Products are fused multiply-adds here, unlike anywhere else in this
// package: attention promises a bound on its error and not eager's bits, and a fused product only makes that smaller.
// Sums are taken in an order that depends on shapes alone, so results repeat bit by bit on any number of threads.
#pragma once
#include "staxlab_math.h"

namespace stax {

STAX_INLINE constexpr i64 least(i64 a, i64 b) { return a < b ? a : b; }
STAX_INLINE constexpr i64 most(i64 a, i64 b) { return a > b ? a : b; }

// The larger of two; b if either is NaN. One instruction, and all a softmax needs: the exponentials of a row with a NaN
// in it are NaN whatever is subtracted.
template <class V> STAX_INLINE V larger(V a, V b) { return a > b ? a : b; }
STAX_LANES(largest_lane, larger(a, b))

// a*b + c, rounded once where the machine can.
template <class V> STAX_INLINE V multiply_add(V a, V b, V c) {
#if defined(__FMA__) && defined(__x86_64__)
    if constexpr (sizeof(V) >= 16) {
        if constexpr (sizeof(element_of<V>) == 4) __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
        else __asm__("vfmadd231pd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
        return c;
    }
#endif
    return a * b + c;
}

// A vector (or the element, where vectors are elements) at p.
template <class V, class S> STAX_INLINE V whole(const S* p) { return load<V>(p, all_lanes); }

// A choice known to the compiler, as an argument.
template <int n> constexpr Count<n> count_of{};

// An exponential whose argument may be far below zero, as that of every hidden score is: what would be a subnormal
// number, at most 1e-38 of the largest of its row, is 0. Subnormal results cost a hundred cycles each.
template <class V, class E> STAX_INLINE V without_subnormals(V x, E exponential) {
    const V least_normal = splat<V>((element_of<V>)(sizeof(element_of<V>) == 4 ? -87.25 : -708.25));
    const V e = exponential((V)(x < least_normal ? least_normal : x));
    return x < least_normal ? V{} : e;
}

// The first n lanes, where n is known at run time only.
template <class V> STAX_INLINE auto first_lanes(i64 n) {
    using I = int_like<V>;
    if constexpr (is_scalar<V>) return MaskLanes<bool>{n > 0};
    else return MaskLanes<I>{(I)(iota<I>() < splat<I>((element_of<I>)least(n, lanes_of<V>)))};
}

template <class M> STAX_INLINE MaskLanes<M> lanes_within(i64 n) {  // the same, with masks of type M
    if constexpr (is_scalar<M>) return {n > 0};
    else return {(M)(iota<M>() < splat<M>((element_of<M>)least(n, lanes_of<M>)))};
}

// ---- Products -----------------------------------------------------------------------------------------------------

// What happens to the sums that are there already: there are none, they are added to, or scaled row by row first.
enum Before { none, sums, scaled_sums };

// c[r][n] (+)= sum over k of a(r, k) * b(k, n), for `rows` rows and `vectors` vectors of columns: sums in registers.
// Element (r, k) of a is at a_row*r + a_step*k, row k of b starts at b_row*k, rows of c at c_row*r.
template <class V, int rows, int vectors, Before before, i64 c_row, i64 a_row, i64 a_step, i64 b_row>
static __attribute__((noinline)) void block(
    element_of<V>* c, const element_of<V>* a, const element_of<V>* b, i64 depth, const element_of<V>* factor) {
    constexpr int L = lanes_of<V>;
    V sum[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            if constexpr (before == none) sum[r][v] = V{};
            else sum[r][v] = whole<V>(c + c_row * r + L * v);
            if constexpr (before == scaled_sums) sum[r][v] = sum[r][v] * splat<V>(factor[r]);
        }
    for (i64 k = 0; k < depth; ++k) {
        V p[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) p[v] = whole<V>(b + b_row * k + L * v);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const V q = splat<V>(a[a_row * r + a_step * k]);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add(q, p[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store_vector(c + c_row * r + L * v, sum[r][v]);
}

// The same for `width` columns, a multiple of the lanes: blocks of about equal widths side by side.
template <class V, int rows, int vectors, Before before, i64 width, i64 c_row, i64 a_row, i64 a_step, i64 b_row>
STAX_INLINE void product(element_of<V>* c, const element_of<V>* a, const element_of<V>* b, i64 depth,
                         const element_of<V>* factor = nullptr) {
    constexpr int L = lanes_of<V>, all = width / L, blocks = most(1, (all + vectors - 1) / vectors);
    constexpr int each = most(1, (all + blocks - 1) / blocks), rest = all - all / each * each;
    for (int v = 0; v + each <= all; v += each)
        block<V, rows, each, before, c_row, a_row, a_step, b_row>(c + L * v, a, b + L * v, depth, factor);
    if constexpr (rest > 0) {
        constexpr i64 done = L * (all - rest);
        block<V, rows, rest, before, c_row, a_row, a_step, b_row>(c + done, a, b + done, depth, factor);
    }
}

// ---- Tiles of matrices in memory ----------------------------------------------------------------------------------

// Elements (i, d) of `from`, at row*i + step*d, to panel[tile*d + i]: keys turned over, so that a vector holds one
// component of neighbouring keys. Keys from `rows` to `tile` become zeros.
template <class V, i64 tile, i64 width, i64 row, i64 step, class S>
static __attribute__((noinline)) void turn_over(element_of<V>* panel, const S* from, i64 rows) {
    constexpr int L = lanes_of<V>;
    for (i64 j = 0; j < tile; j += L) {
        if constexpr (step != 1) {
            for (i64 d = 0; d < width; ++d) {
                const auto there = first_lanes<V>(rows - j);
                const V x = gather<V>(from + row * j + step * d, [](i64 l) { return row * l; }, there);
                store_vector(panel + tile * d + j, x);
            }
        } else {
            for (i64 d = 0; d < width; d += L) {
                V square[L];
                const S* const at = from + row * j + d;
                if (rows - j >= L && width - d >= L) load_turned<V>(square, at, row, all_lanes, all_lanes);
                else if constexpr (L == 1) square[0] = 0;
                else load_turned<V>(square, at, row, first_lanes<V>(width - d), first_lanes<V>(rows - j));
                if (width - d >= L) {
#pragma GCC unroll 64
                    for (int k = 0; k < L; ++k) store_vector(panel + tile * (d + k) + j, square[k]);
                } else {
                    for (int k = 0; k < width - d; ++k) store_vector(panel + tile * (d + k) + j, square[k]);
                }
            }
        }
    }
}

// Rows of memory to rows of `padded` elements, multiplied by a factor; columns from `width` on become zeros.
template <class V, i64 padded, i64 width, i64 row, i64 step, class S>
static __attribute__((noinline)) void copy_rows(element_of<V>* to, const S* from, i64 rows, element_of<V> factor) {
    constexpr int L = lanes_of<V>;
    for (i64 i = 0; i < rows; ++i)
        for (i64 d = 0; d < padded; d += L) {
            V x{};
            if constexpr (step == 1) {
                if (width - d >= L) x = whole<V>(from + row * i + d);
                else if constexpr (L > 1) x = load<V>(from + row * i + d, first_lanes<V>(width - d));
            } else x = gather<V>(from + row * i + step * d, [](i64 l) { return step * l; }, first_lanes<V>(width - d));
            store_vector(to + padded * i + d, (V)(x * splat<V>(factor)));
        }
}
template <class T> STAX_INLINE void clear(T* to, i64 count) {
    for (i64 k = 0; k < count; ++k) to[k] = 0;
}
// A row of results, rounded to what memory holds.
template <class V, i64 width, class S>
STAX_INLINE void write_row(S* to, const element_of<V>* from, element_of<V> factor) {
    constexpr int L = lanes_of<V>;
    for (i64 d = 0; d < width; d += L) {
        const V x = whole<V>(from + d) * splat<V>(factor);
        if (width - d >= L) store_vector(to + d, x);
        else if constexpr (L > 1) scatter(to + d, [](i64 l) { return l; }, x, first_lanes<V>(width - d));
    }
}

// ---- Softmax, a tile at a time ------------------------------------------------------------------------------------

// The state of rows (m, l, acc) takes in a strip of scores (Section 9.10): m becomes the maximum so far, l is kept lane
// by lane and merged at the end, `factor` is what the sums so far have to be scaled by. Scores become exp(score - m).
template <class V, int rows, i64 tile, class E>
STAX_INLINE void soften(
    element_of<V>* score, element_of<V>* m, element_of<V>* l, element_of<V>* factor, E exponential) {
    using T = element_of<V>;
    constexpr int L = lanes_of<V>, padded = (rows + L - 1) / L * L;
    const T minus_infinity = (T)-__builtin_inff();
    alignas(64) T reference[padded] = {}, difference[padded] = {};
    for (int r = 0; r < rows; ++r) {
        V best = whole<V>(score + tile * r);
#pragma GCC unroll 16
        for (i64 v = L; v < tile; v += L) best = larger(best, whole<V>(score + tile * r + v));
        const T high = larger(m[r], largest_lane(best));
        reference[r] = high == minus_infinity ? (T)0 : high;  // nothing seen yet: exp(-inf - 0) is 0, and no NaN
        difference[r] = m[r] - reference[r];
        m[r] = high;
    }
#pragma GCC unroll 8
    for (int r = 0; r < padded; r += L) store_vector(factor + r, exponential(whole<V>(difference + r)));
    for (int r = 0; r < rows; ++r) {
        const V base = splat<V>(reference[r]);
        V total = whole<V>(l + L * r) * splat<V>(factor[r]);
#pragma GCC unroll 16
        for (i64 v = 0; v < tile; v += L) {
            const V p = exponential((V)(whole<V>(score + tile * r + v) - base));
            store_vector(score + tile * r + v, p);
            total = total + p;
        }
        store_vector(l + L * r, total);
    }
}
// Hidden positions get another value; where a word of `visible` is -1, the number stays.
template <class V, int rows, i64 tile>
STAX_INLINE void hide(element_of<V>* numbers, const element_of<int_like<V>>* visible, element_of<V> other) {
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
        for (i64 v = 0; v < tile; v += lanes_of<V>) {
            const auto seen = whole<int_like<V>>(visible + tile * r + v);
            V x = whole<V>(numbers + tile * r + v);
            if constexpr (is_scalar<V>) x = seen ? x : other;
            else x = seen != int_like<V>{} ? x : splat<V>(other);
            store_vector(numbers + tile * r + v, x);
        }
}
// Columns from `count` on, which are no keys.
template <class V, int rows, i64 tile>
STAX_INLINE void hide_beyond(element_of<V>* numbers, i64 count, element_of<V> other) {
    for (int r = 0; r < rows; ++r)
        for (i64 k = count; k < tile; ++k) numbers[tile * r + k] = other;
}

// ---- Gradients ----------------------------------------------------------------------------------------------------

// The sum over a row of x * y.
template <class V, i64 width, class S> STAX_INLINE element_of<V> dot(const S* x, const S* y) {
    constexpr int L = lanes_of<V>;
    V total{};
    for (i64 d = 0; d < width; d += L) {
        if (width - d >= L) total = multiply_add(load<V>(x + d, all_lanes), load<V>(y + d, all_lanes), total);
        else if constexpr (L > 1) {
            const auto lanes = first_lanes<V>(width - d);
            total = multiply_add(load<V>(x + d, lanes), load<V>(y + d, lanes), total);
        }
    }
    return sum_lanes(total);
}
// The lanes that words of a mask name.
template <class W, class T> STAX_INLINE auto seen_lanes(const T* words) {
    if constexpr (is_scalar<W>) return MaskLanes<bool>{*words != 0};
    else return MaskLanes<W>{whole<W>(words)};
}
// Lanes without those where x has a certain value.
template <class K, class V> STAX_INLINE auto except(K lanes, V x, element_of<V> value) {
    if constexpr (is_scalar<V>) return MaskLanes<bool>{lanes.active(0) && x != value};
    else return both(lanes, (int_like<V>)(x != splat<V>(value)));
}
// Zeros in lanes that do not take part, whatever stood there.
template <class V> STAX_INLINE V only(AllLanes, V x) { return x; }
template <class M, class V> STAX_INLINE V only(MaskLanes<M> lanes, V x) { return select(lanes.mask, x, V{}); }

// Contributions of neighbouring scores to elements of a gradient: to one, to neighbours, or to any, one by one.
template <class V> STAX_INLINE f64 sum_of(V x) { return (f64)sum_lanes(x); }
template <class V, class K> STAX_INLINE void add_vector(f64* to, V x, K lanes) {
    for (int k = 0; k < lanes_of<V>; ++k) {
        if constexpr (is_scalar<V>) to[k] += x;
        else if (lanes.active(k)) to[k] += x[k];
    }
}
template <class A, class V, class K> STAX_INLINE void add_lanes(f64* to, A address, V x, K lanes) {
    element_of<V> lane[lanes_of<V>];
    __builtin_memcpy(lane, &x, sizeof(V));
    for (int k = 0; k < lanes_of<V>; ++k)
        if (lanes.active(k)) to[address(k)] += lane[k];
}

// ---- Threads ------------------------------------------------------------------------------------------------------

// Runs task(number, scratch memory) for every number. Whoever is free takes the next one, since blocks of a mask are
// uneven; what a task computes does not depend on who runs it. False if there was no memory for any thread.
template <class F> STAX_INLINE bool share(i64 tasks, i64 bytes, F task) {
    i64 next = 0;
#pragma omp parallel
    {
        char* memory = (char*)__builtin_malloc(bytes + 64);
        while (memory) {
            const i64 number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (number >= tasks) break;
            task(number, (char*)(((u64)memory + 63) / 64 * 64));
        }
        __builtin_free(memory);
    }
    return next >= tasks;
}
// Pieces of a thread's scratch memory, each on a cache line of its own.
struct Scratch {
    char* place;
    template <class T> inline __attribute__((always_inline)) T* take(i64 count) {
        T* here = (T*)place;
        place += (count * (i64)sizeof(T) + 63) / 64 * 64;
        return here;
    }
};
}  // namespace stax
