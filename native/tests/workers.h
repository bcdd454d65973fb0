// A parallel_for with a few threads, each of which gets one part of the range.
#pragma once

#include <thread>
#include <vector>

#include "../heedful.h"

template <int WORKERS>
int32_t parallel_for(int64_t begin, int64_t end, int64_t, heedful_work work, void *context) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < WORKERS; i++) {
        const int64_t from = begin + (end - begin) * i / WORKERS, to = begin + (end - begin) * (i + 1) / WORKERS;
        if (from < to) threads.emplace_back(work, from, to, context);
    }
    for (std::thread &thread : threads) thread.join();
    return 0;
}

// Return a parallel_for with `count` threads, or NULL for 0: everything runs on the calling thread.
inline heedful_parallel_for workers(int count) {
    const heedful_parallel_for choices[] = {nullptr, parallel_for<1>, parallel_for<2>, parallel_for<3>,
                                            parallel_for<4>};
    return choices[count];
}
