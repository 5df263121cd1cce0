// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/column_checks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/zoo/inputs/input_kind.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>

namespace tessera::zoo {

bool is_floating(runtime::SafetensorsDtype dtype) {
  return dtype == runtime::SafetensorsDtype::kF64 ||
         dtype == runtime::SafetensorsDtype::kF32 ||
         dtype == runtime::SafetensorsDtype::kF16 ||
         dtype == runtime::SafetensorsDtype::kBF16;
}

void ColumnChecks::names() const {
  std::vector<std::string> known;
  for (const auto& [name, kind] : known_inputs()) {
    known.emplace_back(name);
  }
  for (const Column& column : files_.columns()) {
    if (std::find(known.begin(), known.end(), column.name) == known.end()) {
      const std::string nearest = runtime::nearest_name(column.name, known);
      TESSERA_FAIL(
          "{} is not an input of the model{}",
          place(column.name),
          nearest.empty() ? "; remove it, or give it the name that "
                            "transformers uses for it"
                          : "; did you mean '" + nearest + "'?");
    }
  }
}

void ColumnChecks::types(bool labels_may_be_floats) const {
  for (const Column& column : files_.columns()) {
    const InputKind kind = kind_of_input(column.name);
    const bool may_float = kind == InputKind::kPixels ||
                           kind == InputKind::kNumbers ||
                           (kind == InputKind::kLabels && labels_may_be_floats);
    TESSERA_CHECK(
        may_float || !is_floating(column.dtype),
        "{} is {}; its values must be integers: save them with an integer type",
        place(column.name),
        show(column));
    TESSERA_CHECK(
        kind != InputKind::kNumbers || is_floating(column.dtype),
        "{} is {}; it must be of a floating-point type",
        place(column.name),
        show(column));
    for (const int64_t size : column.row_shape) {
      TESSERA_CHECK(
          size > 0,
          "{} is {}, which is empty",
          place(column.name),
          show(column));
    }
  }
}

const ColumnChecks::Column& ColumnChecks::need(
    const std::string& name,
    const char* remedy) const {
  const Column* column = files_.find(name);
  TESSERA_CHECK(
      column != nullptr,
      "'{}' lacks '{}', which {} needs for training{}; it has {}",
      files_.path().string(),
      name,
      architecture_,
      remedy,
      files_.names());
  return *column;
}

void ColumnChecks::refuse(const std::string& name, const char* reason) const {
  TESSERA_CHECK(
      files_.find(name) == nullptr, "{} is given, but {}", place(name), reason);
}

void ColumnChecks::shape(
    const std::string& name,
    const std::vector<int64_t>& wanted) const {
  const Column* column = files_.find(name);
  TESSERA_CHECK(
      column == nullptr || column->row_shape == wanted,
      "{} is {}; it must be {}",
      place(name),
      column == nullptr ? "" : show(*column),
      shape_text(wanted));
}

void ColumnChecks::dims(const Column& column, size_t wanted, const char* label)
    const {
  TESSERA_CHECK(
      column.row_shape.size() == wanted,
      "{} is {}; {} takes {}",
      place(column.name),
      show(column),
      architecture_,
      label);
}

void ColumnChecks::divides(const Column& ids) const {
  TESSERA_CHECK(
      ids.row_shape.back() % options_.sequence_multiple == 0,
      "{} is {}; to divide sequences over ranks, the length must be a multiple of {}: pad it",
      place(ids.name),
      show(ids),
      options_.sequence_multiple);
}

void ColumnChecks::for_each_rows(
    const Column& column,
    const std::function<void(const at::Tensor&)>& use) const {
  constexpr size_t kRowsAtATime = 65536;
  for (size_t begin = 0; begin < files_.size(); begin += kRowsAtATime) {
    std::vector<size_t> rows(std::min(kRowsAtATime, files_.size() - begin));
    std::iota(rows.begin(), rows.end(), begin);
    use(files_.read(column, rows));
  }
}

void ColumnChecks::range(const Column& column, int64_t bound) const {
  if (bound > 0) {
    for_each_rows(column, [&](const at::Tensor& values) {
      check_range(files_, column.name, values, bound);
    });
  }
}

void ColumnChecks::flags(const Column& column) const {
  for_each_rows(column, [&](const at::Tensor& values) {
    const at::Tensor wrong = values.ne(0).logical_and(values.ne(1));
    if (wrong.any().item<bool>()) {
      TESSERA_FAIL(
          "{} holds {}; several labels per row are 0 or 1 each; for numbers, set model.problem_type=regression",
          place(column.name),
          values.masked_select(wrong)[0].item<double>());
    }
  });
}

std::string ColumnChecks::place(const std::string& name) const {
  return formatted("'{}': '{}'", files_.path().string(), name);
}

void check_range(
    const ExampleFiles& files,
    const std::string& name,
    const at::Tensor& numbers,
    int64_t bound) {
  at::Tensor wrong = numbers.ge(bound).logical_or(numbers.lt(0));
  if (kind_of_input(name) == InputKind::kLabels) {
    wrong = wrong.logical_and(numbers.ne(-100));
  }
  if (!wrong.any().item<bool>()) {
    return;
  }
  TESSERA_FAIL(
      "'{}': '{}' holds {}, outside 0 .. {}{}",
      files.path().string(),
      name,
      numbers.masked_select(wrong)[0].item<int64_t>(),
      bound - 1,
      kind_of_input(name) == InputKind::kTokens
          ? "; were the texts encoded with this model's tokenizer?"
          : "; these are the model's classes (id2label in config.json, or "
            "model.classes)");
}

} // namespace tessera::zoo
