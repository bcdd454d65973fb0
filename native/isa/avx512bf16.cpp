#define HEEDFUL_ISA avx512bf16
#include "../kernels.h"
