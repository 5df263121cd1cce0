// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_encode.h"

#include "tessera/runtime/core/error.h"

#include <c10/util/Half.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tessera::zoo {

namespace {

/// A block of 32: its scale, then 32 integers in [-127, 127].
void encode_q8_0(const float* from, std::byte* to) {
  float largest = 0;
  for (int64_t i = 0; i < kQ8BlockNumel; ++i) {
    largest = std::max(largest, std::abs(from[i]));
  }
  const float scale = largest / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const c10::Half stored(scale);
  std::memcpy(to, &stored, sizeof(stored));
  for (int64_t i = 0; i < kQ8BlockNumel; ++i) {
    const auto step = static_cast<int8_t>(std::round(from[i] * inverse));
    std::memcpy(to + sizeof(stored) + i, &step, 1);
  }
}

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {data, data + tensor.nbytes()};
}

} // namespace

GgufType gguf_type_of(const GgufTensor& tensor, GgufType wanted) {
  if (tensor.shape.size() < 2 || tensor.name.starts_with("position_embd") ||
      tensor.name.find(".ffn_gate_inp") != std::string::npos) {
    return GgufType::kF32;
  }
  return wanted == GgufType::kQ8_0 && tensor.shape.back() % kQ8BlockNumel != 0
             ? GgufType::kF16
             : wanted;
}

std::vector<std::byte> gguf_bytes(const at::Tensor& value, GgufType type) {
  const at::Tensor rows = value.to(at::kFloat).contiguous();
  if (type == GgufType::kF32) {
    return bytes_of(rows);
  }
  if (type == GgufType::kF16) {
    return bytes_of(rows.to(at::kHalf));
  }
  TESSERA_CHECK(
      rows.dim() > 0 && rows.size(-1) % kQ8BlockNumel == 0,
      "cannot encode a tensor {} as Q8_0: its row length must be a multiple of {}",
      rows.sizes(),
      kQ8BlockNumel);
  const int64_t blocks = rows.numel() / kQ8BlockNumel;
  std::vector<std::byte> bytes(static_cast<size_t>(blocks * kQ8BlockBytes));
  const auto* from = rows.const_data_ptr<float>();
  for (int64_t i = 0; i < blocks; ++i) {
    encode_q8_0(from + i * kQ8BlockNumel, bytes.data() + i * kQ8BlockBytes);
  }
  return bytes;
}

} // namespace tessera::zoo
