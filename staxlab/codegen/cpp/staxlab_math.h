// Elementary operations on vectors and elements, with the semantics of PyTorch's own kernels (Section 8.1).
//
// V is a vector, a float, a double or an integer. Functions that need a vector library (sin, log...) are not here, save
// for exp: generated code calls SLEEF's, which libtorch_cpu carries, or the C library's for single elements.
#pragma once
#include "staxlab_simd.h"

namespace stax {

template <class V> STAX_INLINE auto is_nan(V x) { return x != x; }
template <class V> STAX_INLINE V one() { return splat<V>((element_of<V>)1); }

template <class V> STAX_INLINE V abs(V x) {
    if constexpr (is_float<element_of<V>>) {
        using U = uint_like<V>;
        return bits<V>(bits<U>(x) & splat<U>((element_of<U>)(~(element_of<U>)0 >> 1)));
    } else return select(x < V{}, (V)(-x), x);
}
template <class V> STAX_INLINE auto is_inf(V x) { return abs(x) == splat<V>((element_of<V>)__builtin_inff()); }
template <class V> STAX_INLINE V sign(V x) {
    return select(x > V{}, one<V>(), select(x < V{}, (V)(V{} - one<V>()), V{}));
}
template <class V> STAX_INLINE V copysign(V x, V y) {
    using U = uint_like<V>;
    const U sign_bit = splat<U>((element_of<U>)((element_of<U>)1 << (sizeof(element_of<U>) * 8 - 1)));
    return bits<V>((bits<U>(x) & ~sign_bit) | (bits<U>(y) & sign_bit));
}

// Comparisons with NaN are false, which decides what each of these returns for one.
template <class V> STAX_INLINE V relu(V x) { return select(V{} > x, V{}, x); }
template <class V> STAX_INLINE V maximum(V x, V y) {
    if constexpr (is_float<element_of<V>>) return select(is_nan(x), x, select(x > y, x, y));
    else return select(x > y, x, y);
}
template <class V> STAX_INLINE V minimum(V x, V y) {
    if constexpr (is_float<element_of<V>>) return select(is_nan(x), x, select(x < y, x, y));
    else return select(x < y, x, y);
}
template <class V> STAX_INLINE V fmax(V x, V y) {
    if constexpr (is_float<element_of<V>>) return select(is_nan(y), x, select(x > y, x, y));
    else return select(x > y, x, y);
}
template <class V> STAX_INLINE V fmin(V x, V y) {
    if constexpr (is_float<element_of<V>>) return select(is_nan(y), x, select(x < y, x, y));
    else return select(x < y, x, y);
}

// ---- Square root and rounding: one instruction each, which the vector extensions do not name -----------------------

template <class V, class F> STAX_INLINE V lanewise(V x, F f) {
    element_of<V> lane[lanes_of<V>];
    __builtin_memcpy(lane, &x, sizeof(V));
    for (int k = 0; k < lanes_of<V>; ++k) lane[k] = f(lane[k]);
    __builtin_memcpy(&x, lane, sizeof(V));
    return x;
}
template <class V, class F> STAX_INLINE V lanewise(V x, V y, F f) {
    element_of<V> a[lanes_of<V>], b[lanes_of<V>];
    __builtin_memcpy(a, &x, sizeof(V));
    __builtin_memcpy(b, &y, sizeof(V));
    for (int k = 0; k < lanes_of<V>; ++k) a[k] = f(a[k], b[k]);
    __builtin_memcpy(&x, a, sizeof(V));
    return x;
}

#if defined(__AVX512F__)
#define STAX_ROUNDING "vrndscale"
#elif defined(__AVX2__)
#define STAX_ROUNDING "vround"
#endif

#ifdef STAX_ROUNDING
#define STAX_UNARY(name, instruction32, instruction64, fallback32, fallback64)                       \
    template <class V> STAX_INLINE V name(V x) {                                                     \
        using T = element_of<V>;                                                                     \
        if constexpr (!is_float<T>) return x;                                                        \
        else if constexpr (sizeof(V) >= 16) {                                                        \
            V y;                                                                                     \
            if constexpr (sizeof(T) == 4) __asm__(instruction32 : "=v"(y) : "v"(x));                 \
            else __asm__(instruction64 : "=v"(y) : "v"(x));                                          \
            return y;                                                                                \
        } else return lanewise(x, [](T t) { return sizeof(T) == 4 ? (T)fallback32 : (T)fallback64; }); \
    }
#else
#define STAX_UNARY(name, instruction32, instruction64, fallback32, fallback64)                       \
    template <class V> STAX_INLINE V name(V x) {                                                     \
        using T = element_of<V>;                                                                     \
        if constexpr (!is_float<T>) return x;                                                        \
        else return lanewise(x, [](T t) { return sizeof(T) == 4 ? (T)fallback32 : (T)fallback64; }); \
    }
#endif
STAX_UNARY(sqrt, "vsqrtps %1, %0", "vsqrtpd %1, %0", __builtin_sqrtf((f32)t), __builtin_sqrt(t))
STAX_UNARY(round, STAX_ROUNDING "ps $8, %1, %0", STAX_ROUNDING "pd $8, %1, %0",
           __builtin_rintf((f32)t), __builtin_rint(t))
STAX_UNARY(floor, STAX_ROUNDING "ps $9, %1, %0", STAX_ROUNDING "pd $9, %1, %0",
           __builtin_floorf((f32)t), __builtin_floor(t))
STAX_UNARY(ceil, STAX_ROUNDING "ps $10, %1, %0", STAX_ROUNDING "pd $10, %1, %0",
           __builtin_ceilf((f32)t), __builtin_ceil(t))
STAX_UNARY(trunc, STAX_ROUNDING "ps $11, %1, %0", STAX_ROUNDING "pd $11, %1, %0",
           __builtin_truncf((f32)t), __builtin_trunc(t))

// ---- Division ----------------------------------------------------------------------------------------------------------

// Integers have no vector division. Lanes that do not take part may hold a divisor of 0, and the least number divided
// by -1 traps, so both are divided by something harmless.
template <class V> STAX_INLINE V truncdiv(V x, V y) {
    using T = element_of<V>;
    return lanewise(x, y, [](T a, T b) -> T {
        if (b == 0) return 0;
        if ((T)-1 < (T)0 && b == (T)-1) return (T)(0 - (u64)a);
        return (T)(a / b);
    });
}
template <class V> STAX_INLINE V int_fmod(V x, V y) {
    using T = element_of<V>;
    return lanewise(x, y, [](T a, T b) -> T {
        if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
        return (T)(a % b);
    });
}
template <class V> STAX_INLINE V int_remainder(V x, V y) {
    V r = int_fmod(x, y);
    return select((r != V{}) & ((r < V{}) != (y < V{})), (V)(r + y), r);
}
template <class V> STAX_INLINE V int_floordiv(V x, V y) {
    V r = int_fmod(x, y), q = truncdiv(x, y);
    return select((r != V{}) & ((r < V{}) != (y < V{})), (V)(q - one<V>()), q);
}
// `f` is the C remainder fmod(x, y).
template <class V> STAX_INLINE V float_remainder(V f, V y) {
    auto differ = (f < V{}) != (y < V{});
    return select((f != V{}) & differ, (V)(f + y), f);
}
template <class V> STAX_INLINE V float_floordiv(V x, V y, V f) {
    V q = (x - f) / y;
    q = select((f != V{}) & ((f < V{}) != (y < V{})), (V)(q - one<V>()), q);
    V whole = floor(q);
    whole = select(q - whole > splat<V>((element_of<V>)0.5), (V)(whole + one<V>()), whole);
    V result = select(q != V{}, whole, copysign(V{}, (V)(x / y)));
    return select(y == V{}, (V)(x / y), result);
}

// ---- The exponential function ------------------------------------------------------------------------------------------
//
// Every lane of a softmax, a sigmoid or a gelu is an exponential, and a call to a vector library costs more than the
// fifteen instructions it runs: registers are saved, constants loaded anew, and neighbouring vectors wait for each other.
// This is the method of SLEEF's expf with 1.0 ulp (Shibata and Petrogalli, 2020), whose results it has bit for bit: with
// q the nearest integer to x/ln 2 and s = x - q ln 2, ln 2 in two parts, e^x = 2^q (1 + s + s^2 P(s)).

#if defined(__AVX512VL__) || (defined(__AVX2__) && defined(__FMA__))
#define STAX_EXP 1
// a*b + c, rounded once
template <class V> STAX_INLINE V fused_multiply_add(V a, V b, V c) {
    __asm__("vfmadd213ps %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
    return a;
}
// The larger and the smaller of a bound and x; x where that is NaN.
template <class V> STAX_INLINE V at_least(V bound, V x) {
    V r;
    __asm__("vmaxps %2, %1, %0" : "=v"(r) : "v"(bound), "v"(x));
    return r;
}
template <class V> STAX_INLINE V at_most(V bound, V x) {
    V r;
    __asm__("vminps %2, %1, %0" : "=v"(r) : "v"(bound), "v"(x));
    return r;
}
// u * 2^q for a whole q of at most 151 in magnitude, rounded once.
template <class V> STAX_INLINE V scale_by_power(V u, V q) {
#if defined(__AVX512VL__)
    V r;
    __asm__("vscalefps %2, %1, %0" : "=v"(r) : "v"(u), "v"(q));
    return r;
#else
    using I = Vec<i32, lanes_of<V>>;
    const I whole = __builtin_convertvector(q, I), half = whole >> 1, rest = whole - half;
    return u * (V)((half + 127) << 23) * (V)((rest + 127) << 23);
#endif
}
template <class V> STAX_INLINE V exp(V x) {
    static_assert(sizeof(element_of<V>) == 4);
    const V clamped = at_most(splat<V>(104.0f), at_least(splat<V>(-104.0f), x));  // beyond, the result is inf or 0
    const V q = round(clamped * 1.44269504088896340736f);
    V s = fused_multiply_add(q, splat<V>(-0.693145751953125f), clamped);
    s = fused_multiply_add(q, splat<V>(-1.428606765330187045e-06f), s);
    V u = splat<V>(0.000198527617612853646278381f);
    u = fused_multiply_add(u, s, splat<V>(0.00139304355252534151077271f));
    u = fused_multiply_add(u, s, splat<V>(0.00833336077630519866943359f));
    u = fused_multiply_add(u, s, splat<V>(0.0416664853692054748535156f));
    u = fused_multiply_add(u, s, splat<V>(0.166666671633720397949219f));
    u = fused_multiply_add(u, s, splat<V>(0.5f));
    u = one<V>() + fused_multiply_add(s * s, u, s);
    return scale_by_power(u, q);
}
#endif

// ---- Where SLEEF's functions stop short --------------------------------------------------------------------------------
//
// Each is computed the usual way first. `other` computes the vector anew, and runs only if some lane needs it.

template <class V> constexpr bool is_single = sizeof(element_of<V>) == 4;
template <class V> STAX_INLINE V bound(double single, double twice) {
    return splat<V>((element_of<V>)(is_single<V> ? single : twice));
}
template <class M, class V, class F> STAX_INLINE V mend(M lost, V usual, F other) {
    return any(lost) ? select(lost, other(), usual) : usual;
}

// The inverse hyperbolic functions square their operand, which overflows; there, log(2|x|) is the exact result.
template <class V, class F> STAX_INLINE V large_acosh(V x, V usual, F log) {
    const V log2 = splat<V>((element_of<V>)0x1.62e42fefa39efp-1);
    return mend(x > bound<V>(0x1p60, 0x1p500), usual, [&] { return (V)(log() + log2); });
}
template <class V, class F> STAX_INLINE V large_asinh(V x, V usual, F log) {
    return copysign(large_acosh(abs(x), abs(usual), log), x);
}
// sinh and cosh overflow before their results do; e^|x|/2 is (e^(|x|/2) / 2) e^(|x|/2).
template <class V, class F> STAX_INLINE V large_cosh(V x, V usual, F root) {
    return mend(abs(x) > bound<V>(88, 709), usual, [&] {
        const V half = root();
        return (V)(half * splat<V>((element_of<V>)0.5) * half);
    });
}
template <class V, class F> STAX_INLINE V large_sinh(V x, V usual, F root) {
    return copysign(large_cosh(x, abs(usual), root), x);
}
// So does lgamma; far out it is x (log(x) - 1), the other terms of Stirling's series being less than half a unit.
template <class V, class F> STAX_INLINE V large_lgamma(V x, V usual, F log) {
    return mend(x > bound<V>(0x1p100, 0x1p1000), usual, [&] { return (V)(x * (log() - one<V>())); });
}
// fmod is NaN for subnormal divisors and where the quotient overflows. The C library's is exact.
template <class V> STAX_INLINE V whole_fmod(V x, V y, V usual) {
    auto lost = is_nan(usual) & (abs(x) < splat<V>((element_of<V>)__builtin_inff())) & (abs(y) > V{});
    return mend(lost, usual, [&] {
        return lanewise(x, y, [](element_of<V> a, element_of<V> b) {
            return is_single<V> ? (element_of<V>)__builtin_fmodf((f32)a, (f32)b) : (element_of<V>)__builtin_fmod(a, b);
        });
    });
}
// Near 0, tanh(x) = x - x^3/3 and log1p(x) = x - x^2/2 round to x, and are off by a unit otherwise: a whole result for
// x - tanh(x) and for log1p of a subnormal number.
template <class V> STAX_INLINE V small_tanh(V x, V usual) {
    return select(abs(x) < bound<V>(0x1p-12, 0x1p-27), x, usual);
}
template <class V> STAX_INLINE V small_log1p(V x, V usual) {
    return select(abs(x) < bound<V>(0x1p-25, 0x1p-54), x, usual);
}

// `e` is exp(-|x|), which does not overflow where 1 / (1 + exp(-x)) is still a number.
template <class V> STAX_INLINE V sigmoid(V x, V e) { return select(x < V{}, e, one<V>()) / (one<V>() + e); }

// ---- Integers ----------------------------------------------------------------------------------------------------------

template <class V> STAX_INLINE V int_pow(V x, V y) {
    using T = element_of<V>;
    return lanewise(x, y, [](T a, T n) -> T {
        if (n < (T)0) return a == (T)1 ? (T)1 : a == (T)-1 ? (T)(n % 2 ? -1 : 1) : (T)0;
        u64 result = 1, base = (u64)a;
        for (; n; n = (T)(n / 2)) {
            if (n % 2) result *= base;
            base *= base;
        }
        return (T)result;
    });
}
// Shifts by a negative amount or by the width and more move everything out.
template <class V> STAX_INLINE V shift_left(V x, V y) {
    constexpr int width = sizeof(element_of<V>) * 8;
    const V most = splat<V>((element_of<V>)(width - 1));
    using U = uint_like<V>;
    V inside = select(bits<U>(y) > bits<U>(most), V{}, y);
    return select(bits<U>(y) > bits<U>(most), V{}, (V)(x << inside));
}
template <class V> STAX_INLINE V shift_right(V x, V y) {
    constexpr int width = sizeof(element_of<V>) * 8;
    const V most = splat<V>((element_of<V>)(width - 1));
    using U = uint_like<V>;
    if constexpr ((element_of<V>)-1 < (element_of<V>)0) return x >> select(bits<U>(y) > bits<U>(most), most, y);
    else return select(y > most, V{}, (V)(x >> select(y > most, V{}, y)));
}

// ---- Reductions over lanes: halves are merged until one lane is left, the same tree every time --------------------

// Half of a vector. Copying it through memory instead would keep a lone accumulator there for the whole loop.
template <int... k> struct places {};
template <int n, int... k> struct first_places : first_places<n - 1, n - 1, k...> {};
template <int... k> struct first_places<0, k...> { using type = places<k...>; };
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define STAX_SHUFFLES
#endif
#endif
template <int begin, class V, int... k> STAX_INLINE auto half_from(V v, places<k...>) {
#ifdef STAX_SHUFFLES
    return (Vec<element_of<V>, sizeof...(k)>)__builtin_shufflevector(v, v, (k + begin)...);
#else
    Vec<element_of<V>, sizeof...(k)> h;
    __builtin_memcpy(&h, (const char*)&v + begin * sizeof(element_of<V>), sizeof(h));
    return h;
#endif
}
template <int begin, class V> STAX_INLINE auto half(V v) {
    if constexpr (lanes_of<V> == 2) return (element_of<V>)v[begin];
    else return half_from<begin>(v, typename first_places<lanes_of<V> / 2>::type{});
}
template <class V> STAX_INLINE auto halves_low(V v) { return half<0>(v); }
template <class V> STAX_INLINE auto halves_high(V v) { return half<(int)lanes_of<V> / 2>(v); }
#define STAX_LANES(name, expression)                                                        \
    template <class V> STAX_INLINE element_of<V> name(V v) {                                \
        if constexpr (is_scalar<V>) return v;                                               \
        else {                                                                              \
            auto a = halves_low(v), b = halves_high(v);                                     \
            return name((decltype(a))(expression));                                         \
        }                                                                                   \
    }
STAX_LANES(sum_lanes, a + b)
STAX_LANES(prod_lanes, a * b)
STAX_LANES(amax_lanes, maximum(a, b))
STAX_LANES(amin_lanes, minimum(a, b))
template <class M> STAX_INLINE bool any_lanes(M mask) { return any(mask); }
template <class M> STAX_INLINE bool all_lanes_true(M mask) { return !any(mask_not(mask)); }

// The position of an extreme value: a pair (value, index). NaN counts as the extreme, and the smaller index wins ties.
template <bool largest, class V> STAX_INLINE mask_of<V> better(V a, V b) {  // a is strictly better than b
    mask_of<V> wins;
    if constexpr (largest) wins = a > b;
    else wins = a < b;
    // A comparison of doubles has lanes of `long`, a mask lanes of `long long`: the same bits under two names.
    if constexpr (is_float<element_of<V>>) wins = (wins | (mask_of<V>)(a != a)) & (mask_of<V>)(b == b);
    return wins;
}
template <class V, class I> struct Best {
    V value;
    I index;
};
// One more candidate whose index is larger than every index seen: it must be strictly better.
template <bool largest, class V, class I> STAX_INLINE Best<V, I> update_best(Best<V, I> best, Best<V, I> next) {
    auto take = better<largest>(next.value, best.value);
    return {select(take, next.value, best.value), select(as_mask<mask_of<I>>(take), next.index, best.index)};
}
template <int n, class V, class I> STAX_INLINE Best<V, I> keep(FirstLanes<n> lanes, Best<V, I> a, Best<V, I> b) {
    return {keep(lanes, a.value, b.value), keep(lanes, a.index, b.index)};
}
template <bool largest, class V, class I> STAX_INLINE Best<V, I> merge_best(Best<V, I> a, Best<V, I> b) {
    auto second = better<largest>(b.value, a.value), first = better<largest>(a.value, b.value);
    auto tie = mask_not(second) & mask_not(first);
    mask_of<I> take = as_mask<mask_of<I>>(second) | (as_mask<mask_of<I>>(tie) & as_mask<mask_of<I>>(b.index < a.index));
    return {select(as_mask<mask_of<V>>(take), b.value, a.value), select(take, b.index, a.index)};
}
template <bool largest, class V, class I>
STAX_INLINE Best<element_of<V>, element_of<I>> best_lane(Best<V, I> x) {
    if constexpr (is_scalar<V>) return x;
    else {
        Best<element_of<V>, element_of<I>> best{x.value[0], x.index[0]};
        for (int k = 1; k < lanes_of<V>; ++k)
            best = merge_best<largest>(best, Best<element_of<V>, element_of<I>>{x.value[k], x.index[k]});
        return best;
    }
}

template <class I, class F, class K> STAX_INLINE void store_positions(i64* p, I index, F address, K lanes) {
    for (int k = 0; k < lanes_of<I>; ++k)
        if (lanes.active(k)) p[address(k)] = index[k];
}

// ---- Scans: how the next element joins the running value -----------------------------------------------------------

// Whether `next` replaces the extreme `running`: of equal elements the later one stays, and so does NaN once it came.
template <bool largest, class V> STAX_INLINE mask_of<V> is_later_extreme(V running, V next) {
    mask_of<V> taken;
    if constexpr (largest) taken = (mask_of<V>)(next >= running);
    else taken = (mask_of<V>)(next <= running);
    if constexpr (is_float<element_of<V>>) taken = (mask_of<V>)(next != next) | (taken & (mask_of<V>)(running == running));
    return taken;
}
template <bool largest, class V> STAX_INLINE V later_extreme(V running, V next) {
    return select(is_later_extreme<largest>(running, next), next, running);
}
// log(exp(x) + exp(y)) by the formula and the functions of PyTorch's scan, which takes elements one at a time.
template <class V> STAX_INLINE V log_add_exp(V running, V next) {
    return lanewise(running, next, [](auto a, decltype(a) b) -> decltype(a) {
        if (a != a) return a;
        auto least = b < a ? b : a, greatest = b < a ? a : b;
        if (least == greatest && least - least != 0) return b;  // equal infinities
        if constexpr (sizeof(a) == 4) return __builtin_log1pf(__builtin_expf(least - greatest)) + greatest;
        else return __builtin_log1p(__builtin_exp(least - greatest)) + greatest;
    });
}

// ---- Subscripts read at run time -------------------------------------------------------------------------------------

// Negative subscripts count from the end.
template <class I> STAX_INLINE I wrap_index(I index, i64 size) {
    return select(index < I{}, (I)(index + splat<I>(size)), index);
}
template <class I> STAX_INLINE auto index_inside(I index, i64 size) { return (index >= I{}) & (index < splat<I>(size)); }
// Remembers an offending subscript for the caller, as the program had it: the check's number (from 1) and 48 bits.
STAX_INLINE i64 encode_failure(i64 index, i64 size, i64 check) {
    return (check << 48) | ((index < 0 ? index - size : index) & 0xffffffffffffll);
}
template <class I, class K> STAX_INLINE void report_index(i64& failure, I index, i64 size, i64 check, K lanes) {
    if constexpr (is_scalar<I>) {
        if (index < 0 || index >= size) failure = encode_failure(index, size, check);
    } else if (any(mask_not(index_inside(index, size)))) {
        for (int k = 0; k < lanes_of<I>; ++k)
            if (lanes.active(k) && (index[k] < 0 || index[k] >= size))
                failure = encode_failure(index[k], size, check);
    }
}

// Calls a vector function that takes more lanes (W) than there are: the rest are zeros.
template <class W, class V, class F> STAX_INLINE V call_wider(F f, V x) {
    W w{};
    __builtin_memcpy(&w, &x, sizeof(V));
    w = f(w);
    __builtin_memcpy(&x, &w, sizeof(V));
    return x;
}
template <class W, class V, class F> STAX_INLINE V call_wider(F f, V x, V y) {
    W w{}, z{};
    __builtin_memcpy(&w, &x, sizeof(V));
    __builtin_memcpy(&z, &y, sizeof(V));
    w = f(w, z);
    __builtin_memcpy(&x, &w, sizeof(V));
    return x;
}

// Brings a cache line closer that a later iteration will read.
STAX_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace stax
