// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/safetensors.h"

namespace tessera::runtime {

namespace {

struct Row {
  SafetensorsDtype dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<Row, 16> kRows{{
    {SafetensorsDtype::kBool, "BOOL", 1},
    {SafetensorsDtype::kU8, "U8", 1},
    {SafetensorsDtype::kI8, "I8", 1},
    {SafetensorsDtype::kF8E4M3, "F8_E4M3", 1},
    {SafetensorsDtype::kF8E5M2, "F8_E5M2", 1},
    {SafetensorsDtype::kF8E8M0, "F8_E8M0", 1},
    {SafetensorsDtype::kI16, "I16", 2},
    {SafetensorsDtype::kU16, "U16", 2},
    {SafetensorsDtype::kF16, "F16", 2},
    {SafetensorsDtype::kBF16, "BF16", 2},
    {SafetensorsDtype::kI32, "I32", 4},
    {SafetensorsDtype::kU32, "U32", 4},
    {SafetensorsDtype::kF32, "F32", 4},
    {SafetensorsDtype::kI64, "I64", 8},
    {SafetensorsDtype::kU64, "U64", 8},
    {SafetensorsDtype::kF64, "F64", 8},
}};

const Row& row_of(SafetensorsDtype dtype) {
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

size_t size_of(SafetensorsDtype dtype) {
  return row_of(dtype).bytes;
}

std::string_view name_of(SafetensorsDtype dtype) {
  return row_of(dtype).name;
}

std::optional<SafetensorsDtype> safetensors_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

} // namespace tessera::runtime
