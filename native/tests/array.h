// Four-dimensional arrays in memory where a stray read or write shows: all that is not a number of theirs is poison,
// a NaN that spoils results and of which each bit must still be there afterwards.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "../heedful.h"
#include "check.h"

enum Layout {
    PACKED,        // (B, H, T, size), contiguous
    GAPS,          // the same with gaps after every row and head, and an odd offset
    TOKENS_FIRST,  // (B, T, H, size) in memory, gaps too
    ROWS_LAST,     // (B, H, size, T) in memory: for planes only
};

using Sizes = std::vector<int64_t>;  // four

class Array {
  public:
    Array() = default;
    Array(int dtype, Sizes sizes, Layout layout) : dtype(dtype), sizes(sizes) {
        static constexpr int innermost_first[][4] = {{3, 2, 1, 0}, {3, 2, 1, 0}, {3, 1, 2, 0}, {2, 3, 1, 0}};
        int64_t gap = layout == PACKED ? 0 : 5, length = 1;
        for (int axis : innermost_first[layout]) {
            strides[axis] = length;
            length = length * sizes[axis] + (axis == 0 ? 0 : gap);
        }
        offset = gap;
        memory.resize((offset + length) * bytes());
        for (int64_t i = 0; i < offset + length; i++) put(i, POISON);
    }

    // As a broadcast tensor: axes of size 1 have stride 0, so that all indices along them mean the same.
    Array &&broadcast() && {
        for (int axis = 0; axis < 4; axis++)
            if (sizes[axis] == 1) strides[axis] = 0;
        return std::move(*this);
    }

    float at(int64_t b, int64_t h, int64_t t, int64_t i) const { return take(place(b, h, t, i)); }
    void set(int64_t b, int64_t h, int64_t t, int64_t i, float x) { put(place(b, h, t, i), bits(x)); }

    template <class What>  // what(b, h, t, i) for every number
    void for_each(What what) const {
        for (int64_t b = 0; b < sizes[0]; b++)
            for (int64_t h = 0; h < sizes[1]; h++)
                for (int64_t t = 0; t < sizes[2]; t++)
                    for (int64_t i = 0; i < sizes[3]; i++) what(b, h, t, i);
    }

    void fill(float x) {
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { set(b, h, t, i, x); });
    }

    // The same numbers in another type and layout.
    Array copy(int to_dtype, Layout layout) const {
        Array other(to_dtype, sizes, layout);
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { other.set(b, h, t, i, at(b, h, t, i)); });
        return other;
    }

    double distance_from(const Array &expected) const {
        double worst = 0;
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
            worst = std::fmax(worst, distance(at(b, h, t, i), expected.at(b, h, t, i)));
        });
        return worst;
    }

    bool gaps_hold() const {
        Array gaps = *this;
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { gaps.put(gaps.place(b, h, t, i), POISON); });
        for (int64_t i = 0; i < (int64_t)memory.size() / bytes(); i++) {
            uint32_t found = 0, poison = POISON;
            memcpy(&found, &gaps.memory[i * bytes()], bytes());
            if (memcmp(&found, &poison, bytes())) return false;
        }
        return true;
    }

    bool empty() const { return memory.empty(); }

    bool same_bytes(const Array &other) const { return memory == other.memory; }

    void *data() { return memory.empty() ? nullptr : memory.data() + offset * bytes(); }
    heedful_tensor tensor() { return {data(), strides[0], strides[1], strides[2]}; }
    heedful_plane plane() { return {data(), strides[0], strides[1], strides[2], strides[3]}; }

    static constexpr int BYTE = 3;  // a type of masks, beside heedful_dtype's

  private:
    static constexpr uint32_t POISON = 0x7FFD7FFD;  // a NaN as float, its halves as bf16 and half

    int dtype = HEEDFUL_F32;
    Sizes sizes = Sizes(4), strides = Sizes(4);
    int64_t offset = 0;
    std::vector<uint8_t> memory;

    int64_t bytes() const { return dtype == HEEDFUL_F32 ? 4 : dtype == BYTE ? 1 : 2; }
    int64_t place(int64_t b, int64_t h, int64_t t, int64_t i) const {
        return offset + b * strides[0] + h * strides[1] + t * strides[2] + i * strides[3];
    }
    void put(int64_t place, uint32_t bits) { memcpy(&memory[place * bytes()], &bits, bytes()); }

    uint32_t bits(float x) const {
        uint32_t word;
        memcpy(&word, &x, 4);
        switch (dtype) {
            case HEEDFUL_F32: return word;
            case HEEDFUL_BF16: return x == x ? (word + 0x7FFF + (word >> 16 & 1)) >> 16 : 0x7FC0;
            case HEEDFUL_F16: {
                const _Float16 half = (_Float16)x;
                uint16_t narrow;
                memcpy(&narrow, &half, 2);
                return narrow;
            }
            default: return (uint32_t)x;
        }
    }

    float take(int64_t place) const {
        uint32_t word = 0;
        memcpy(&word, &memory[place * bytes()], bytes());
        float x;
        _Float16 half;
        switch (dtype) {
            case HEEDFUL_BF16: word <<= 16; [[fallthrough]];
            case HEEDFUL_F32: memcpy(&x, &word, 4); return x;
            case HEEDFUL_F16: memcpy(&half, &word, 2); return (float)half;
            default: return (float)word;
        }
    }
};
