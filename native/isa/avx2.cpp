#define HEEDFUL_ISA avx2
#include "../kernels.h"
