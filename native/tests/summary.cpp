// Tests of the summaries against the plain ones.

#include "problem.h"
#include "tests.h"

// Which statistics a summary has, and of which sizes.
struct Wanted {
    bool for_each_query = true, received = true, given_lse = false;
    int64_t top_k = 3, regions = 2, cell_queries = 4, cell_keys = 3, query_offset = 0, key_offset = 0, shift = 0;

    std::string describe() const {
        char text[200];
        snprintf(text, sizeof text, ", top %d, %d regions, cells %d+%d x %d+%d, shift %d%s%s%s", (int)top_k, (int)regions,
                 (int)cell_queries, (int)query_offset, (int)cell_keys, (int)key_offset, (int)shift,
                 for_each_query ? ", per query" : "", received ? ", received" : "", given_lse ? ", given lse" : "");
        return text;
    }
};

static Wanted draw_wanted(uint64_t seed, const Case &c) {
    Draw draw(seed * 31);
    Wanted w;
    w.for_each_query = draw.chance(0.8), w.received = draw.chance(0.8), w.given_lse = draw.chance(0.4);
    w.top_k = draw.of({0, 1, 3, 70}), w.regions = draw.of({0, 1, 2, 5});
    w.cell_queries = draw.of({int64_t{0}, int64_t{1}, int64_t{3}, int64_t{16}, int64_t{64}, int64_t{100}, c.Tq + 1});
    w.cell_keys = draw.of({int64_t{1}, int64_t{5}, int64_t{64}, int64_t{100}, c.Tk + 1});
    if (w.cell_queries) w.query_offset = draw.below(w.cell_queries), w.key_offset = draw.below(w.cell_keys);
    w.shift = draw.of({int64_t{0}, c.Tk - c.Tq, int64_t{-5}});
    return w;
}

// The results of a summary; those that were not computed stay NaN.
struct Results {
    Array lse, mass, entropy, largest, distance, received, top_weights, region_mass, cell_sums, cell_maxima;
    std::vector<int64_t> top_keys;
};

struct Request {
    Case c;
    Wanted w;
    std::vector<int32_t> region_start, region_stop;
    Array given;

    Request(const Case &parameters, const Wanted &wanted) : c(parameters), w(wanted) {
        Draw draw(c.seed + 7);
        for (int64_t i = 0; i < c.B * c.Tq * w.regions; i++) {
            const int64_t one = draw.below(c.Tk + 3) - 1, other = draw.below(c.Tk + 3) - 1;
            region_start.push_back((int32_t)std::min(one, other)), region_stop.push_back((int32_t)std::max(one, other));
        }
        given = Array(HEEDFUL_F32, {1, c.B, c.Hq, c.Tq}, PACKED);
        given.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
            given.set(b, h, t, i, draw.chance(0.1) ? -INFINITY : 3 + draw.number());
        });
    }

    Results results() const {
        const Sizes queries = {1, c.B, c.Hq, c.Tq};
        const int64_t cell_queries = std::max(w.cell_queries, int64_t{1});
        const Sizes cells = {c.B, c.Hq, (w.query_offset + c.Tq + cell_queries - 1) / cell_queries,
                             (w.key_offset + c.Tk + w.cell_keys - 1) / w.cell_keys};
        Results x;
        for (Array Results::*array : {&Results::lse, &Results::mass, &Results::entropy, &Results::largest,
                                      &Results::distance})
            x.*array = Array(HEEDFUL_F32, queries, PACKED);
        x.received = Array(HEEDFUL_F32, {1, c.B, c.Hq, c.Tk}, PACKED);
        x.top_weights = Array(HEEDFUL_F32, {c.B, c.Hq, c.Tq, w.top_k}, PACKED);
        x.region_mass = Array(HEEDFUL_F32, {c.B, c.Hq, c.Tq, w.regions}, PACKED);
        x.cell_sums = x.cell_maxima = Array(HEEDFUL_F32, cells, PACKED);
        x.cell_sums.fill(0), x.cell_maxima.fill(0);
        x.top_keys.resize((size_t)(c.B * c.Hq * c.Tq * w.top_k), -7);
        return x;
    }

    heedful_summary with(Results &x, const heedful_problem &p) {
        heedful_summary s{};
        s.attention = p;
        s.attention.value = s.attention.output = {};
        s.attention.lse = (float *)x.lse.data();
        s.lse = w.given_lse ? (float *)given.data() : nullptr;
        s.shift = w.shift;
        if (w.for_each_query) {
            s.mass = (float *)x.mass.data(), s.entropy = (float *)x.entropy.data();
            s.largest = (float *)x.largest.data(), s.distance = (float *)x.distance.data();
        }
        if (w.received) s.received = (float *)x.received.data();
        s.top_k = w.top_k, s.top_weights = (float *)x.top_weights.data(), s.top_keys = x.top_keys.data();
        s.regions = w.regions, s.region_batch = c.Tq * w.regions, s.region_mass = (float *)x.region_mass.data();
        s.region_start = region_start.data(), s.region_stop = region_stop.data();
        if (w.cell_queries) s.cell_sums = (float *)x.cell_sums.data(), s.cell_maxima = (float *)x.cell_maxima.data();
        s.cell_queries = w.cell_queries, s.cell_keys = w.cell_keys;
        s.query_offset = w.query_offset, s.key_offset = w.key_offset;
        return s;
    }
};

static Results plain(Problem &problem, Request &request) {
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    Results results = request.results();
    const heedful_summary s = request.with(results, problem.with(x, HEEDFUL_F32, 0));
    check(heedful_summarize_plain(&s) == HEEDFUL_OK, "plain summary: status", problem.c.describe());
    return results;
}

static Results tiled(Problem &problem, Request &request, int worker_count) {
    Tensors x = problem.tensors(problem.c.dtype, problem.c.layout);
    Results results = request.results();
    const heedful_summary s = request.with(results, problem.with(x, problem.c.dtype, worker_count));
    check(heedful_summarize(&s) == HEEDFUL_OK, "summary: status", problem.c.describe());
    return results;
}

// The keys may differ from the plain ones where weights are nearly equal, and where the plain weight is not 0 in double only.
static void check_top_keys(const Results &actual, const Results &expected, const Case &c, int64_t top_k, const std::string &where) {
    int64_t wrong = 0;
    expected.top_weights.for_each([&](int64_t b, int64_t h, int64_t q, int64_t i) {
        const float weight = expected.top_weights.at(b, h, q, i);
        const auto ties_with = [&](int64_t j) { return std::fabs(expected.top_weights.at(b, h, q, j) - weight) < 1e-5; };
        const size_t at = (size_t)(((b * c.Hq + h) * c.Tq + q) * top_k + i);
        if (actual.top_keys[at] == expected.top_keys[at]) return;
        wrong += !(i + 1 == top_k || ties_with(i + 1) || (i > 0 && ties_with(i - 1)));
    });
    check(wrong == 0, "top keys", where);
}

static void check_agreement(const Case &c, const Wanted &w) {
    if (!is_tried()) return;
    Problem problem(c);
    Request request(c, w);
    Results expected = plain(problem, request);
    const std::string where = c.describe() + w.describe();
    with_each_isa([&] {
        const Results actual = tiled(problem, request, c.workers);
        const auto close = [&](Array Results::*array, double limit, const char *what) {
            check_below(limit, (actual.*array).distance_from(expected.*array), what, where);
        };
        close(&Results::lse, 3e-5, "lse");
        if (w.for_each_query) {
            close(&Results::mass, 3e-5, "mass"), close(&Results::entropy, 1e-4, "entropy");
            close(&Results::largest, 3e-5, "largest"), close(&Results::distance, 1e-4, "distance");
        }
        if (w.received) close(&Results::received, 1e-4, "received");
        close(&Results::top_weights, 3e-5, "top weights"), close(&Results::region_mass, 3e-5, "mass of regions");
        close(&Results::cell_sums, 1e-4, "sums of cells"), close(&Results::cell_maxima, 3e-5, "maxima of cells");
        check_top_keys(actual, expected, c, w.top_k, where);
    });
}

static void lengths() {
    uint64_t seed = 20000;
    for (int64_t Tq : EDGES)
        for (int64_t Tk : EDGES) {
            seed++;
            const Case c = draw_case(seed, Tq, Tk, HEAD_SIZES[seed % HEAD_SIZES.size()], 8);
            check_agreement(c, draw_wanted(seed, c));
        }
}

static void many_parts() {
    uint64_t seed = 21000;
    for (int64_t Tq : {300, 1030})
        for (int64_t cell : {1, 7, 64, 90, 2000}) {
            const Case c = draw_case(++seed, Tq, 70, 16, 8);
            Wanted w = draw_wanted(seed, c);
            w.cell_queries = cell, w.query_offset = cell / 2, w.received = true;
            check_agreement(c, w);
        }
}

static void rows_without_keys() {
    uint64_t seed = 22000;
    for (int64_t Tk : {0, 1, 65})
        for (bool sinks : {false, true}) {
            Case c = draw_case(++seed, 20, Tk, 8, 8);
            c.ranges = NO_KEYS, c.sinks = sinks;
            check_agreement(c, draw_wanted(seed, c));
        }
    for (int64_t Tk : {0, 5}) {  // no queries: keys receive nothing
        const Case c = draw_case(++seed, 0, Tk, 8, 8);
        check_agreement(c, draw_wanted(seed, c));
    }
}

// Scores in the thousands, where float32 rounds the logarithm of the normalizer: the weights come from m and l instead.
static void large_scores() {
    for (uint64_t seed = 23000; seed < 23010; seed++) {
        Case c = draw_case(seed, 20, 70, 8, 8);
        c.scale = 300, c.softcap = 0, c.dtype = HEEDFUL_F16, c.bias_axes = 0;
        Wanted w = draw_wanted(seed, c);
        w.given_lse = false;
        Problem problem(c);
        Request request(c, w);
        const Results expected = plain(problem, request);
        with_each_isa([&] {
            const Results actual = tiled(problem, request, 0);
            if (w.for_each_query)
                check_below(2e-3, actual.mass.distance_from(expected.mass), "mass of large scores", c.describe());
        });
    }
}

static void threads() {
    for (uint64_t seed = 24000; seed < 24010; seed++) {
        if (!is_tried()) continue;
        Case c = draw_case(seed, 1 + seed % 3 * 150, 1 + seed % 5 * 60, 24, 17);
        c.dtype = (int)(seed % 3);
        Wanted w = draw_wanted(seed, c);
        Problem problem(c);
        Request request(c, w);
        with_each_isa([&] {
            const Results serial = tiled(problem, request, 0);
            for (int count : {1, 2, 3, 4}) {
                const Results parallel = tiled(problem, request, count);
                bool same = parallel.top_keys == serial.top_keys;
                for (Array Results::*array :
                     {&Results::lse, &Results::mass, &Results::entropy, &Results::largest, &Results::distance,
                      &Results::received, &Results::top_weights, &Results::region_mass, &Results::cell_sums,
                      &Results::cell_maxima})
                    same &= (parallel.*array).same_bytes(serial.*array);
                check(same, "same bits", c.describe());
            }
        });
    }
}

// The summary is refused with this status by every kernel.
template <class Spoil>
static void check_refusal(int32_t expected, const char *what, Spoil spoil) {
    Case c = draw_case(1, 3, 5, 8, 8);
    c.B = 2, c.Hq = 4, c.Hkv = 2;
    Problem problem(c);
    Request request(c, {});
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    Results results = request.results();
    heedful_summary s = request.with(results, problem.with(x, HEEDFUL_F32, 0));
    spoil(s);
    check(heedful_summarize(&s) == expected, what, "summary");
    check(heedful_summarize_plain(&s) == expected, what, "plain summary");
}

static void refusals() {
    using S = heedful_summary;
    check_refusal(HEEDFUL_OK, "a valid summary is accepted", [](S &) {});
    check(heedful_summarize(nullptr) == HEEDFUL_MISSING_TENSOR, "no summary at all is refused", "");
    check_refusal(HEEDFUL_UNKNOWN_DTYPE, "an unknown dtype is refused", [](S &s) { s.attention.dtype = 7; });
    check_refusal(HEEDFUL_BAD_SIZE, "a size out of range is refused", [](S &s) { s.attention.Tk = -1; });
    check_refusal(HEEDFUL_TOO_MANY_KEY_RANGES, "too many key ranges are refused",
                  [](S &s) { s.attention.key_ranges = 3; });
    for (auto tensor : {&heedful_problem::query, &heedful_problem::key}) {
        check_refusal(HEEDFUL_MISSING_TENSOR, "a missing tensor is refused",
                      [&](S &s) { (s.attention.*tensor).data = nullptr; });
        check_refusal(HEEDFUL_BAD_STRIDE, "a negative stride is refused",
                      [&](S &s) { (s.attention.*tensor).token = -1; });
    }
    for (auto plane : {&heedful_problem::mask, &heedful_problem::bias})
        check_refusal(HEEDFUL_BAD_STRIDE, "a plane's negative stride is refused", [&](S &s) {
            static int32_t numbers[1000];
            s.attention.*plane = {numbers, 0, 0, -1, 0};
        });
    for (auto count : {&S::top_k, &S::regions})
        for (int64_t bad : {int64_t{-1}, int64_t{1} << 40, INT64_MAX})
            check_refusal(HEEDFUL_BAD_SUMMARY, "a count out of range is refused", [&](S &s) { s.*count = bad; });
    for (auto cell : {&S::cell_queries, &S::cell_keys})
        for (int64_t bad : {int64_t{0}, int64_t{-1}, INT64_MAX})
            check_refusal(HEEDFUL_BAD_SUMMARY, "a cell of no size is refused", [&](S &s) { s.*cell = bad; });
    for (auto offset : {&S::query_offset, &S::key_offset})
        for (int64_t bad : {int64_t{-1}, int64_t{4}, INT64_MAX})
            check_refusal(HEEDFUL_BAD_SUMMARY, "an offset beyond a cell is refused", [&](S &s) { s.*offset = bad; });
    for (int64_t bad : {INT64_MIN, INT64_MAX, (int64_t)INT32_MAX, -(int64_t)INT32_MAX})
        check_refusal(HEEDFUL_BAD_SUMMARY, "a place beyond int32 is refused", [&](S &s) { s.shift = bad; });
    check_refusal(HEEDFUL_BAD_STRIDE, "a negative stride of regions is refused", [](S &s) { s.region_batch = -1; });
    check_refusal(HEEDFUL_MISSING_TENSOR, "no top weights are refused", [](S &s) { s.top_weights = nullptr; });
    check_refusal(HEEDFUL_MISSING_TENSOR, "no top keys are refused", [](S &s) { s.top_keys = nullptr; });
    check_refusal(HEEDFUL_MISSING_TENSOR, "no starts are refused", [](S &s) { s.region_start = nullptr; });
    check_refusal(HEEDFUL_MISSING_TENSOR, "no stops are refused", [](S &s) { s.region_stop = nullptr; });
    check_refusal(HEEDFUL_MISSING_TENSOR, "no mass of regions is refused", [](S &s) { s.region_mass = nullptr; });
}

void test_summary() {
    refusals();
    lengths();
    many_parts();
    rows_without_keys();
    large_scores();
    threads();
}
