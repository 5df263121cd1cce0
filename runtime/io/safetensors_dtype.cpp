// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/safetensors.h"

namespace tessera {

namespace {

struct Row {
  runtime::SafetensorsDtype dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<Row, 16> kRows{{
    {runtime::SafetensorsDtype::kBool, "BOOL", 1},
    {runtime::SafetensorsDtype::kU8, "U8", 1},
    {runtime::SafetensorsDtype::kI8, "I8", 1},
    {runtime::SafetensorsDtype::kF8E4M3, "F8_E4M3", 1},
    {runtime::SafetensorsDtype::kF8E5M2, "F8_E5M2", 1},
    {runtime::SafetensorsDtype::kF8E8M0, "F8_E8M0", 1},
    {runtime::SafetensorsDtype::kI16, "I16", 2},
    {runtime::SafetensorsDtype::kU16, "U16", 2},
    {runtime::SafetensorsDtype::kF16, "F16", 2},
    {runtime::SafetensorsDtype::kBF16, "BF16", 2},
    {runtime::SafetensorsDtype::kI32, "I32", 4},
    {runtime::SafetensorsDtype::kU32, "U32", 4},
    {runtime::SafetensorsDtype::kF32, "F32", 4},
    {runtime::SafetensorsDtype::kI64, "I64", 8},
    {runtime::SafetensorsDtype::kU64, "U64", 8},
    {runtime::SafetensorsDtype::kF64, "F64", 8},
}};

const Row& row_of(runtime::SafetensorsDtype dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) {
      return row;
    }
  }
  TESSERA_FAIL(
      "SafetensorsDtype {} does not exist; use one of its enumerators",
      static_cast<int>(dtype));
}

} // namespace

size_t size_of(runtime::SafetensorsDtype dtype) {
  return row_of(dtype).bytes;
}

std::string_view name_of(runtime::SafetensorsDtype dtype) {
  return row_of(dtype).name;
}

std::optional<runtime::SafetensorsDtype> safetensors_dtype(
    std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

} // namespace tessera
