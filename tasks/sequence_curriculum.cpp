// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/sequence_curriculum.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>

namespace tessera::tasks {

void visit_fields(runtime::OptionFields& fields, CurriculumOptions& options) {
  fields.field(
      "min_length",
      options.min_length,
      {.min = 1},
      "tokens per sequence in the first step");
  fields.field(
      "steps",
      options.steps,
      {.min = 1},
      "optimizer steps until sequences have `model.max_length`");
  fields.field(
      "multiple",
      options.multiple,
      {.min = 1},
      "lengths before that are multiples of it");
  fields.choice(
      "growth",
      options.growth,
      {{"linear", CurriculumGrowth::kLinear},
       {"root", CurriculumGrowth::kRoot}},
      "how lengths grow: with the step, or with its root, i.e. fast at first");
  fields.field(
      "root_degree",
      options.root_degree,
      {.min = 1},
      "with `root`: 2 is the square root");
}

void check(const CurriculumOptions& options, int64_t max_length) {
  TESSERA_CHECK(
      options.min_length <= max_length,
      "training.curriculum: min_length is {}, but model.max_length is {}; lower it",
      options.min_length,
      max_length);
  TESSERA_CHECK(
      options.min_length >= options.multiple,
      "training.curriculum: min_length is {}, less than multiple, {}; raise min_length, or lower multiple",
      options.min_length,
      options.multiple);
}

int64_t curriculum_length(
    const CurriculumOptions& options,
    int64_t max_length,
    int64_t step) {
  if (step >= options.steps) {
    return max_length;
  }
  const double linear =
      static_cast<double>(step) / static_cast<double>(options.steps);
  const double share = options.growth == CurriculumGrowth::kRoot
                           ? std::pow(linear, 1 / options.root_degree)
                           : linear;
  const auto more = static_cast<int64_t>(
      share * static_cast<double>(max_length - options.min_length));
  const int64_t length = options.min_length + more;
  return std::min(max_length, length - length % options.multiple);
}

zoo::ModelInput first_tokens(const zoo::ModelInput& batch, int64_t length) {
  const int64_t rows = batch.input_ids.size(0);
  const int64_t tokens = batch.input_ids.size(1);
  if (length >= tokens) {
    return batch;
  }
  return batch.with_tensors([&](const at::Tensor& tensor) {
    const bool is_of_tokens = tensor.dim() >= 2 && tensor.size(1) == tokens &&
                              (tensor.size(0) == rows || tensor.size(0) == 1) &&
                              !tensor.is_floating_point();
    return is_of_tokens ? tensor.narrow(1, 0, length).contiguous() : tensor;
  });
}

} // namespace tessera::tasks
