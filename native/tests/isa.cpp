// Tests of the choice of an instruction set.

#include "../isa.h"

#include "../processor.h"
#include "check.h"
#include "tests.h"

using namespace heedful;

static void check_best(uint32_t features, const std::string &expected) {
    const std::string best = best_isa(features)->name;
    check(best == expected, "the best instruction set", "expected " + expected + ", received " + best);
    check(find_isa(expected.c_str(), features) == best_isa(features), "the best one can be named", expected);
}

#if defined(__x86_64__)

constexpr uint32_t AVX2_ALL = AVX2 | FMA | F16C;
constexpr uint32_t AVX512_ALL = AVX2_ALL | AVX512F | AVX512BW | AVX512DQ | AVX512VL;

static void choices() {
    check_best(0, "generic");
    check_best(AVX2_ALL, "avx2");
    check_best(AVX512_ALL, "avx512");
    check_best(AVX512_ALL | AVX512BF16, "avx512bf16");
    check_best(AVX512_ALL | AVX512BF16 | AMX_BF16, "amx");
    check_best(AVX512_ALL | AMX_BF16, "avx512");
    for (uint32_t missing : {AVX2, FMA, F16C}) {
        check_best(AVX2_ALL & ~missing, "generic");
        check_best((AVX512_ALL | AVX512BF16) & ~missing, "generic");
    }
    for (uint32_t missing : {AVX512F, AVX512BW, AVX512DQ, AVX512VL})
        check_best((AVX512_ALL | AVX512BF16) & ~missing, "avx2");
    check(!find_isa("amx", AVX512_ALL | AVX512BF16), "AMX is refused on a processor without it", "");
    check(!find_isa("avx512bf16", AVX512_ALL), "AVX512-BF16 is refused on a processor without it", "");
    check(!find_isa("avx512", AVX2_ALL), "AVX-512 is refused on a processor without it", "");
    check(!find_isa("avx2", AVX2), "AVX2 is refused on a processor without FMA", "");
}

// Registers that the operating system does not save cannot be used.
static void registers_of_the_system() {
    const CpuId everything{~0u, ~0u, ~0u, ~0u, ~0u};
    CpuId id = everything;
    check_best(features_of(id), "amx");
    id.saved = 0xE7;
    check_best(features_of(id), "avx512bf16");
    id.saved = 0x07;
    check_best(features_of(id), "avx2");
    id.saved = 0x03;
    check_best(features_of(id), "generic");
    id = everything, id.leaf7_edx &= ~(1u << 24);  // no tiles
    check_best(features_of(id), "avx512bf16");
    id = everything, id.leaf7_1_eax = 0;
    check_best(features_of(id), "avx512");
    id = everything, id.leaf1_ecx &= ~(1u << 12);
    check_best(features_of(id), "generic");
}

#elif defined(__aarch64__)

static void choices() {
    check_best(0, "neon");
    check_best(NEON_BF16, "neon_bf16");
    check(!find_isa("neon_bf16", 0), "NEON with bf16 is refused on a processor without it", "");
}

static void registers_of_the_system() {}

#else

static void choices() { check_best(~0u, "generic"); }

static void registers_of_the_system() {}

#endif

// What the processor lacks is refused, and changes nothing.
static void refusals() {
    const std::string before = heedful_isa();
    for (const char *name : ISAS) {
        const bool known = find_isa(name, ~0u), usable = find_isa(name, processor_features());
        check(known || !usable, "an instruction set of another processor is not usable", name);
        if (usable) continue;
        check(heedful_use_isa(name) != 0, "an instruction set that the processor lacks is refused", name);
        check(heedful_isa() == before, "a refused instruction set changes nothing", name);
    }
}

void test_isa() {
    choices();
    registers_of_the_system();
    refusals();
}

void test_isa_in_use(const std::string &expected) {
    const std::string in_use = heedful_isa();
    check(in_use == expected, "the instruction set in use", "expected " + expected + ", received " + in_use);
}
