// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers its kernels.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/block_quantize_cuda.h"
#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/pack_cuda.h"
#include "tessera/runtime/kernels/rows_cuda.h"
#include "tessera/runtime/kernels/update_cuda.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <variant>

namespace tessera::runtime {

namespace {

void check(
    cudaError_t error,
    size_t segments,
    const char* op = "optimizer update") {
  TESSERA_CHECK(
      error == cudaSuccess,
      "{}: the CUDA kernel for {} runs failed to launch: {}",
      op,
      segments,
      cudaGetErrorString(error));
}

template <typename Shards>
size_t count_of(const Shards& shards) {
  return std::visit([](const auto& s) { return s.size(); }, shards);
}

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

void update_on_current_stream(const UpdateShards& shards) {
  check(launch_update(shards, current_stream()), count_of(shards));
}

void lamb_moments_on_current_stream(const LambShards& shards, double* sums) {
  check(launch_lamb_moments(shards, sums, current_stream()), count_of(shards));
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
      "pack_segments_");
}

void blocks_on_current_stream(const BlockArrays& arrays) {
  check(
      launch_blocks(arrays, current_stream()),
      static_cast<size_t>(arrays.parts),
      "block format");
}

void add_bias_on_current_stream(const BiasRows& rows) {
  check(
      launch_add_bias(rows, current_stream()),
      static_cast<size_t>(rows.rows),
      "add_ of a bias");
}

void column_sums_on_current_stream(const ColumnSums& sums) {
  check(
      launch_column_sums(sums, current_stream()),
      static_cast<size_t>(sums.rows),
      "sum over rows");
}

void copy_rows_on_current_stream(const RowCopy& rows) {
  check(
      launch_copy_rows(rows, current_stream()),
      static_cast<size_t>(rows.rows),
      "copies of rows");
}

bool is_current_stream_captured() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
         c10::cuda::CaptureStatus::None;
}

const bool kRegistered = [] {
  register_device_kernels(
      {.update = &update_on_current_stream,
       .lamb_moments = &lamb_moments_on_current_stream,
       .pack = &pack_on_current_stream,
       .blocks = &blocks_on_current_stream,
       .add_bias = &add_bias_on_current_stream,
       .column_sums = &column_sums_on_current_stream,
       .copy_rows = &copy_rows_on_current_stream,
       .is_capturing = &is_current_stream_captured});
  return true;
}();

} // namespace

} // namespace tessera::runtime
