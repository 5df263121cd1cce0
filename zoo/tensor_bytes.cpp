// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tensor_bytes.h"

#include "tessera/runtime/core/error.h"

#include <torch/torch.h>

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
