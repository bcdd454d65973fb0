// The probes of the instruction set in use, on all threads at once.

#include "peaks.h"

#include <atomic>
#include <chrono>
#include <cstring>

namespace heedful {

static const Peaks &in_use() {
#if defined(__x86_64__)
    if (!strcmp(heedful_isa(), "avx512bf16")) return avx512bf16::peaks;
    if (!strcmp(heedful_isa(), "avx512")) return avx512::peaks;
    if (!strcmp(heedful_isa(), "avx2")) return avx2::peaks;
#endif
    return generic::peaks;
}

// Every part is timed from its own start, so that a thread which wakes late counts for what it then does.
struct Race {
    double (*lap)(int64_t rounds);
    double seconds;
    std::atomic<int64_t> operations_per_second{0};

    void run() {
        using Clock = std::chrono::steady_clock;
        const auto start = Clock::now();
        double operations = 0, passed = 0;
        while (passed < seconds) {
            operations += lap(2000);
            passed = std::chrono::duration<double>(Clock::now() - start).count();
        }
        operations_per_second += (int64_t)(operations / passed);
    }
};

static double race(double (*lap)(int64_t), double seconds, heedful_parallel_for parallel_for, int64_t threads) {
    if (!lap) return 0;
    Race race{lap, seconds};
    const auto part = [](int64_t, int64_t, void *context) { ((Race *)context)->run(); };
    if (parallel_for && threads > 1)
        parallel_for(0, threads, 1, part, &race);
    else
        race.run();
    return (double)race.operations_per_second;
}

struct Reading {
    const char *from;
    int64_t bytes;
    std::atomic<int64_t> next{0};
    std::atomic<uint64_t> sum{0};

    void run() {
        constexpr int64_t BLOCK = 1 << 20;
        uint64_t own = 0;
        for (int64_t at = next.fetch_add(BLOCK); at < bytes; at = next.fetch_add(BLOCK))
            own ^= in_use().read(from + at, bytes - at < BLOCK ? bytes - at : BLOCK);
        sum ^= own;
    }
};

}  // namespace heedful

extern "C" {
#define EXPORT __attribute__((visibility("default")))

EXPORT double heedful_peak_fma(double seconds, heedful_parallel_for parallel_for, int64_t threads) {
    return heedful::race(heedful::in_use().multiply_add, seconds, parallel_for, threads);
}

EXPORT double heedful_peak_bf16(double seconds, heedful_parallel_for parallel_for, int64_t threads) {
    return heedful::race(heedful::in_use().bf16_products, seconds, parallel_for, threads);
}

EXPORT uint64_t heedful_stream_read(const void *from, int64_t bytes, heedful_parallel_for parallel_for) {
    heedful::Reading reading{(const char *)from, bytes};
    const auto part = [](int64_t, int64_t, void *context) { ((heedful::Reading *)context)->run(); };
    if (parallel_for)
        parallel_for(0, bytes / 4096 + 1, 1, part, &reading);
    else
        reading.run();
    return reading.sum;
}
}
