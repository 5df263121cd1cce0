// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tensor_bytes.h"

#include "tessera/runtime/core/error.h"

#include <torch/torch.h>

#include <cstring>

namespace tessera {

SafetensorsDtype safetensors_dtype_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat32:
      return SafetensorsDtype::kF32;
    case torch::kFloat16:
      return SafetensorsDtype::kF16;
    case torch::kBFloat16:
      return SafetensorsDtype::kBF16;
    default:
      TESSERA_FAIL(
          "tensors of ",
          torch::toString(dtype),
          " are not exported; convert them to float32, float16 or bfloat16");
  }
}

torch::Tensor tensor_of(const SafetensorsEntry& entry) {
  torch::ScalarType dtype = torch::kFloat32;
  switch (entry.dtype) {
    case SafetensorsDtype::kF32:
      break;
    case SafetensorsDtype::kF16:
      dtype = torch::kFloat16;
      break;
    case SafetensorsDtype::kBF16:
      dtype = torch::kBFloat16;
      break;
    default:
      TESSERA_FAIL(
          "tensor '",
          entry.name,
          "' is ",
          name_of(entry.dtype),
          "; weights must be F32, F16 or BF16: convert the checkpoint");
  }
  torch::Tensor tensor =
      torch::empty(entry.shape, torch::TensorOptions().dtype(dtype));
  if (!entry.data.empty()) {
    std::memcpy(tensor.data_ptr(), entry.data.data(), entry.data.size());
  }
  return tensor;
}

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  TESSERA_CHECK(
      tensor.is_cpu() && tensor.is_contiguous(),
      "only a contiguous tensor on the CPU has bytes to write; call "
      ".cpu().contiguous() first");
  return {
      static_cast<const std::byte*>(tensor.const_data_ptr()),
      static_cast<std::size_t>(tensor.nbytes())};
}

} // namespace tessera
