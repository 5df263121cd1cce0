// SPDX-License-Identifier: Apache-2.0
// launch_update() and launch_lamb_moments() as C++.
#include "tessera/runtime/kernels/update_cuda.cu"
