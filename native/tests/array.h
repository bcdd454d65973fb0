// Four-dimensional arrays for tests, in memory that reveals stray reads and writes: all of it that holds no number of
// the array is a NaN with a known bit pattern. A read of it spoils results, and a write to it changes the pattern.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "../heedful.h"
#include "check.h"
#include "half.h"

enum Layout {
    PACKED,        // (B, H, T, size), contiguous
    GAPS,          // the same with gaps after every row and head, and an odd offset
    TOKENS_FIRST,  // (B, T, H, size) in memory, gaps too
    ROWS_LAST,     // (B, H, size, T) in memory, for planes only
};

using Sizes = std::vector<int64_t>;  // four of them

class Array {
  public:
    Array() = default;
    Array(int number_type, Sizes shape, Layout layout) : dtype(number_type), sizes(shape) {
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

    // Turn axes of size 1 into broadcast axes, with stride 0: every index along them is valid.
    Array &&broadcast() && {
        for (int axis = 0; axis < 4; axis++)
            if (sizes[axis] == 1) strides[axis] = 0;
        return std::move(*this);
    }

    float at(int64_t b, int64_t h, int64_t t, int64_t i) const { return get(place(b, h, t, i)); }
    void set(int64_t b, int64_t h, int64_t t, int64_t i, float x) { put(place(b, h, t, i), bits_of(x)); }

    // Call action(b, h, t, i) for every number.
    template <class Action>
    void for_each(Action action) const {
        for (int64_t b = 0; b < sizes[0]; b++)
            for (int64_t h = 0; h < sizes[1]; h++)
                for (int64_t t = 0; t < sizes[2]; t++)
                    for (int64_t i = 0; i < sizes[3]; i++) action(b, h, t, i);
    }

    void fill(float x) {
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { set(b, h, t, i, x); });
    }

    // A copy in another type and layout.
    Array copy(int to_dtype, Layout layout) const {
        Array other(to_dtype, sizes, layout);
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { other.set(b, h, t, i, at(b, h, t, i)); });
        return other;
    }

    // The largest distance of any number from the expected one.
    double distance_from(const Array &expected) const {
        double worst = 0;
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
            worst = std::fmax(worst, distance(at(b, h, t, i), expected.at(b, h, t, i)));
        });
        return worst;
    }

    // Whether nothing was written between the numbers.
    bool gaps_are_intact() const {
        Array gaps = *this;
        for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { gaps.put(gaps.place(b, h, t, i), POISON); });
        for (int64_t i = 0; i < (int64_t)memory.size() / bytes(); i++) {
            const uint32_t poison = POISON;
            if (memcmp(&gaps.memory[i * bytes()], &poison, bytes())) return false;
        }
        return true;
    }

    bool empty() const { return memory.empty(); }

    bool same_bytes(const Array &other) const { return memory == other.memory; }

    void *data() { return memory.empty() ? nullptr : memory.data() + offset * bytes(); }
    heedful_tensor tensor() { return {data(), strides[0], strides[1], strides[2]}; }
    heedful_plane plane() { return {data(), strides[0], strides[1], strides[2], strides[3]}; }

    static constexpr int BYTE = 3;  // the type of masks, beside the types of heedful_dtype

  private:
    static constexpr uint32_t POISON = 0x7FFD7FFD;  // a NaN as float; its halves are NaNs as bf16 and half

    int dtype = HEEDFUL_F32;
    Sizes sizes = Sizes(4), strides = Sizes(4);
    int64_t offset = 0;
    std::vector<uint8_t> memory;

    int64_t bytes() const { return dtype == HEEDFUL_F32 ? 4 : dtype == BYTE ? 1 : 2; }
    int64_t place(int64_t b, int64_t h, int64_t t, int64_t i) const {
        return offset + b * strides[0] + h * strides[1] + t * strides[2] + i * strides[3];
    }
    void put(int64_t at, uint32_t bits) { memcpy(&memory[at * bytes()], &bits, bytes()); }

    uint32_t bits_of(float x) const {
        uint32_t word;
        memcpy(&word, &x, 4);
        switch (dtype) {
            case HEEDFUL_F32: return word;
            case HEEDFUL_BF16: return x == x ? (word + 0x7FFF + (word >> 16 & 1)) >> 16 : 0x7FC0;
            case HEEDFUL_F16: return half_of_float(x);
            default: return (uint32_t)x;
        }
    }

    float get(int64_t at) const {
        uint32_t word = 0;
        memcpy(&word, &memory[at * bytes()], bytes());
        float x;
        switch (dtype) {
            case HEEDFUL_BF16: word <<= 16; [[fallthrough]];
            case HEEDFUL_F32: memcpy(&x, &word, 4); return x;
            case HEEDFUL_F16: return float_of_half((uint16_t)word);
            default: return (float)word;
        }
    }
};
