// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of examples for `"task": "examples"`.

#include "tessera/runtime/io/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests {

/// A tensor whose numbers follow from their place.
struct ExampleTensor {
  runtime::SafetensorsDtype dtype;
  std::vector<int64_t> shape;
  std::function<double(int64_t row, int64_t place)> value;
};

using ExampleTensors = std::map<std::string, ExampleTensor>;

inline std::vector<std::byte> bytes_of(const ExampleTensor& tensor) {
  int64_t numel = 1;
  for (const int64_t size : tensor.shape) {
    numel *= size;
  }
  std::vector<std::byte> bytes;
  const auto append = [&bytes](auto number) {
    const auto view = std::as_bytes(std::span(&number, 1));
    bytes.insert(bytes.end(), view.begin(), view.end());
  };
  const int64_t each =
      numel == 0 || tensor.shape.empty() ? 1 : numel / tensor.shape.front();
  for (int64_t i = 0; i < numel; ++i) {
    const double value = tensor.value(i / each, i % each);
    switch (tensor.dtype) {
      case runtime::SafetensorsDtype::kU8:
        append(static_cast<uint8_t>(value));
        break;
      case runtime::SafetensorsDtype::kU16:
        append(static_cast<uint16_t>(value));
        break;
      case runtime::SafetensorsDtype::kI32:
        append(static_cast<int32_t>(value));
        break;
      case runtime::SafetensorsDtype::kF32:
        append(static_cast<float>(value));
        break;
      default:
        append(static_cast<int64_t>(value));
    }
  }
  return bytes;
}

inline void write_examples(
    const std::filesystem::path& path,
    const ExampleTensors& tensors) {
  std::vector<runtime::SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, tensor.dtype, tensor.shape});
  }
  runtime::SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : tensors) {
    if (const auto bytes = bytes_of(tensor); !bytes.empty()) {
      writer.write(name, bytes);
    }
  }
  writer.commit();
}

/// Tokens 8 to 15, of which the first decides the others.
inline double token_of(int64_t row, int64_t place) {
  return static_cast<double>(8 + (row * 3 + place) % 8);
}

/// Texts of 7 to 12 tokens, padded to `length` with token 3.
inline ExampleTensors padded_texts(int64_t rows, int64_t length = 12) {
  const auto is_text = [](int64_t row, int64_t place) {
    return place < 7 + row % 6;
  };
  return {
      {"input_ids",
       {runtime::SafetensorsDtype::kU16,
        {rows, length},
        [=](int64_t row, int64_t place) {
          return is_text(row, place) ? token_of(row, place) : 3;
        }}},
      {"attention_mask",
       {runtime::SafetensorsDtype::kU8,
        {rows, length},
        [=](int64_t row, int64_t place) {
          return is_text(row, place) ? 1.0 : 0.0;
        }}}};
}

/// A number for each row.
inline ExampleTensor of_rows(
    int64_t rows,
    const std::function<int64_t(int64_t)>& value) {
  return {
      runtime::SafetensorsDtype::kI64,
      {rows},
      [=](int64_t row, int64_t /*place*/) {
        return static_cast<double>(value(row));
      }};
}

/// Images that become brighter from row to row, the faster the larger the
/// number of the example, up to 4.
inline ExampleTensor images(int64_t rows, int64_t height, int64_t width) {
  return {
      runtime::SafetensorsDtype::kU8,
      {rows, 3, height, width},
      [=](int64_t row, int64_t place) {
        return static_cast<double>(
            20 + (1 + row % 4) * (place / width % height) * 2 +
            place % width * 2);
      }};
}

} // namespace tessera::tests
