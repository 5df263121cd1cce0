// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers its kernels.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/pack_cuda.h"
#include "tessera/runtime/kernels/update_cuda.h"

#include <c10/cuda/CUDAStream.h>

namespace tessera {

namespace {

void check(
    cudaError_t error,
    size_t runs,
    const char* op = "optimizer update") {
  TESSERA_CHECK(
      error == cudaSuccess,
      "{}: the CUDA kernel for {} runs did not start: {}",
      op,
      runs,
      cudaGetErrorString(error));
}

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

template <typename Shard>
void update_on_current_stream(std::span<const Shard> shards) {
  check(
      runtime::launch_update(shards.data(), shards.size(), current_stream()),
      shards.size());
}

template <typename T>
void lamb_moments_on_current_stream(
    std::span<const runtime::LambShard<T>> shards,
    double* sums) {
  check(
      runtime::launch_lamb_moments(
          shards.data(), shards.size(), sums, current_stream()),
      shards.size());
}

void pack_on_current_stream(
    std::span<const runtime::PackShard> shards,
    runtime::ElementType target_type,
    double factor) {
  check(
      runtime::launch_pack(
          shards.data(), shards.size(), target_type, factor, current_stream()),
      shards.size(),
      "pack_runs_");
}

const bool kRegistered = [] {
  runtime::register_pack_cuda(&pack_on_current_stream);
  runtime::register_update_cuda(
      {&update_on_current_stream<runtime::AdamWShard<float>>,
       &update_on_current_stream<runtime::AdamWShard<double>>,
       &update_on_current_stream<runtime::SgdShard<float>>,
       &update_on_current_stream<runtime::SgdShard<double>>,
       &update_on_current_stream<runtime::LionShard<float>>,
       &update_on_current_stream<runtime::LionShard<double>>,
       &update_on_current_stream<runtime::LambShard<float>>,
       &update_on_current_stream<runtime::LambShard<double>>,
       &lamb_moments_on_current_stream<float>,
       &lamb_moments_on_current_stream<double>});
  return true;
}();

} // namespace

} // namespace tessera
