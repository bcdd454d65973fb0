#define HEEDFUL_ISA generic
#include "../kernels.h"
