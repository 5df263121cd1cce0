// SPDX-License-Identifier: Apache-2.0
// launch_blocks() as C++.
#include "tessera/runtime/kernels/block_quantize_cuda.cu"
