// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/example_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/sharding/tensors/tensor_io.h"
#include "tessera/text/rows/data_format.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

/// The file itself, or all those of a folder.
std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) {
    return {path};
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  TESSERA_CHECK(
      !files.empty(),
      "'{}' is a folder without a .safetensors file; examples are read from such files",
      path.string());
  return files;
}

/// @throws tessera::Error on a file that is known to be something else.
void check_is_not_another_format(const fs::path& path) {
  const text::DataFormat format = text::data_format_of(path);
  TESSERA_CHECK(
      format == text::DataFormat::kUnknown ||
          format == text::DataFormat::kSafetensors,
      "'{}' is {}; \"task\": \"examples\" reads safetensors files of tensors such as input_ids, made with safetensors.numpy.save_file() (configs/README.md). For labeled texts in JSON lines, use \"task\": \"text_classification\".",
      path.string(),
      name_of(format));
}

/// The type with the same bits, for types that LibTorch barely supports.
at::ScalarType type_of_bits(
    const std::string& name,
    runtime::SafetensorsDtype dtype) {
  switch (dtype) {
    case runtime::SafetensorsDtype::kU16:
      return at::kShort;
    case runtime::SafetensorsDtype::kU32:
      return at::kInt;
    default:
      return sharding::loaded_dtype_of(name, dtype);
  }
}

} // namespace

std::string shape_text(const std::vector<int64_t>& row_shape) {
  std::string text = "[rows";
  for (const int64_t size : row_shape) {
    text += ", " + std::to_string(size);
  }
  return text + "]";
}

std::string show(const ExampleFiles::Column& column) {
  return std::string(name_of(column.dtype)) + " " +
         shape_text(column.row_shape);
}

ExampleFiles::ExampleFiles(const fs::path& path) : path_(path) {
  for (const fs::path& file : files_of(path)) {
    check_is_not_another_format(file);
    add(runtime::SafetensorsFile::open(file));
  }
}

void ExampleFiles::add(runtime::SafetensorsFile file) {
  const std::string place = formatted("'{}'", file.path().string());
  TESSERA_CHECK(
      !file.entries().empty(),
      "{} has no tensors; examples are tensors such as input_ids, one row each",
      place);
  std::vector<Column> columns;
  int64_t rows = 0;
  for (const runtime::SafetensorsEntry& entry : file.entries()) {
    TESSERA_CHECK(
        !entry.shape.empty(),
        "{}: '{}' is a single number; row i of each tensor must belong to example i",
        place,
        entry.name);
    if (columns.empty()) {
      rows = entry.shape.front();
    }
    TESSERA_CHECK(
        entry.shape.front() == rows,
        "{}: '{}' has {} rows and '{}' has {}; row i of each tensor must belong to example i",
        place,
        entry.name,
        entry.shape.front(),
        columns.front().name,
        rows);
    columns.push_back(
        {entry.name,
         entry.dtype,
         {entry.shape.begin() + 1, entry.shape.end()}});
    type_of_bits(entry.name, entry.dtype); // throws if there is none
  }
  std::sort(
      columns.begin(), columns.end(), [](const Column& a, const Column& b) {
        return a.name < b.name;
      });
  if (files_.empty()) {
    columns_ = std::move(columns);
  } else {
    for (const Column& column : columns) {
      const Column* first = find(column.name);
      TESSERA_CHECK(
          first != nullptr,
          "{}: '{}' is not in the first file of its folder, which has {}; all files must have the same tensors",
          place,
          column.name,
          names());
      TESSERA_CHECK(
          first->dtype == column.dtype && first->row_shape == column.row_shape,
          "{}: '{}' is {}, but {} in the first file of its folder; all files must agree",
          place,
          column.name,
          show(column),
          show(*first));
    }
    for (const Column& column : columns_) {
      TESSERA_CHECK(
          file.contains(column.name),
          "{} lacks '{}', which the first file of its folder has",
          place,
          column.name);
    }
  }
  starts_.push_back(starts_.back() + static_cast<size_t>(rows));
  files_.push_back(std::move(file));
}

const ExampleFiles::Column* ExampleFiles::find(const std::string& name) const {
  const auto found =
      std::find_if(columns_.begin(), columns_.end(), [&](const Column& column) {
        return column.name == name;
      });
  return found == columns_.end() ? nullptr : &*found;
}

std::string ExampleFiles::names() const {
  std::string list;
  for (const Column& column : columns_) {
    list += (list.empty() ? "" : ", ") + column.name;
  }
  return list;
}

at::Tensor ExampleFiles::read(
    const Column& column,
    std::span<const size_t> rows) const {
  std::vector<int64_t> sizes{static_cast<int64_t>(rows.size())};
  sizes.insert(sizes.end(), column.row_shape.begin(), column.row_shape.end());
  const at::Tensor bits =
      at::empty(sizes, type_of_bits(column.name, column.dtype));
  const size_t row_bytes =
      rows.empty() ? 0 : static_cast<size_t>(bits.nbytes()) / rows.size();
  auto* to = static_cast<std::byte*>(bits.mutable_data_ptr());
  for (const size_t row : rows) {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), row);
    TESSERA_CHECK(
        next != starts_.end(),
        "'{}' has {} examples; there is no example {}",
        path_.string(),
        size(),
        row);
    const auto file = static_cast<size_t>(next - starts_.begin()) - 1;
    const runtime::SafetensorsEntry& entry = files_[file].at(column.name);
    if (row_bytes > 0) {
      std::memcpy(
          to,
          entry.data.subspan((row - starts_[file]) * row_bytes).data(),
          row_bytes);
    }
    to += row_bytes;
  }
  switch (column.dtype) {
    case runtime::SafetensorsDtype::kU16:
      return bits.to(at::kLong).bitwise_and(0xffff);
    case runtime::SafetensorsDtype::kU32:
      return bits.to(at::kLong).bitwise_and(0xffffffff);
    default:
      return bits;
  }
}

} // namespace tessera::zoo
