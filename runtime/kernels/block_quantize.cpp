// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/block_quantize.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/pack_segments.h"

#include <c10/core/DeviceGuard.h>

namespace tessera::runtime {

namespace {

void run_blocks(
    BlockWork work,
    const at::Tensor& values,
    const at::Tensor& wire,
    const BlockFormat& format,
    int64_t parts,
    double factor) {
  const int64_t numel =
      work == BlockWork::kSum ? values.numel() : values.numel() / parts;
  TESSERA_CHECK(
      can_encode(values.scalar_type()) && values.is_contiguous() &&
          wire.scalar_type() == at::kByte && wire.is_contiguous() &&
          wire.device() == values.device(),
      "block format: values are {} on {}, the wire is {} on {}; values must be contiguous float32, bfloat16 or float16, and the wire uint8 on the same device",
      values.toString(),
      values.device(),
      wire.toString(),
      wire.device());
  TESSERA_CHECK(
      wire.numel() == parts * format.bytes(numel) &&
          (work == BlockWork::kSum || values.numel() == parts * numel),
      "block format: {} values in {} parts do not fit a wire of {} bytes, which must be {}",
      values.numel(),
      parts,
      wire.numel(),
      parts * format.bytes(numel));
  TESSERA_CHECK(
      !format.compact_scales || format.type == CodeType::kNf4,
      "block format: only nf4 has compact scales");
  TESSERA_CHECK(
      work != BlockWork::kSum || format.type != CodeType::kNf4,
      "block format: nf4 is for weights at rest, not for sums over ranks");
  if (numel == 0) {
    return;
  }
  if (is_dry_memory(values.const_data_ptr())) {
    DryKernel kernel("tessera::blocks_");
    kernel.reads(work == BlockWork::kEncode ? values : wire);
    kernel.writes(work == BlockWork::kEncode ? wire : values);
    return;
  }
  const BlockArrays arrays{
      .work = work,
      .format = format,
      .type = *detail::element_type(values.scalar_type()),
      .values = values.data_ptr(),
      .wire = wire.data_ptr<uint8_t>(),
      .numel = numel,
      .parts = parts,
      .factor = static_cast<float>(factor)};
  if (values.is_cpu()) {
    detail::run_blocks_cpu(arrays);
    return;
  }
  const c10::DeviceGuard guard(values.device());
  blocks_cuda(arrays);
}

} // namespace

bool can_encode(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

void encode_blocks_(
    const at::Tensor& wire,
    const at::Tensor& values,
    const BlockFormat& format,
    int64_t parts) {
  run_blocks(BlockWork::kEncode, values, wire, format, parts, 1);
}

void decode_blocks_(
    const at::Tensor& values,
    const at::Tensor& wire,
    const BlockFormat& format,
    int64_t parts) {
  run_blocks(BlockWork::kDecode, values, wire, format, parts, 1);
}

void sum_blocks_(
    const at::Tensor& values,
    const at::Tensor& wire,
    const BlockFormat& format,
    int64_t parts,
    double factor) {
  run_blocks(BlockWork::kSum, values, wire, format, parts, factor);
}

} // namespace tessera::runtime
