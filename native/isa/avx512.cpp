#define HEEDFUL_ISA avx512
#include "../kernels.h"
