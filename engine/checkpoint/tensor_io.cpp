// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/tensor_io.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

namespace tessera::engine {

namespace {

constexpr std::pair<at::ScalarType, runtime::SafetensorsDtype> kTypes[] = {
    {at::kBool, runtime::SafetensorsDtype::kBool},
    {at::kByte, runtime::SafetensorsDtype::kU8},
    {at::kChar, runtime::SafetensorsDtype::kI8},
    {at::kShort, runtime::SafetensorsDtype::kI16},
    {at::kInt, runtime::SafetensorsDtype::kI32},
    {at::kLong, runtime::SafetensorsDtype::kI64},
    {at::kHalf, runtime::SafetensorsDtype::kF16},
    {at::kBFloat16, runtime::SafetensorsDtype::kBF16},
    {at::kFloat, runtime::SafetensorsDtype::kF32},
    {at::kDouble, runtime::SafetensorsDtype::kF64}};

} // namespace

runtime::SafetensorsDtype saved_dtype_of(at::ScalarType dtype) {
  for (const auto& [torch_type, file_type] : kTypes) {
    if (torch_type == dtype) {
      return file_type;
    }
  }
  TESSERA_FAIL(
      "checkpoint: tensors of type {} cannot be saved; convert them to a real or integer type.",
      dtype);
}

at::ScalarType loaded_dtype_of(runtime::SafetensorsDtype dtype) {
  for (const auto& [torch_type, file_type] : kTypes) {
    if (file_type == dtype) {
      return torch_type;
    }
  }
  TESSERA_FAIL(
      "checkpoint: tensors of type {} are not supported.", name_of(dtype));
}

std::span<const std::byte> raw_bytes(const at::Tensor& tensor) {
  return {
      static_cast<const std::byte*>(tensor.const_data_ptr()),
      static_cast<size_t>(tensor.nbytes())};
}

at::Tensor loaded_tensor(const runtime::SafetensorsEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, loaded_dtype_of(entry.dtype));
  if (!entry.data.empty()) {
    std::memcpy(
        tensor.mutable_data_ptr(), entry.data.data(), entry.data.size());
  }
  return tensor;
}

} // namespace tessera::engine
