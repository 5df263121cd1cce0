// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensors/tensor_io.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::sharding {

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

std::vector<runtime::SafetensorsSpec> file_specs_of(
    const std::vector<TensorSpec>& tensors) {
  std::vector<runtime::SafetensorsSpec> specs;
  for (const TensorSpec& tensor : tensors) {
    specs.push_back(
        {tensor.name(), saved_dtype_of(tensor.dtype), tensor.sizes});
  }
  return specs;
}

/// Number of elements that are read and converted at a time.
constexpr int64_t kChunkNumel = int64_t{1} << 19;

/// Copies stored elements to `out`, one after another.
template <size_t kBytes>
void copy_elements(
    const StoredElements& elements,
    const CommonBlock& block,
    std::byte* out) {
  constexpr auto kSize = static_cast<int64_t>(kBytes);
  for_each_segment(block, [&](int64_t here, int64_t there, int64_t numel) {
    const std::byte* from = elements.data.data() + there * kSize;
    if (numel == 1) {
      std::memcpy(out + here * kSize, from, kBytes);
    } else {
      std::memcpy(out + here * kSize, from, static_cast<size_t>(numel * kSize));
    }
  });
}

/// Calls `visit` with blocks of at most kChunkNumel elements.
template <typename Visit>
void for_each_chunk(const CommonBlock& block, const Visit& visit) {
  const int64_t numel = block.numel();
  if (numel <= kChunkNumel) {
    visit(block);
    return;
  }
  const int64_t inner = numel / block.sizes[0];
  const int64_t step = std::max<int64_t>(1, kChunkNumel / inner);
  for (int64_t row = 0; row < block.sizes[0]; row += step) {
    CommonBlock rows = block;
    rows.sizes[0] = std::min(step, block.sizes[0] - row);
    rows.here.offset += row * block.here.strides[0];
    rows.there.offset += row * block.there.strides[0];
    if (rows.sizes[0] == 1) { // what is left may still be too large
      for (auto* one : {&rows.sizes, &rows.here.strides, &rows.there.strides}) {
        one->erase(one->begin());
      }
    }
    for_each_chunk(rows, visit);
  }
}

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

at::ScalarType loaded_dtype_of(
    std::string_view name,
    runtime::SafetensorsDtype dtype) {
  for (const auto& [torch_type, file_type] : kTypes) {
    if (file_type == dtype) {
      return torch_type;
    }
  }
  TESSERA_FAIL(
      "tensor '{}' is {}, which is not supported for computation; convert the checkpoint",
      name,
      name_of(dtype));
}

std::span<const std::byte> raw_bytes(const at::Tensor& tensor) {
  return {
      static_cast<const std::byte*>(tensor.const_data_ptr()),
      static_cast<size_t>(tensor.nbytes())};
}

at::Tensor loaded_tensor(const runtime::SafetensorsEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, loaded_dtype_of(entry));
  if (!entry.data.empty()) {
    std::memcpy(
        tensor.mutable_data_ptr(), entry.data.data(), entry.data.size());
  }
  return tensor;
}

void read_block(
    const StoredElements& elements,
    const CommonBlock& common,
    const at::Tensor& target) {
  const c10::NoGradGuard no_grad;
  // The data need not be aligned: copy bytes, then convert.
  const at::Tensor buffer = at::empty(
      {std::min(kChunkNumel, common.numel())},
      loaded_dtype_of(elements.name, elements.dtype));
  for_each_chunk(common, [&](const CommonBlock& block) {
    CommonBlock read = block;
    read.here.offset = 0;
    read.here.strides = row_major_strides(block.sizes);
    auto* out = static_cast<std::byte*>(buffer.mutable_data_ptr());
    switch (size_of(elements.dtype)) {
      case 1:
        copy_elements<1>(elements, read, out);
        break;
      case 2:
        copy_elements<2>(elements, read, out);
        break;
      case 4:
        copy_elements<4>(elements, read, out);
        break;
      default:
        copy_elements<8>(elements, read, out);
    }
    target
        .as_strided(
            block.sizes,
            block.here.strides,
            target.storage_offset() + block.here.offset)
        .copy_(buffer.as_strided(block.sizes, read.here.strides));
  });
}

TensorFileWriter::TensorFileWriter(
    const std::filesystem::path& file,
    const std::vector<TensorSpec>& tensors,
    const std::map<std::string, std::string>& metadata)
    : writer_(file, file_specs_of(tensors), metadata) {}

void TensorFileWriter::write(const std::string& name, const at::Tensor& value) {
  const at::Tensor rows = value.detach().cpu().contiguous();
  if (rows.numel() > 0) {
    writer_.write(name, raw_bytes(rows));
  }
}

void TensorFileWriter::commit() {
  writer_.commit();
}

} // namespace tessera::sharding
