// What the processor can do, as far as the operating system lets it. Compilers name these features in different ways, so
// that the processor or the system is asked directly.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace heedful {

// Bits of a set of features. NEON needs none: every 64-bit Arm processor has it.
enum Feature : uint32_t {
    AVX2 = 1,
    FMA = 2,
    F16C = 4,
    AVX512F = 8,
    AVX512BW = 16,
    AVX512DQ = 32,
    AVX512VL = 64,
    AVX512BF16 = 128,
    NEON_BF16 = 256,
    AMX_BF16 = 512,
};

#if defined(__x86_64__)

// The answers of the instructions cpuid and xgetbv.
struct CpuId {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_edx, leaf7_1_eax;
    uint32_t saved;  // the registers that the system saves: bits 1 and 2 are AVX's, 5 to 7 AVX-512's, 17 and 18 AMX's
};

inline uint32_t features_of(const CpuId &id) {
    const auto has = [](uint32_t word, int bit, Feature feature) { return word >> bit & 1 ? (uint32_t)feature : 0u; };
    uint32_t features = 0;
    if ((id.saved & 0x06) == 0x06)
        features |= has(id.leaf7_ebx, 5, AVX2) | has(id.leaf1_ecx, 12, FMA) | has(id.leaf1_ecx, 29, F16C);
    if ((id.saved & 0xE6) == 0xE6)
        features |= has(id.leaf7_ebx, 16, AVX512F) | has(id.leaf7_ebx, 30, AVX512BW) |
                    has(id.leaf7_ebx, 17, AVX512DQ) | has(id.leaf7_ebx, 31, AVX512VL) |
                    has(id.leaf7_1_eax, 5, AVX512BF16);
    if ((id.saved & 0x60000) == 0x60000 && (id.leaf7_edx >> 24 & 1)) features |= has(id.leaf7_edx, 22, AMX_BF16);
    return features;
}

inline CpuId read_cpuid() {
    CpuId id{};
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) id.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        id.leaf7_ebx = ebx, id.leaf7_edx = edx;
        const uint32_t last_subleaf = eax;
        if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) id.leaf7_1_eax = eax;
    }
    const bool has_xgetbv = id.leaf1_ecx >> 27 & 1;
    // volatile: the compiler must not move it out of the condition, where it would be an illegal instruction.
    if (has_xgetbv) asm volatile("xgetbv" : "=a"(id.saved), "=d"(edx) : "c"(0));
    return id;
}

// Whether the system lets this process use the tile registers of AMX, which it must be asked.
inline bool tiles_permitted() {
#if defined(__linux__)
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

inline uint32_t processor_features() {
    const uint32_t features = features_of(read_cpuid());
    return features & AMX_BF16 && !tiles_permitted() ? features & ~AMX_BF16 : features;
}

#elif defined(__aarch64__) && defined(__linux__)

inline uint32_t processor_features() {
    constexpr unsigned long HAS_BF16 = 1ul << 14;  // HWCAP2_BF16, which older headers lack
    return getauxval(AT_HWCAP2) & HAS_BF16 ? NEON_BF16 : 0u;
}

#elif defined(__aarch64__) && defined(__APPLE__)

inline uint32_t processor_features() {
    int has_bf16 = 0;
    size_t size = sizeof has_bf16;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has_bf16, &size, nullptr, 0) == 0 && has_bf16 ? NEON_BF16 : 0u;
}

#elif defined(__aarch64__) && defined(_WIN32)

inline uint32_t processor_features() {
    constexpr DWORD HAS_BF16 = 68;  // PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE, which older headers lack
    return IsProcessorFeaturePresent(HAS_BF16) ? NEON_BF16 : 0u;
}

#else

inline uint32_t processor_features() { return 0; }

#endif

}  // namespace heedful
