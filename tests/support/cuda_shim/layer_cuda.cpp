// SPDX-License-Identifier: Apache-2.0
// The kernels of layer_cuda.h as C++.
#include "tessera/runtime/kernels/layer_cuda.cu"
