// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/column_checks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/zoo/tasks/input_kind.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera {

bool is_floating(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF64 || dtype == SafetensorsDtype::kF32 ||
         dtype == SafetensorsDtype::kF16 || dtype == SafetensorsDtype::kBF16;
}

void ColumnChecks::names() const {
  std::vector<std::string> known;
  for (const auto& [name, kind] : known_inputs()) {
    known.emplace_back(name);
  }
  for (const Column& column : files_.columns()) {
    if (std::find(known.begin(), known.end(), column.name) == known.end()) {
      const std::string nearest = nearest_name(column.name, known);
      TESSERA_FAIL(
          place(column.name),
          " is no input of a model",
          nearest.empty() ? "; leave it out, or give it the name that "
                            "transformers has for it"
                          : "; did you mean '" + nearest + "'?");
    }
  }
}

void ColumnChecks::types() const {
  for (const Column& column : files_.columns()) {
    const InputKind kind = kind_of_input(column.name);
    const bool may_float =
        kind == InputKind::kPixels || kind == InputKind::kNumbers ||
        (kind == InputKind::kLabels && head_.kind == HeadKind::kClasses);
    TESSERA_CHECK(
        may_float || !is_floating(column.dtype),
        place(column.name),
        " is ",
        show(column),
        "; its numbers must be whole: save them as an integer type");
    TESSERA_CHECK(
        kind != InputKind::kNumbers || is_floating(column.dtype),
        place(column.name),
        " is ",
        show(column),
        "; it must be of a floating-point type");
    for (const int64_t size : column.row_shape) {
      TESSERA_CHECK(
          size > 0, place(column.name), " is ", show(column), ", empty");
    }
  }
}

const ColumnChecks::Column& ColumnChecks::need(
    const std::string& name,
    const char* remedy) const {
  const Column* column = files_.find(name);
  TESSERA_CHECK(
      column != nullptr,
      "'",
      files_.path().string(),
      "' lacks '",
      name,
      "', which ",
      head_.architecture,
      " is trained with",
      remedy,
      "; it has ",
      files_.names());
  return *column;
}

void ColumnChecks::refuse(const std::string& name, const char* reason) const {
  TESSERA_CHECK(
      files_.find(name) == nullptr, place(name), " is there, and ", reason);
}

void ColumnChecks::shape(
    const std::string& name,
    const std::vector<int64_t>& wanted) const {
  const Column* column = files_.find(name);
  TESSERA_CHECK(
      column == nullptr || column->row_shape == wanted,
      place(name),
      " is ",
      column == nullptr ? "" : show(*column),
      "; it must be ",
      shape_text(wanted));
}

void ColumnChecks::dims(const Column& column, size_t wanted, const char* what)
    const {
  TESSERA_CHECK(
      column.row_shape.size() == wanted,
      place(column.name),
      " is ",
      show(column),
      "; ",
      head_.architecture,
      " takes ",
      what);
}

void ColumnChecks::divides(const Column& ids) const {
  TESSERA_CHECK(
      ids.row_shape.back() % sequence_multiple_ == 0,
      place(ids.name),
      " is ",
      show(ids),
      "; ranks that divide sequences need a length that is a multiple of ",
      sequence_multiple_,
      ": pad it");
}

std::string ColumnChecks::place(const std::string& name) const {
  return "'" + files_.path().string() + "': '" + name + "'";
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
      "'",
      files.path().string(),
      "': '",
      name,
      "' holds ",
      numbers.masked_select(wrong)[0].item<int64_t>(),
      ", outside 0 .. ",
      bound - 1,
      kind_of_input(name) == InputKind::kTokens
          ? "; were the texts encoded with this model's tokenizer?"
          : "; the model has as many classes (config.json's id2label, or "
            "model.classes)");
}

} // namespace tessera
