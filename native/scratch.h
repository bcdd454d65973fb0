// Scratch memory. A tile lists its buffers once, in a constructor that takes them from a source, one after the other:
// from a ScratchMeter to find the size of the memory, and from a Scratch to lay them out in it. Sizes are in floats.
#pragma once

#include <cassert>
#include <cstdint>
#include <new>

#include "heedful.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

constexpr std::align_val_t ALIGNMENT{64};  // bytes of a cache line and of the longest vector

// Memory for `floats` floats, or nullptr. release() gives it back.
INLINE float *allocate(int64_t floats) {
    return (float *)operator new(sizeof(float) * floats, ALIGNMENT, std::nothrow);
}
INLINE void release(float *memory) { operator delete(memory, ALIGNMENT); }

// The length of a row of `size` numbers in scratch memory: whole vectors, with at least one number to spare. So rows of
// 64 or 128 numbers are not a power of two apart and do not compete for the same sets of the cache.
INLINE int64_t padded(int64_t size) { return (size + W) / W * W; }

struct ScratchMeter {
    int64_t floats = 0;

    float *take(int64_t count) {
        floats += count;
        return nullptr;
    }
};

struct Scratch {
    float *next, *end;

    float *take(int64_t count) {
        next += count;
        assert(next <= end);
        return next - count;
    }
};

template <class List>
static int64_t list_floats(const heedful_problem &p) {
    ScratchMeter meter;
    List(p, meter);
    return meter.floats;
}

// The size of memory in which each of these lists of buffers fits.
template <class... Lists>
static int64_t scratch_floats(const heedful_problem &p) {
    const int64_t sizes[] = {list_floats<Lists>(p)...};
    int64_t largest = 0;
    for (int64_t floats : sizes)
        if (floats > largest) largest = floats;
    return largest;
}

}  // namespace heedful::HEEDFUL_ISA
