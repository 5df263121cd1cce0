// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that convert tensors to and from the bytes of safetensors files.

#include "tessera/runtime/io/safetensors.h"
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::sharding {

/// @throws tessera::Error for dtypes that the format does not have.
runtime::SafetensorsDtype saved_dtype_of(at::ScalarType dtype);

/// Returns the LibTorch dtype of a tensor in a file.
/// @param name for error messages.
/// @throws tessera::Error when LibTorch's CPU kernels do not support the type,
///   as for 8-bit floats and unsigned integers above 8 bits.
at::ScalarType loaded_dtype_of(
    std::string_view name,
    runtime::SafetensorsDtype dtype);
inline at::ScalarType loaded_dtype_of(const runtime::SafetensorsEntry& entry) {
  return loaded_dtype_of(entry.name, entry.dtype);
}

/// The bytes of a contiguous CPU tensor; valid as long as the tensor.
std::span<const std::byte> raw_bytes(const at::Tensor& tensor);

/// A copy of the entry on the CPU.
at::Tensor loaded_tensor(const runtime::SafetensorsEntry& entry);

/// Elements of a tensor in a mapped file.
struct StoredElements {
  std::string_view name; ///< for errors
  runtime::SafetensorsDtype dtype;
  std::span<const std::byte> data; ///< not aligned
};

/// Copies stored elements, converted to the target's dtype. Needs a few MiB in
/// addition to the target.
/// @param common elements of the target (here) and of the data (there).
/// @param target on any device; places count from its first element.
void read_block(
    const StoredElements& elements,
    const CommonBlock& common,
    const at::Tensor& target);

/// Writes whole tensors to one safetensors file, which appears at commit().
class TensorFileWriter {
 public:
  /// @param tensors all that will be written.
  /// @param metadata transformers rejects files that do not say "pt".
  TensorFileWriter(
      const std::filesystem::path& file,
      const std::vector<TensorSpec>& tensors,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// @param value on any device, with any strides.
  void write(const std::string& name, const at::Tensor& value);

  /// Makes the file durable and visible; see SafetensorsWriter.
  void commit();

 private:
  runtime::SafetensorsWriter writer_;
};

} // namespace tessera::sharding
