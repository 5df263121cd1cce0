// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/cuda_registry.h"

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

namespace {

// One plugin per process; it registers before any kernel is requested.
UpdateCudaFunctions update_functions;
PackCudaFunction pack_function = nullptr;
BlocksCudaFunction blocks_function = nullptr;

const UpdateCudaFunctions& registered() {
  TESSERA_CHECK(
      update_functions.update != nullptr,
      "optimizer update: the CUDA backend is not loaded, so CUDA tensors cannot be updated; build with -DTESSERA_CUDA=ON, or keep the shard on the CPU");
  return update_functions;
}

} // namespace

void register_update_cuda(const UpdateCudaFunctions& functions) {
  update_functions = functions;
}

void update_cuda(const UpdateShards& shards) {
  registered().update(shards);
}

void lamb_moments_cuda(const LambShards& shards, double* sums) {
  registered().lamb_moments(shards, sums);
}

void register_pack_cuda(PackCudaFunction function) {
  pack_function = function;
}

void pack_cuda(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode) {
  TESSERA_CHECK(
      pack_function != nullptr,
      "pack_runs_: the CUDA backend is not loaded, so gradients of CUDA parameters cannot be collected; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  pack_function(shards, target_type, factor, mode);
}

void register_blocks_cuda(BlocksCudaFunction function) {
  blocks_function = function;
}

void blocks_cuda(const BlockArrays& arrays) {
  TESSERA_CHECK(
      blocks_function != nullptr,
      "block format: the CUDA backend is not loaded, so CUDA tensors cannot be sent in fewer bits; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  blocks_function(arrays);
}

} // namespace tessera::runtime
