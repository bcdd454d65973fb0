#define HEEDFUL_ISA avx512bf16
#include "../kernels.h"
#include "../peaks.h"

namespace heedful::HEEDFUL_ISA {
#include "../probes.h"

const Peaks peaks = {multiply_adds, bf16_products, read_all};
}  // namespace heedful::HEEDFUL_ISA
