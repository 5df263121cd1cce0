// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers the kernels of layer_kernels.h.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/layer_cuda.h"
#include "tessera/runtime/kernels/layer_kernels.h"

#include <c10/cuda/CUDAStream.h>

namespace tessera::runtime {

namespace {

template <typename Arguments>
void launch_layer(
    const char* name,
    cudaError_t (*launch)(const Arguments&, cudaStream_t),
    const Arguments& arguments) {
  const cudaError_t error =
      launch(arguments, c10::cuda::getCurrentCUDAStream().stream());
  TESSERA_CHECK(
      error == cudaSuccess,
      "{}: the CUDA kernel failed to launch: {}",
      name,
      cudaGetErrorString(error));
}

const bool kLayersRegistered = [] {
  register_layer_kernels(
      {.gated =
           [](const GatedRows& rows) {
             launch_layer("gated_activation", &launch_gated, rows);
           },
       .gated_backward =
           [](const GatedRows& rows) {
             launch_layer(
                 "gated_activation_backward", &launch_gated_backward, rows);
           },
       .rotate =
           [](const RotaryHeads& heads) {
             launch_layer("rotate_heads", &launch_rotary, heads);
           }});
  return true;
}();

} // namespace

} // namespace tessera::runtime
