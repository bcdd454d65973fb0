// The distribution of work items over threads. What an item computes never depends on the thread that computes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "heedful.h"
#include "number.h"
#include "product.h"

namespace heedful::HEEDFUL_ISA {

// Call work(next) on several threads; each call of next() there takes one item of 0…items-1 from a shared counter, and
// returns -1 when none are left. So expensive items should come first. Without parallel_for, one thread does all.
template <class Work>
static void for_each_item(heedful_parallel_for parallel_for, int64_t items, const Work &work) {
    struct Queue {
        const Work &work;
        std::atomic<int64_t> next;
        int64_t items;
    } queue{work, {0}, items};
    const auto part = [](int64_t, int64_t, void *context) {
        auto &shared = *(Queue *)context;
        shared.work([&shared] {
            const int64_t item = shared.next.fetch_add(1, std::memory_order_relaxed);
            return item < shared.items ? item : -1;
        });
    };
    if (parallel_for && items > 1)
        parallel_for(0, items, 1, part, &queue);
    else
        part(0, items, &queue);
}

// Return work(pass) of Pass<N, PAIRS>(problem) with the number type N of `dtype`, which has been checked, in pairs of bf16
// where the instruction set has them.
template <template <class N, bool PAIRS> class Pass, class Problem, class Work>
static auto with_pass(const Problem &problem, int32_t dtype, const Work &work) {
    const auto call = [&](auto pass_of) {
        typename decltype(pass_of)::type pass(problem);
        return work(pass);
    };
    if (dtype == HEEDFUL_F32) return call(std::type_identity<Pass<float, false>>());
    if (dtype == HEEDFUL_F16) return call(std::type_identity<Pass<Half, false>>());
    return call(std::type_identity<Pass<Bf16, HAS_PAIRS>>());
}

}  // namespace heedful::HEEDFUL_ISA
