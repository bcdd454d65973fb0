// Measurements of the machine's limits: the peak loops of the instruction set in use, on all threads at once.

#include "peaks.h"

#include <atomic>
#include <chrono>

#include "export.h"
#include "isa.h"

namespace heedful {

static const PeakLoops &loops_in_use() { return *isa_in_use.load()->peak_loops; }

// Each thread times its own part from its own start, so that a thread that wakes up late still adds its full rate.
struct Throughput {
    double (*loop)(int64_t rounds);
    double seconds;
    std::atomic<int64_t> operations_per_second{0};

    void run() {
        using Clock = std::chrono::steady_clock;
        const auto start = Clock::now();
        double operations = 0, elapsed = 0;
        while (elapsed < seconds) {
            operations += loop(2000);
            elapsed = std::chrono::duration<double>(Clock::now() - start).count();
        }
        operations_per_second += (int64_t)(operations / elapsed);
    }
};

static double measure(double (*loop)(int64_t), double seconds, heedful_parallel_for parallel_for, int64_t threads) {
    if (!loop) return 0;
    Throughput throughput{loop, seconds};
    const auto part = [](int64_t, int64_t, void *context) { ((Throughput *)context)->run(); };
    if (parallel_for && threads > 1)
        parallel_for(0, threads, 1, part, &throughput);
    else
        throughput.run();
    return (double)throughput.operations_per_second;
}

struct StreamRead {
    const char *from;
    int64_t bytes;
    std::atomic<int64_t> next{0};
    std::atomic<uint64_t> sum{0};

    void run() {
        constexpr int64_t BLOCK = 1 << 20;  // bytes
        uint64_t own_sum = 0;
        for (int64_t first = next.fetch_add(BLOCK); first < bytes; first = next.fetch_add(BLOCK))
            own_sum ^= loops_in_use().read(from + first, bytes - first < BLOCK ? bytes - first : BLOCK);
        sum ^= own_sum;
    }
};

}  // namespace heedful

extern "C" {
EXPORT double heedful_peak_fma(double seconds, heedful_parallel_for parallel_for, int64_t threads) {
    return heedful::measure(heedful::loops_in_use().multiply_adds, seconds, parallel_for, threads);
}

EXPORT double heedful_peak_bf16(double seconds, heedful_parallel_for parallel_for, int64_t threads) {
    return heedful::measure(heedful::loops_in_use().bf16_products, seconds, parallel_for, threads);
}

EXPORT uint64_t heedful_stream_read(const void *from, int64_t bytes, heedful_parallel_for parallel_for) {
    heedful::StreamRead stream{(const char *)from, bytes};
    const auto part = [](int64_t, int64_t, void *context) { ((heedful::StreamRead *)context)->run(); };
    if (parallel_for)
        parallel_for(0, bytes / 4096 + 1, 1, part, &stream);
    else
        stream.run();
    return stream.sum;
}
}
