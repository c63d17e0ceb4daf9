// Portable vectors for generated kernels (Section 8.1).
//
// A vector of L elements is a compiler vector extension (g++ >= 11, clang++): `Vec<float, 16>` behaves like a float
// with sixteen lanes, so + - * / < and ?: need no wrapper. What the extensions lack is here: loads and stores with
// conversion and with masks, elementary functions, lane reductions in a fixed order. Every function template works on
// a single element as well, which is how the "scalar" instruction set and loop-invariant values are compiled.
//
// No other header is included: parsing one intrinsics header would cost more time than compiling a kernel.
#pragma once

#ifdef STAX_OPENMP_SHIM
#include "staxlab_openmp.h"
#endif
#define STAX_INLINE static inline __attribute__((always_inline))

namespace stax {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;
struct bf16 { u16 bits; };  // storage only: values are computed in f32
struct f16 { u16 bits; };
struct boolean { u8 byte; };

// ---- Types ---------------------------------------------------------------------------------------------------------

template <class T, int L> struct vector_of {
    typedef T type __attribute__((vector_size(sizeof(T) * L)));
    typedef T stored __attribute__((vector_size(sizeof(T) * L), aligned(alignof(T)), may_alias));
};
template <class T> struct vector_of<T, 1> {
    typedef T type;
    typedef T stored;
};
template <class T, int L> using Vec = typename vector_of<T, L>::type;

template <class T> struct plain { using type = T; };
template <class T> struct plain<T&> { using type = T; };
template <class T> struct plain<const T> { using type = T; };
template <class T> struct plain<const T&> { using type = T; };

template <class V> struct traits {  // a vector
    using element = typename plain<decltype((*(V*)0)[0])>::type;
    static constexpr int lanes = sizeof(V) / sizeof(element);
};
template <class T> struct scalar_traits { using element = T; static constexpr int lanes = 1; };
template <> struct traits<bool> : scalar_traits<bool> {};
template <> struct traits<i8> : scalar_traits<i8> {};
template <> struct traits<u8> : scalar_traits<u8> {};
template <> struct traits<i16> : scalar_traits<i16> {};
template <> struct traits<u16> : scalar_traits<u16> {};
template <> struct traits<i32> : scalar_traits<i32> {};
template <> struct traits<u32> : scalar_traits<u32> {};
template <> struct traits<i64> : scalar_traits<i64> {};
template <> struct traits<u64> : scalar_traits<u64> {};
template <> struct traits<f32> : scalar_traits<f32> {};
template <> struct traits<f64> : scalar_traits<f64> {};
template <class V> using element_of = typename traits<V>::element;
template <class V> constexpr int lanes_of = traits<V>::lanes;
template <class V> constexpr bool is_scalar = lanes_of<V> == 1;

template <class T> constexpr bool is_float = false;
template <> constexpr bool is_float<f32> = true;
template <> constexpr bool is_float<f64> = true;

// The signed and unsigned integers as wide as a type: masks and bit patterns.
template <int bytes> struct integer;
template <> struct integer<1> { using s = i8; using u = u8; };
template <> struct integer<2> { using s = i16; using u = u16; };
template <> struct integer<4> { using s = i32; using u = u32; };
template <> struct integer<8> { using s = i64; using u = u64; };
template <class V> using int_like = Vec<typename integer<sizeof(element_of<V>)>::s, lanes_of<V>>;
template <class V> using uint_like = Vec<typename integer<sizeof(element_of<V>)>::u, lanes_of<V>>;

template <class To, class From> STAX_INLINE To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "bits() keeps the size");
    To y;
    __builtin_memcpy(&y, &x, sizeof(To));
    return y;
}

// One value in every lane.
template <class V> STAX_INLINE V splat(element_of<V> x) {
    if constexpr (is_scalar<V>) return x;
    else return x - V{};  // the compiler broadcasts x; x - 0 is x for every x, -0 and NaN included
}

// 0, 1, 2, ... lane by lane.
template <class V> STAX_INLINE V iota() {
    V v{};
    if constexpr (!is_scalar<V>)
#pragma GCC unroll 64
        for (int k = 0; k < lanes_of<V>; ++k) v[k] = (element_of<V>)k;
    return v;
}

// ---- Masks: bool for an element, a vector of integers that are 0 or -1 for a vector --------------------------------

template <class T> STAX_INLINE T select(bool condition, T a, T b) { return condition ? a : b; }
template <class T> STAX_INLINE T select(int condition, T a, T b) { return condition ? a : b; }  // bool & bool is an int
template <class M, class V> STAX_INLINE V select(M condition, V a, V b) {
    return __builtin_convertvector(condition, int_like<V>) ? a : b;
}
// Brings the mask of a comparison to the mask type of the kernel.
template <class M, class N> STAX_INLINE M as_mask(N condition) {
    if constexpr (is_scalar<M>) return condition;
    else if constexpr (is_scalar<N>) return splat<M>((element_of<M>)(condition ? -1 : 0));
    else return __builtin_convertvector(condition, M);
}
// The mask type of a comparison of two V.
template <class V, bool scalar = is_scalar<V>> struct mask_type { using type = int_like<V>; };
template <class V> struct mask_type<V, true> { using type = bool; };
template <class V> using mask_of = typename mask_type<V>::type;

template <class M> STAX_INLINE M mask_not(M x) {
    if constexpr (is_scalar<M>) return !x;
    else return ~x;
}
template <class M> STAX_INLINE bool any(M mask) {
    if constexpr (is_scalar<M>) return mask;
    else if constexpr (sizeof(M) <= 8) {
        typename integer<sizeof(M)>::u word;
        __builtin_memcpy(&word, &mask, sizeof(M));
        return word != 0;
    } else {
        using W = Vec<u64, sizeof(M) / 8>;
        W words = bits<W>(mask);
        u64 all = 0;
        for (int k = 0; k < lanes_of<W>; ++k) all |= words[k];
        return all != 0;
    }
}

// ---- Which lanes take part -----------------------------------------------------------------------------------------

struct AllLanes {
    static constexpr bool active(int) { return true; }
};
constexpr AllLanes all_lanes{};
template <int n> struct FirstLanes {  // the tail of a loop whose length is no multiple of the lanes
    static constexpr bool active(int k) { return k < n; }
};
template <int n> constexpr FirstLanes<n> first{};
template <class M> struct MaskLanes {  // a condition known at run time
    M mask;
    bool active(int k) const {
        if constexpr (is_scalar<M>) return mask;
        else return mask[k] != 0;
    }
};
template <class M> STAX_INLINE MaskLanes<M> both(AllLanes, M mask) { return {mask}; }
template <int n, class M> STAX_INLINE MaskLanes<M> both(FirstLanes<n>, M mask) {
    return {mask & (iota<M>() < splat<M>((element_of<M>)n))};
}
template <class M> STAX_INLINE MaskLanes<M> both(MaskLanes<M> lanes, M mask) { return {lanes.mask & mask}; }

// A number known to the compiler, as an argument: the size of a block that stays in registers.
template <int n> struct Count { static constexpr int value = n; };
template <int n> constexpr Count<n> count{};

// Lanes that take part get `a`, the others keep `b`: how a tail leaves an accumulator alone.
template <class V> STAX_INLINE V keep(AllLanes, V a, V) { return a; }
template <int n, class V> STAX_INLINE V keep(FirstLanes<n>, V a, V b) {
    using M = int_like<V>;
    return (iota<M>() < splat<M>((element_of<M>)n)) ? a : b;
}

// ---- Numbers in memory: what is stored, and what it is computed as ---------------------------------------------------

template <class S> struct memory { using raw = S; using value = S; };
template <> struct memory<bf16> { using raw = u16; using value = f32; };
template <> struct memory<f16> { using raw = u16; using value = f32; };
template <> struct memory<boolean> { using raw = u8; using value = bool; };

// bfloat16 is the upper half of a float32: rounding to nearest even adds half an ulp, less one if the kept part is even.
template <class V> STAX_INLINE V round_bf16(V x) {
    using U = uint_like<V>;
    U b = bits<U>(x);
    U rounded = (b + (U)(0x7fffu + ((b >> 16) & 1u))) & 0xffff0000u;
    U quiet = (b | 0x00400000u) & 0xffff0000u;
    return select(x != x, bits<V>(quiet), bits<V>(rounded));
}
template <class U, class V> STAX_INLINE U narrow_bf16(V x) {
    auto b = bits<uint_like<V>>(round_bf16(x)) >> 16;
    if constexpr (is_scalar<V>) return (U)b;
    else return __builtin_convertvector(b, U);
}
template <class V, class U> STAX_INLINE V widen_bf16(U h) {
    using W = uint_like<V>;
    if constexpr (is_scalar<V>) return bits<V>((u32)h << 16);
    else return bits<V>(__builtin_convertvector(h, W) << 16);
}
// float16 by integer arithmetic (valid on every machine), or the conversion instructions where they exist.
template <class V, class U> STAX_INLINE V widen_f16(U h) {
#if defined(__F16C__)
    if constexpr (sizeof(V) == 64) { V v; __asm__("vcvtph2ps %1, %0" : "=v"(v) : "v"(h)); return v; }
    if constexpr (sizeof(V) == 32) { V v; __asm__("vcvtph2ps %1, %0" : "=x"(v) : "x"(h)); return v; }
#endif
    using W = uint_like<V>;
    W w;
    if constexpr (is_scalar<V>) w = h;
    else w = __builtin_convertvector(h, W);
    W sign = (w & 0x8000u) << 16, magnitude = (w & 0x7fffu) << 13;
    // Subnormals: scale by 2^112 in float arithmetic, which normalises them exactly.
    V scaled = bits<V>(magnitude) * splat<V>(0x1p112f);
    W special = magnitude | 0x7f800000u;  // infinity and NaN keep their payload
    V value = select(bits<int_like<V>>(magnitude) >= 0x0f800000, bits<V>(special), scaled);
    return bits<V>(bits<W>(value) | sign);
}
template <class U, class V> STAX_INLINE U narrow_f16(V x) {
#if defined(__F16C__)
    if constexpr (sizeof(V) == 64) { U u; __asm__("vcvtps2ph $0, %1, %0" : "=v"(u) : "v"(x)); return u; }
    if constexpr (sizeof(V) == 32) { U u; __asm__("vcvtps2ph $0, %1, %0" : "=x"(u) : "x"(x)); return u; }
#endif
    using W = uint_like<V>;
    using I = int_like<V>;
    W b = bits<W>(x), sign = (b >> 16) & 0x8000u, a = b & 0x7fffffffu;
    // Normal results: rebias the exponent and round to nearest even on the 13 dropped bits.
    W normal = (a + (W)(0xc8000fffu + ((a >> 13) & 1u))) >> 13;
    // Subnormal results: adding 0.5 aligns the last kept bit with the last bit of a float32 in [0.5, 1).
    W subnormal = bits<W>(bits<V>(a) + splat<V>(0.5f)) - 0x3f000000u;
    W infinite = a - a + 0x7c00u, nan = 0x7e00u | ((a >> 13) & 0x3ffu);
    I s = bits<I>(a);
    W h = select(s < 0x38800000, subnormal, normal);
    h = select(s >= 0x47800000, infinite, h);
    h = select(s > 0x7f800000, nan, h) | sign;
    if constexpr (is_scalar<V>) return (U)h;
    else return __builtin_convertvector(h, U);
}
template <class V> STAX_INLINE V round_f16(V x) {
    using U = Vec<u16, lanes_of<V>>;
    return widen_f16<V>(narrow_f16<U>(x));
}

// Raw memory contents to the value they stand for (V: a vector or an element), and back.
template <class V, class S, class R> STAX_INLINE V widen(R raw) {
    if constexpr (__is_same(S, bf16)) return widen_bf16<V>(raw);
    else if constexpr (__is_same(S, f16)) return widen_f16<V>(raw);
    else if constexpr (__is_same(S, boolean)) {
        if constexpr (is_scalar<V>) return raw != 0;
        else return as_mask<V>(raw != 0);
    } else return raw;
}
template <class R, class S, class V> STAX_INLINE R narrow(V x) {
    if constexpr (__is_same(S, bf16)) return narrow_bf16<R>(x);
    else if constexpr (__is_same(S, f16)) return narrow_f16<R>(x);
    else if constexpr (__is_same(S, boolean)) {
        if constexpr (is_scalar<V>) return x ? 1 : 0;
        else return __builtin_convertvector(x, R) & (R)(splat<R>(1));
    } else return x;
}

// ---- Loads and stores ------------------------------------------------------------------------------------------------

template <class S> STAX_INLINE typename memory<S>::value load(const S* p) {  // one element
    return widen<typename memory<S>::value, S>(*(const typename memory<S>::raw*)p);
}
template <class S, class T> STAX_INLINE void store(S* p, T x) {
    *(typename memory<S>::raw*)p = narrow<typename memory<S>::raw, S>(x);
}

// Sanitizers check what the compiler knows to be a load or a store, and of an asm statement it knows nothing. In a checked
// build each of the lanes that an instruction touches is therefore touched by C++ first.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STAX_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STAX_SANITIZED 1
#endif
#endif
template <class R, class P> STAX_INLINE void check_load(const P* p, u64 lanes) {
#ifdef STAX_SANITIZED
    for (int l = 0; l < lanes_of<R>; ++l)
        if (lanes >> l & 1) (void)*((const volatile element_of<R>*)p + l);
#endif
}
template <class R, class P> STAX_INLINE void check_store(P* p, R r, u64 lanes) {
#ifdef STAX_SANITIZED
    for (int l = 0; l < lanes_of<R>; ++l)
        if (lanes >> l & 1) *((volatile element_of<R>*)p + l) = r[l];
#endif
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
// Masked moves: lanes that do not take part touch no memory.
template <class M> STAX_INLINE u64 lane_bits(MaskLanes<M> lanes) {
    u64 k = 0;
    constexpr int size = sizeof(element_of<M>);
    if constexpr (sizeof(M) < 16) { for (int l = 0; l < lanes_of<M>; ++l) k |= (u64)(lanes.mask[l] != 0) << l; }
    else if constexpr (size == 8) __asm__("vpmovq2m %1, %0" : "=Yk"(k) : "v"(lanes.mask));
    else if constexpr (size == 4) __asm__("vpmovd2m %1, %0" : "=Yk"(k) : "v"(lanes.mask));
    else if constexpr (size == 2) __asm__("vpmovw2m %1, %0" : "=Yk"(k) : "v"(lanes.mask));
    else __asm__("vpmovb2m %1, %0" : "=Yk"(k) : "v"(lanes.mask));
    return k;
}
template <int n> STAX_INLINE u64 lane_bits(FirstLanes<n>) { return n >= 64 ? ~0ull : (1ull << (n % 64)) - 1; }
#define STAX_MASKED_MOVES 1
template <class R, class P, class K> STAX_INLINE R masked_load(const P* p, K lanes) {
    R r;
    u64 k = lane_bits(lanes);
    check_load<R>(p, k);
    const char (&m)[sizeof(R)] = *(const char (*)[sizeof(R)])p;
    constexpr int size = sizeof(element_of<R>);
    if constexpr (size == 8) __asm__("vmovdqu64 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(m), "Yk"(k));
    else if constexpr (size == 4) __asm__("vmovdqu32 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(m), "Yk"(k));
    else if constexpr (size == 2) __asm__("vmovdqu16 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(m), "Yk"(k));
    else __asm__("vmovdqu8 %1, %0%{%2%}%{z%}" : "=v"(r) : "m"(m), "Yk"(k));
    return r;
}
template <class R, class P, class K> STAX_INLINE void masked_store(P* p, R r, K lanes) {
    u64 k = lane_bits(lanes);
    check_store(p, r, k);
    char (&m)[sizeof(R)] = *(char (*)[sizeof(R)])p;
    constexpr int size = sizeof(element_of<R>);
    if constexpr (size == 8) __asm__("vmovdqu64 %1, %0%{%2%}" : "+m"(m) : "v"(r), "Yk"(k));
    else if constexpr (size == 4) __asm__("vmovdqu32 %1, %0%{%2%}" : "+m"(m) : "v"(r), "Yk"(k));
    else if constexpr (size == 2) __asm__("vmovdqu16 %1, %0%{%2%}" : "+m"(m) : "v"(r), "Yk"(k));
    else __asm__("vmovdqu8 %1, %0%{%2%}" : "+m"(m) : "v"(r), "Yk"(k));
}
#endif

// R: the vector of raw memory contents. Lanes that do not take part read as 0.
template <class R, class P> STAX_INLINE R raw_load(const P* p, AllLanes) {
    R r;
    __builtin_memcpy(&r, p, sizeof(R));
    return r;
}
template <class R, class P, int n> STAX_INLINE R raw_load(const P* p, FirstLanes<n> lanes) {
#ifdef STAX_MASKED_MOVES
    if constexpr (sizeof(R) >= 16) return masked_load<R>(p, lanes);
#endif
    R r{};
    __builtin_memcpy(&r, p, n * sizeof(element_of<R>));
    return r;
}
template <class R, class P, class M> STAX_INLINE R raw_load(const P* p, MaskLanes<M> lanes) {
#ifdef STAX_MASKED_MOVES
    if constexpr (sizeof(R) >= 16 && sizeof(R) <= 64) return masked_load<R>(p, lanes);
#endif
    R r{};
    for (int k = 0; k < lanes_of<R>; ++k)
        if (lanes.active(k)) r[k] = ((const element_of<R>*)p)[k];
    return r;
}
template <class R, class P> STAX_INLINE void raw_store(P* p, R r, AllLanes) { __builtin_memcpy(p, &r, sizeof(R)); }
template <class R, class P, int n> STAX_INLINE void raw_store(P* p, R r, FirstLanes<n> lanes) {
#ifdef STAX_MASKED_MOVES
    if constexpr (sizeof(R) >= 16) return masked_store<R>(p, r, lanes);
#endif
    __builtin_memcpy(p, &r, n * sizeof(element_of<R>));
}

// V: the vector of values; consecutive elements from p on.
template <class V, class S, class K = AllLanes> STAX_INLINE V load(const S* p, K lanes = {}) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    return widen<V, S>(raw_load<R>(p, lanes));
}
template <class S, class V, class K = AllLanes> STAX_INLINE void store_vector(S* p, V x, K lanes = {}) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    raw_store<R>(p, narrow<R, S>(x), lanes);
}
// A store that bypasses the caches if `past` says so: for large outputs that are not read again soon. p is aligned to
// `aligned` lanes, which are stored at a time. Vectors cut off at the end of a row are stored as usual.
template <class R> STAX_INLINE void raw_stream(void* p, R r) {
    __asm__ volatile("vmovntps %1, %0" : "=m"(*(R*)p) : "v"(r));
}
template <bool past, int aligned, class S, class V, class K> STAX_INLINE void stream(S* p, V x, K lanes) {
    store_vector(p, x, lanes);
}
template <bool past, int aligned, class S, class V> STAX_INLINE void stream(S* p, V x, AllLanes lanes = {}) {
    if constexpr (!past) return store_vector(p, x, lanes);
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    R r = narrow<R, S>(x);
#if defined(__AVX512F__) || defined(__AVX2__)
    constexpr int lines = lanes_of<V> / aligned, bytes = sizeof(R) / lines;
    if constexpr (bytes >= 16) {
        check_store(p, r, ~0ull);
        if constexpr (lines == 1) {
            raw_stream(p, r);
        } else {
            Vec<typename memory<S>::raw, aligned> part[lines];
            __builtin_memcpy(part, &r, sizeof r);
            for (int k = 0; k < lines; ++k) raw_stream((char*)p + k * bytes, part[k]);
        }
        return;
    }
#endif
    raw_store<R>(p, r, all_lanes);
}
// Such stores may become visible late. Other threads wait for each other at the end of a parallel loop, which orders
// them; the calling thread does so here.
template <bool past> STAX_INLINE void streamed() {
#if defined(__AVX512F__) || defined(__AVX2__)
    if constexpr (past) __builtin_ia32_sfence();
#endif
}

// Lane j of the result is lane from(j) of a and b put end to end. Always a constant pattern: one instruction.
template <class V, class F> STAX_INLINE V pick(V a, V b, F from) {
    constexpr int L = lanes_of<V>;
#ifdef __clang__
    V r;
    for (int j = 0; j < L; ++j) r[j] = from(j) < L ? a[from(j)] : b[from(j) - L];
    return r;
#else
    int_like<V> pattern{};
#pragma GCC unroll 64
    for (int j = 0; j < L; ++j) pattern[j] = from(j);
    return __builtin_shuffle(a, b, pattern);
#endif
}
template <class V> STAX_INLINE V reverse(V v) {
    return pick(v, v, [](int j) { return lanes_of<V> - 1 - j; });
}
// Elements p[0], p[-1], p[-2], ...: a flipped dimension.
template <class V, class S> STAX_INLINE V load_reversed(const S* p, AllLanes = {}) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    return widen<V, S>(reverse(raw_load<R>(p - (lanes_of<V> - 1), all_lanes)));
}
// Elements p[0], p[2], p[4], ...: two loads, the second ending with the last element that is needed.
template <class V, class S> STAX_INLINE V load_every_second(const S* p, AllLanes = {}) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    constexpr int L = lanes_of<V>;
    R a = raw_load<R>(p, all_lanes), b = raw_load<R>(p + L - 1, all_lanes);
    return widen<V, S>(pick(a, b, [](int k) { return 2 * k < L ? 2 * k : 2 * k + 1; }));
}
// Elements at address(0), address(1), ...: strided and indirect reads, one lane at a time.
template <class V, class S, class F, class K> STAX_INLINE V gather(const S* p, F address, K lanes) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    element_of<R> lane[lanes_of<V>];
#pragma GCC unroll 64
    for (int k = 0; k < lanes_of<V>; ++k)
        lane[k] = lanes.active(k) ? *(const element_of<R>*)(p + address(k)) : (element_of<R>)0;
    R r;
    __builtin_memcpy(&r, lane, sizeof(R));
    return widen<V, S>(r);
}
template <class V, class S, class K> STAX_INLINE V load_reversed(const S* p, K lanes) {
    return gather<V>(p, [](int k) { return -(i64)k; }, lanes);
}
template <class V, class S, class K> STAX_INLINE V load_every_second(const S* p, K lanes) {
    return gather<V>(p, [](int k) { return 2 * (i64)k; }, lanes);
}
template <class S, class F, class V, class K> STAX_INLINE void scatter(S* p, F address, V x, K lanes) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    R r = narrow<R, S>(x);
#pragma GCC unroll 64
    for (int k = 0; k < lanes_of<V>; ++k)
        if (lanes.active(k)) *(element_of<R>*)(p + address(k)) = r[k];
}
// What a scatter does to memory: an element, a vector of neighbours, or lane after lane, which may hit one element twice.
template <class S, class T, class M> STAX_INLINE void combine(S* p, T x, M merge) { store(p, merge(load(p), x)); }
template <class S, class V, class K, class M> STAX_INLINE void combine_vector(S* p, V x, K lanes, M merge) {
    store_vector(p, merge(load<V>(p, lanes), x), lanes);
}
template <class S, class F, class V, class K, class M>
STAX_INLINE void combine_lanes(S* p, F address, V x, K lanes, M merge) {
    element_of<V> lane[lanes_of<V>];
    __builtin_memcpy(lane, &x, sizeof(V));
#pragma GCC unroll 16
    for (int k = 0; k < lanes_of<V>; ++k)
        if (lanes.active(k)) combine(p + address(k), (typename memory<S>::value)lane[k], merge);
}
template <class S, class F, class V, class N, class M>
STAX_INLINE void combine_lanes(S* p, F address, V x, MaskLanes<N> lanes, M merge) {
    if (!any(mask_not(lanes.mask))) return combine_lanes(p, address, x, all_lanes, merge);  // as good as always
    for (int k = 0; k < lanes_of<V>; ++k)
        if (lanes.active(k)) combine(p + address(k), (typename memory<S>::value)x[k], merge);
}
// A square of elements turned over in registers: afterwards v[i] holds what was element i of every vector. Each round
// exchanges the off-diagonal blocks of pairs of vectors that are `half` apart, halving the blocks every time.
template <int half, class V> STAX_INLINE void turn(V* v) {
    constexpr int L = lanes_of<V>;
    if constexpr (half > 0) {
#pragma GCC unroll 64
        for (int i = 0; i < L; ++i) {
            if (i & half) continue;
            V a = v[i], b = v[i + half];
            v[i] = pick(a, b, [](int j) { return j & half ? L + j - half : j; });
            v[i + half] = pick(a, b, [](int j) { return j & half ? L + j : j + half; });
        }
        turn<half / 2>(v);
    }
}
// Reads `lanes` rows of memory `step` elements apart, `rows` elements of each, and turns them over.
template <class V, class S, class A, class B> STAX_INLINE void load_turned(V* out, const S* p, i64 step, A rows, B lanes) {
    using R = Vec<typename memory<S>::raw, lanes_of<V>>;
    R raw[lanes_of<V>];
#pragma GCC unroll 64
    for (int k = 0; k < lanes_of<V>; ++k) raw[k] = lanes.active(k) ? raw_load<R>(p + k * step, rows) : R{};
    turn<lanes_of<V> / 2>(raw);
#pragma GCC unroll 64
    for (int k = 0; k < lanes_of<V>; ++k) out[k] = widen<V, S>(raw[k]);
}
// A vector made lane by lane: subscripts that are no straight line.
template <class V, class F> STAX_INLINE V per_lane(F f) {
    V v;
#pragma GCC unroll 64
    for (int k = 0; k < lanes_of<V>; ++k) v[k] = (element_of<V>)f(k);
    return v;
}

// ---- Conversions, as PyTorch makes them ------------------------------------------------------------------------------

// What a number outside the integers' range becomes is for the machine to say, as it is in eager execution: C++ does not
// define it, and a compiler that knows the number beforehand says something else. So it is not to know.
template <class V> STAX_INLINE V unforeseen(V x) {
#if defined(__AVX512F__)
    constexpr int widest = 64;
#elif defined(__AVX__)
    constexpr int widest = 32;
#else
    constexpr int widest = 16;
#endif
#if defined(__x86_64__)
    if constexpr (sizeof(V) <= widest) __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    if constexpr (sizeof(V) <= widest) __asm__("" : "+w"(x));
#else
    if constexpr (false) ;
#endif
    else __asm__("" : "+m"(x));
    return x;
}
template <class V, class W> STAX_INLINE V convert(W given) {
    using T = element_of<V>;
    using F = element_of<W>;
    constexpr bool to_integer = is_float<F> && !is_float<T> && !__is_same(T, bool);
    W x = given;
    if constexpr (to_integer) x = unforeseen(given);
    // Narrow integers wrap: int8 and int16 what is left of an int32, uint8 of an int64.
    constexpr bool wraps = to_integer && sizeof(T) < 4;
    using I = typename integer<__is_same(T, u8) && sizeof(F) == 8 ? 8 : 4>::s;
    if constexpr (is_scalar<V>) {
        if constexpr (__is_same(T, bool)) return x != 0;
        else if constexpr (wraps) return (T)(I)x;
        else return (T)x;
    } else {
        if constexpr (wraps)
            return __builtin_convertvector(__builtin_convertvector(x, Vec<I, lanes_of<V>>), V);
        else return __builtin_convertvector(x, V);
    }
}
template <class V, class M> STAX_INLINE V from_mask(M mask) {  // true is 1
    if constexpr (is_scalar<M>) return splat<V>((element_of<V>)(mask ? 1 : 0));
    else return select(mask, splat<V>((element_of<V>)1), V{});
}
}  // namespace stax
