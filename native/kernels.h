// Everything that is compiled once for each instruction set. The file that includes this names its namespace:
//
//     #define HEEDFUL_ISA avx2
//     #include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "heedful.h"
#include "isa.h"

#define INLINE static inline __attribute__((always_inline))

namespace heedful::HEEDFUL_ISA {
#include "vector.h"
#include "number.h"
#include "product.h"
#include "pack.h"
#include "rows.h"
#include "drops.h"
#include "online.h"
#include "output.h"
#include "forward.h"
#include "decode.h"
#include "schedule.h"
#include "backward.h"

const Kernels kernels = {forward, backward};
}  // namespace heedful::HEEDFUL_ISA
