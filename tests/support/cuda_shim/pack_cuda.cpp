// SPDX-License-Identifier: Apache-2.0
// launch_pack() as C++.
#include "tessera/runtime/kernels/pack_cuda.cu"
