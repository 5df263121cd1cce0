// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that gives the operator of softmax_loss.h its
// kernel.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/softmax_loss.h"
#include "tessera/runtime/kernels/softmax_loss_cuda.h"

#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace tessera::runtime {

namespace {

const bool kSoftmaxLossRegistered = [] {
  register_softmax_loss([](const SoftmaxLossRows& rows) {
    const cudaError_t error =
        launch_softmax_loss(rows, c10::cuda::getCurrentCUDAStream().stream());
    TESSERA_CHECK(
        error == cudaSuccess,
        "softmax_loss_: the CUDA kernel for {} rows of {} classes failed to launch: {}",
        rows.rows,
        rows.classes,
        cudaGetErrorString(error));
  });
  return true;
}();

} // namespace

} // namespace tessera::runtime

TORCH_LIBRARY_IMPL(tessera, CUDA, library) {
  library.impl("softmax_loss_", &tessera::runtime::softmax_loss_cuda);
}
