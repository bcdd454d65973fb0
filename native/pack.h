// How rows of numbers become operands of a product: floats, or pairs of bf16.

template <class N>
INLINE void copy_row(const N *from, int64_t count, float *to) {  // zeros for a row that is missing
    if (from)
        widen_row(from, count, to);
    else
        memset(to, 0, count * sizeof(float));
}

INLINE void store_row(float *to, F numbers) { store(to, numbers); }

template <class N>
INLINE F lane_vector(const N *row, int64_t at, int64_t count) {  // numbers at…at+W-1 of a row of `count`, then zeros
    if (at + W <= count) return load_wide(row + at);
    F v{};
    for (int64_t i = at; i < count; i++) v[i - at] = widen(row[i]);
    return v;
}

#if defined(__AVX512BF16__)
INLINE void copy_row(const Bf16 *from, int64_t count, Pair *to) {
    if (count % 2) to[count / 2].bits = 0;
    memcpy(to, from, count * sizeof(Bf16));
}

// Two rows of numbers as one row of pairs; a missing row counts as zeros.
INLINE void pair_rows(const Bf16 *even, const Bf16 *odd, int64_t count, Pair *to) {
    for (int64_t i = 0; i < count; i += W) {
        const __mmask16 there = count - i < W ? (__mmask16)((1u << (count - i)) - 1) : (__mmask16)0xFFFF;
        const __m256i zero = _mm256_setzero_si256();
        const __m512i low = _mm512_cvtepu16_epi32(even ? _mm256_maskz_loadu_epi16(there, even + i) : zero);
        const __m512i high = _mm512_cvtepu16_epi32(odd ? _mm256_maskz_loadu_epi16(there, odd + i) : zero);
        _mm512_mask_storeu_epi32(to + i, there, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

// Two vectors of floats, rounded, as one of pairs.
INLINE void store_pairs(Pair *to, F even, F odd) {
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);  // 16 of even, then 16 of odd
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, halves));
}

// A vector of floats, rounded, as pairs of neighbours.
INLINE void store_row(Pair *to, F numbers) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)numbers));
}

// A vector of floats, rounded, as pairs (number, 0) and (0, number).
INLINE void split_pairs(F numbers, Pair *first, Pair *second) {
    const __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)numbers));
    _mm512_storeu_si512(first, bits);
    _mm512_storeu_si512(second, _mm512_slli_epi32(bits, 16));
}

INLINE F lane_words(const Bf16 *row, int64_t at, int64_t count) {  // pairs at…at+W-1 of a row of `count` numbers
    const int64_t left = count - 2 * at;
    const __mmask32 there = left >= 2 * W ? 0xFFFFFFFFu : ((1u << left) - 1);
    return (F)_mm512_maskz_loadu_epi16(there, row + 2 * at);
}
#endif

// `count` rows of D numbers into the lanes: to[d][lane], or to[d / 2][lane] of pairs. Idle lanes, and rows that are missing, become zeros.
template <class N, bool PAIRS, int LANES, class RowOf, class T>
INLINE void load_lanes(RowOf row_of, int count, int64_t D, bool negate, T *to) {
    const int64_t words = PAIRS ? (D + 1) / 2 : D;
    for (int lane = 0; lane < LANES; lane += W)
        for (int64_t d = 0; d < words; d += W) {
            F v[W];
            for (int i = 0; i < W; i++) {
                const N *row = lane + i < count ? row_of(lane + i) : nullptr;
                if (!row)
                    v[i] = F{};
                else if constexpr (PAIRS)
                    v[i] = lane_words(row, d, D);
                else
                    v[i] = lane_vector(row, d, D);
            }
            transpose(v);
            const U flip = splat_word(!negate ? 0 : PAIRS ? 0x80008000u : 0x80000000u);
            for (int i = 0; i < W && d + i < words; i++) store((float *)(to + (d + i) * LANES + lane), (F)((U)v[i] ^ flip));
        }
}
