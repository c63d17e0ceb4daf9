// Products of tiles of bfloat16 on a matrix unit (Intel's AMX), for attention (Section 9.10).
//
// A tile register has 16 rows of 64 bytes. One instruction adds the product of a tile of 16 x 32 numbers and one of
// 32 x 16 to a tile of 16 x 16 sums in float32. The right factor is stored by pairs: a row of it holds rows 2k and 2k+1
// of the matrix, element beside element, 32 bits for a column. So keys turned over are a transposed matrix of words.
#pragma once
#include "staxlab_attention.h"

namespace stax {

// All eight tile registers with 16 rows of 64 bytes; given back when the task ends.
struct MatrixUnit {
    inline __attribute__((always_inline)) MatrixUnit() {
        alignas(64) u8 shape[64] = {1};  // the only palette there is
        for (int t = 0; t < 8; ++t) shape[16 + 2 * t] = 64, shape[48 + t] = 16;
        __asm__ volatile("ldtilecfg %0" ::"m"(shape));
    }
    inline __attribute__((always_inline)) ~MatrixUnit() { __asm__ volatile("tilerelease" ::); }
};
template <int t> STAX_INLINE void tile_zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(t)); }
template <int t> STAX_INLINE void tile_load(const void* p, i64 bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(bytes), "i"(t) : "memory");
}
template <int t> STAX_INLINE void tile_store(void* p, i64 bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(bytes), "i"(t) : "memory");
}
template <int sum, int left, int right> STAX_INLINE void tile_multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
}

// c (16 rows of c_row numbers) = or += a (16 rows of a_row) times b (pairs of rows of b_row columns), over `depth`
// numbers, a multiple of 32. Up to four tiles of sums at a time.
template <bool onto, int tiles, i64 c_row, i64 a_row, i64 b_row>
STAX_INLINE void tile_columns(f32* c, const bf16* a, const u32* b, i64 depth) {
#define STAX_TILES(does)                   \
    does(0);                               \
    if constexpr (tiles > 1) { does(1); }  \
    if constexpr (tiles > 2) { does(2); }  \
    if constexpr (tiles > 3) { does(3); }
#define STAX_BEGIN(t) if constexpr (onto) tile_load<t>(c + 16 * t, 4 * c_row); else tile_zero<t>()
#define STAX_STEP(t) tile_load<5>(b + b_row * (k / 2) + 16 * t, 4 * b_row); tile_multiply<t, 4, 5>()
#define STAX_END(t) tile_store<t>(c + 16 * t, 4 * c_row)
    STAX_TILES(STAX_BEGIN)
    for (i64 k = 0; k < depth; k += 32) {
        tile_load<4>(a + k, 2 * a_row);
        STAX_TILES(STAX_STEP)
    }
    STAX_TILES(STAX_END)
#undef STAX_TILES
#undef STAX_BEGIN
#undef STAX_STEP
#undef STAX_END
}
template <bool onto, i64 columns, i64 c_row, i64 a_row, i64 b_row>
static __attribute__((noinline)) void tile_product(f32* c, const bf16* a, const u32* b, i64 depth) {
    constexpr i64 all = columns / 16;
    for (i64 t = 0; t + 4 <= all; t += 4)
        tile_columns<onto, 4, c_row, a_row, b_row>(c + 16 * t, a, b + 16 * t, depth);
    constexpr i64 done = all / 4 * 64;
    if constexpr (all % 4 > 0) tile_columns<onto, all % 4, c_row, a_row, b_row>(c + done, a, b + done, depth);
}

// Rows of queries to rows of `padded` numbers times a power of two, which rounds nothing.
template <class V, i64 padded, i64 width, i64 row>
static __attribute__((noinline)) void copy_halves(bf16* to, const bf16* from, i64 rows, f32 factor) {
    constexpr int L = lanes_of<V>;
    for (i64 i = 0; i < rows; ++i)
        for (i64 d = 0; d < padded; d += L) {
            const V x = load<V>(from + row * i + d, first_lanes<V>(most(0, width - d)));
            store_vector(to + padded * i + d, (V)(x * splat<V>(factor)));
        }
}
// Keys by pairs of components, turned over; components from `width` to `padded` become zeros.
template <class V, i64 tile, i64 padded, i64 width, i64 row>
STAX_INLINE void turn_over_pairs(u32* panel, const bf16* from, i64 rows) {
    turn_over<V, tile, width / 2, row / 2, 1>((f32*)panel, (const f32*)from, rows);  // moves words, whatever they are
    clear(panel + tile * (width / 2), tile * (padded - width) / 2);
}
// Values by pairs of keys; keys that do not exist and columns from `width` on become zeros.
template <class V, i64 tile, i64 padded, i64 width, i64 row>
static __attribute__((noinline)) void pair_rows(u32* to, const bf16* from, i64 rows) {
    constexpr int L = lanes_of<V>;
    using U = Vec<u32, L>;
    for (i64 j = 0; j < tile; j += 2)
        for (i64 d = 0; d < padded; d += L) {
            const auto lanes = first_lanes<V>(most(0, width - d));
            V one{}, two{};  // as float32, whose upper half a bfloat16 is
            if (j < rows) one = load<V>(from + row * j + d, lanes);
            if (j + 1 < rows) two = load<V>(from + row * (j + 1) + d, lanes);
            store_vector(to + padded * (j / 2) + d, (U)(bits<U>(one) >> 16 | bits<U>(two)));
        }
}
// Probabilities, rounded to bfloat16.
template <class V, int rows, i64 tile> STAX_INLINE void round_rows(bf16* to, const f32* from) {
    for (i64 k = 0; k < rows * tile; k += lanes_of<V>) {
        Vec<u16, lanes_of<V>> half;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(whole<V>(from + k)));
        raw_store(to + k, half, all_lanes);
    }
}
template <class V, int rows, i64 width> STAX_INLINE void scale_rows(f32* sums, const f32* factor) {
    for (int r = 0; r < rows; ++r) {
        if (factor[r] == 1) continue;
        for (i64 d = 0; d < width; d += lanes_of<V>)
            store_vector(sums + width * r + d, (V)(whole<V>(sums + width * r + d) * splat<V>(factor[r])));
    }
}
template <class V, i64 count> STAX_INLINE void scale_all(f32* numbers, f32 factor) {
    for (i64 k = 0; k < count; k += lanes_of<V>)
        store_vector(numbers + k, (V)(whole<V>(numbers + k) * splat<V>(factor)));
}
}  // namespace stax
