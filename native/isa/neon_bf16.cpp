#define HEEDFUL_ISA neon_bf16
#define HEEDFUL_NEON
#include "../kernels.h"
