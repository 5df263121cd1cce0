// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/cuda_registry.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/kernel_check.h"
#include "tessera/runtime/kernels/kernel_problems.h"

#include <c10/core/DeviceGuard.h>

namespace tessera::runtime {

namespace {

// One plugin per process; it registers before any kernel is requested.
DeviceKernels device_kernels;

void check_update(bool is_registered) {
  TESSERA_CHECK(
      is_registered,
      "optimizer update: the CUDA backend is not loaded, so CUDA tensors cannot be updated; build with -DTESSERA_CUDA=ON, or keep the shard on the CPU");
}

void check_norm(bool is_registered) {
  TESSERA_CHECK(
      is_registered,
      "mixed_norm: the CUDA backend is not loaded; build with -DTESSERA_CUDA=ON and call tessera::init() first");
}

template <typename Member>
void take_over(Member& local, Member given) {
  local = given != nullptr ? given : local;
}

size_t norm_kernel_for(const at::Tensor& x) {
  return norm_kernel_of(
      x.scalar_type() == at::kHalf ? ElementType::kFloat16
                                   : ElementType::kBFloat16);
}

} // namespace

void register_device_kernels(const DeviceKernels& kernels) {
  take_over(device_kernels.update, kernels.update);
  take_over(device_kernels.lamb_moments, kernels.lamb_moments);
  take_over(device_kernels.pack, kernels.pack);
  take_over(device_kernels.blocks, kernels.blocks);
  take_over(device_kernels.norm, kernels.norm);
  take_over(device_kernels.norm_backward, kernels.norm_backward);
  take_over(device_kernels.add_bias, kernels.add_bias);
  take_over(device_kernels.column_sums, kernels.column_sums);
  take_over(device_kernels.copy_rows, kernels.copy_rows);
  take_over(device_kernels.is_capturing, kernels.is_capturing);
}

const DeviceKernels& registered_kernels() {
  return device_kernels;
}

void update_cuda(const UpdateShards& shards) {
  check_update(device_kernels.update != nullptr);
  checked_kernels(kernel_of(shards)).update(shards);
}

void lamb_moments_cuda(const LambShards& shards, double* sums) {
  check_update(device_kernels.lamb_moments != nullptr);
  checked_kernels(moments_kernel_of(shards)).lamb_moments(shards, sums);
}

void pack_cuda(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode) {
  TESSERA_CHECK(
      device_kernels.pack != nullptr,
      "pack_segments_: the CUDA backend is not loaded, so gradients of CUDA parameters cannot be collected; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  checked_kernels(pack_kernel_of(target_type))
      .pack(shards, target_type, factor, mode);
}

void blocks_cuda(const BlockArrays& arrays) {
  TESSERA_CHECK(
      device_kernels.blocks != nullptr,
      "block format: the CUDA backend is not loaded, so CUDA tensors cannot be sent in fewer bits; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  checked_kernels(blocks_kernel_of(arrays.format.type, arrays.type))
      .blocks(arrays);
}

void add_bias_cuda(const BiasRows& rows) {
  TESSERA_CHECK(
      device_kernels.add_bias != nullptr,
      "add_: the CUDA backend is not loaded; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  checked_kernels(bias_kernel_of(rows.type)).add_bias(rows);
}

void column_sums_cuda(const ColumnSums& sums) {
  TESSERA_CHECK(
      device_kernels.column_sums != nullptr,
      "sum: the CUDA backend is not loaded; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  checked_kernels(sums_kernel_of(sums.type)).column_sums(sums);
}

void copy_rows_cuda(const RowCopy& rows) {
  TESSERA_CHECK(
      device_kernels.copy_rows != nullptr,
      "copies of rows: the CUDA backend is not loaded; build with -DTESSERA_CUDA=ON and call tessera::init() first");
  checked_kernels(kRowCopyKernel).copy_rows(rows);
}

NormResults norm_cuda(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  check_norm(device_kernels.norm != nullptr);
  const c10::DeviceGuard guard(x.device());
  return checked_kernels(norm_kernel_for(x))
      .norm(x, features, groups, spatial, weight, bias, eps, centered);
}

NormResults norm_backward_cuda(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted) {
  check_norm(device_kernels.norm_backward != nullptr);
  const c10::DeviceGuard guard(x.device());
  return checked_kernels(norm_kernel_for(x))
      .norm_backward(
          gradient,
          x,
          features,
          groups,
          spatial,
          mean,
          rstd,
          weight,
          centered,
          wanted);
}

} // namespace tessera::runtime
