#define HEEDFUL_ISA neon
#define HEEDFUL_NEON
#include "../kernels.h"
