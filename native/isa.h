// What each instruction set offers to the library.
#pragma once

#include "heedful.h"

namespace heedful {

struct Kernels {
    int32_t (*forward)(const heedful_problem *);
    int32_t (*backward)(const heedful_gradient *);
};

namespace generic {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512bf16 {
extern const Kernels kernels;
}

}  // namespace heedful
