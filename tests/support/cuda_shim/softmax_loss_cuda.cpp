// SPDX-License-Identifier: Apache-2.0
// launch_softmax_loss() as C++.
#include "tessera/runtime/kernels/softmax_loss_cuda.cu"
