// Which weights dropout removes: heedful.dropout, word for word, so that every kernel draws the same.

INLINE uint32_t mix(uint32_t word) {
    word = (word ^ (word >> 16)) * 0x7FEB352Du;
    word = (word ^ (word >> 15)) * 0x846CA68Bu;
    return word ^ (word >> 16);
}

INLINE uint32_t row_word(uint32_t word, int64_t b, int64_t h, int64_t q) {
    constexpr uint32_t GOLDEN = 0x9E3779B9u;
    uint32_t mixed = mix((uint32_t)b + word + GOLDEN);
    mixed = mix((uint32_t)h + mixed + GOLDEN);
    return mix((uint32_t)q + mixed + GOLDEN);
}

// Two words for each lane's (batch entry, head, query), and the draw for a key.
template <int LANES>
struct Drops {
    alignas(64) uint32_t row[LANES], tweak[LANES];
    uint32_t threshold;
    bool all;

    Drops(const heedful_problem &p, const Rows<LANES> &rows) {
        if (p.dropout_p <= 0) return;
        const double limit = nearbyint(p.dropout_p * 0x1p32);
        all = limit >= 0x1p32, threshold = all ? 0 : (uint32_t)limit;
        for (int lane = 0; lane < LANES; lane++) {
            const int at = lane < rows.count ? lane : rows.count - 1;
            row[lane] = row_word((uint32_t)p.seed, rows.b, rows.head(at), rows.query(at));
            tweak[lane] = row_word((uint32_t)(p.seed >> 32), rows.b, rows.head(at), rows.query(at));
        }
    }

    I keeps(int64_t key, int lane) const {
        U word = load_words(row + lane) + splat_word((uint32_t)key * 0x9E3779B9u);
        word = (word ^ (word >> 16)) * 0x7FEB352Du;
        word ^= load_words(tweak + lane);
        word = (word ^ (word >> 15)) * 0x846CA68Bu;
        word ^= word >> 16;
        return all ? I{} : (I)(word >= threshold);
    }

    bool keeps_one(int64_t key, int lane) const {
        uint32_t word = row[lane] + (uint32_t)key * 0x9E3779B9u;
        word = ((word ^ (word >> 16)) * 0x7FEB352Du) ^ tweak[lane];
        word = (word ^ (word >> 15)) * 0x846CA68Bu;
        return !all && (word ^ (word >> 16)) >= threshold;
    }
};
