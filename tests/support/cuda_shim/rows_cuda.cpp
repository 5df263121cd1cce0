// SPDX-License-Identifier: Apache-2.0
// launch_add_bias() as C++.
#include "tessera/runtime/kernels/rows_cuda.cu"
