// The instruction sets in ascending order of speed, and the choice of one.

#include "isa.h"

#include <cstring>

#include "processor.h"

namespace heedful {

#define DECLARE(isa)                     \
    namespace isa {                      \
    extern const Kernels kernels;        \
    extern const PeakLoops peak_loops;   \
    }
DECLARE(generic)
DECLARE(avx2)
DECLARE(avx512)
DECLARE(avx512bf16)
DECLARE(amx)
DECLARE(neon)
DECLARE(neon_bf16)

inline constexpr uint32_t AVX2_NEEDS = AVX2 | FMA | F16C;
inline constexpr uint32_t AVX512_NEEDS = AVX2_NEEDS | AVX512F | AVX512BW | AVX512DQ | AVX512VL;

static const InstructionSet instruction_sets[] = {
    {"generic", 0, &generic::kernels, &generic::peak_loops},
#if defined(__x86_64__)
    {"avx2", AVX2_NEEDS, &avx2::kernels, &avx2::peak_loops},
    {"avx512", AVX512_NEEDS, &avx512::kernels, &avx512::peak_loops},
    {"avx512bf16", AVX512_NEEDS | AVX512BF16, &avx512bf16::kernels, &avx512bf16::peak_loops},
    {"amx", AVX512_NEEDS | AVX512BF16 | AMX_BF16, &amx::kernels, &amx::peak_loops},
#elif defined(__aarch64__)
    {"neon", 0, &neon::kernels, &neon::peak_loops},
    {"neon_bf16", NEON_BF16, &neon_bf16::kernels, &neon_bf16::peak_loops},
#endif
};

const InstructionSet *best_isa(uint32_t features) {
    const InstructionSet *best = nullptr;
    for (const InstructionSet &isa : instruction_sets)
        if (!(isa.needs & ~features)) best = &isa;
    return best;
}

const InstructionSet *find_isa(const char *name, uint32_t features) {
    for (const InstructionSet &isa : instruction_sets)
        if (!strcmp(isa.name, name) && !(isa.needs & ~features)) return &isa;
    return nullptr;
}

std::atomic<const InstructionSet *> isa_in_use{best_isa(processor_features())};

}  // namespace heedful
