#define HEEDFUL_ISA amx
#include "../kernels.h"
