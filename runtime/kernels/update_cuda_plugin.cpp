// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers its kernels.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/pack_cuda.h"
#include "tessera/runtime/kernels/update_cuda.h"

#include <c10/cuda/CUDAStream.h>

namespace tessera::runtime {

namespace {

void check(
    cudaError_t error,
    size_t runs,
    const char* op = "optimizer update") {
  TESSERA_CHECK(
      error == cudaSuccess,
      "{}: the CUDA kernel for {} runs failed to launch: {}",
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
      launch_update(shards.data(), shards.size(), current_stream()),
      shards.size());
}

template <typename T>
void lamb_moments_on_current_stream(
    std::span<const LambShard<T>> shards,
    double* sums) {
  check(
      launch_lamb_moments(shards.data(), shards.size(), sums, current_stream()),
      shards.size());
}

void pack_on_current_stream(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode) {
  check(
      launch_pack(
          shards.data(),
          shards.size(),
          target_type,
          factor,
          mode,
          current_stream()),
      shards.size(),
      "pack_runs_");
}

const bool kRegistered = [] {
  register_pack_cuda(&pack_on_current_stream);
  register_update_cuda(
      {&update_on_current_stream<AdamWShard<float>>,
       &update_on_current_stream<AdamWShard<double>>,
       &update_on_current_stream<SgdShard<float>>,
       &update_on_current_stream<SgdShard<double>>,
       &update_on_current_stream<LionShard<float>>,
       &update_on_current_stream<LionShard<double>>,
       &update_on_current_stream<AdanShard<float>>,
       &update_on_current_stream<AdanShard<double>>,
       &update_on_current_stream<LambShard<float>>,
       &update_on_current_stream<LambShard<double>>,
       &lamb_moments_on_current_stream<float>,
       &lamb_moments_on_current_stream<double>});
  return true;
}();

} // namespace

} // namespace tessera::runtime
