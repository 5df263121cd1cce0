// SPDX-License-Identifier: Apache-2.0
// launch_norm() as C++.
#include "tessera/runtime/kernels/norm_cuda.cu"
