// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/example_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/inputs/column_checks.h"

#include <torch/types.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera::tasks {

namespace {

/// The values of a file in the types that models take, except for pixels.
at::Tensor widened(const at::Tensor& numbers, zoo::InputKind kind) {
  switch (kind) {
    case zoo::InputKind::kPixels:
      return numbers; // bytes are transferred as bytes
    case zoo::InputKind::kNumbers:
      return numbers.to(torch::kFloat);
    case zoo::InputKind::kLabels:
      return numbers.to(
          numbers.is_floating_point() ? torch::kFloat : torch::kLong);
    default:
      return numbers.is_floating_point() ? numbers : numbers.to(torch::kLong);
  }
}

/// The number of columns up to the last one that is nonzero in any row.
int64_t used_columns(const at::Tensor& counts) {
  const at::Tensor used =
      counts.flatten(0, -2).any(0).nonzero(); // [columns, 1]
  return used.numel() == 0 ? 0 : used[-1].item<int64_t>() + 1;
}

/// The first `kept` columns of those tensors that have `columns`.
void narrow(
    zoo::NamedTensors& batch,
    const std::vector<std::string>& names,
    int64_t columns,
    int64_t kept) {
  for (const std::string& name : names) {
    const auto found = batch.find(name);
    if (found != batch.end() && found->second.dim() > 1 &&
        found->second.size(-1) == columns) {
      found->second = found->second.narrow(-1, 0, kept).contiguous();
    }
  }
}

/// The used columns rounded up to a multiple, at least one and at most all.
int64_t kept_columns(int64_t used, int64_t columns, int64_t multiple) {
  return std::min(
      runtime::round_up(std::max<int64_t>(used, 1), multiple), columns);
}

} // namespace

ExampleBatches::ExampleBatches(
    zoo::ExampleFiles files,
    const zoo::Head& head,
    std::string architecture,
    zoo::ExampleOptions options,
    bool measures_metric,
    c10::Device device)
    : files_(std::move(files)),
      head_(head),
      options_(std::move(options)),
      measures_metric_(measures_metric),
      device_(device) {
  TESSERA_CHECK(
      !options_.token_mask || head_.predicts_masked_tokens(),
      "data.mask makes labels of masked tokens, which a {} does not predict; remove it",
      architecture);
  head_.check(zoo::ColumnChecks(files_, options_, std::move(architecture)));
}

std::string ExampleBatches::text() const {
  return formatted("{} examples of {}", files_.size(), files_.names());
}

zoo::ModelInput ExampleBatches::make(
    const std::vector<size_t>& examples,
    int64_t epoch,
    bool loss_only) const {
  zoo::NamedTensors batch = read(examples);
  check_values(batch);
  trim(batch);
  head_.draw(batch, options_, [&](int64_t each) {
    return zoo::draws_of(examples, epoch, options_.seed, each);
  });
  TESSERA_CHECK(
      epoch == zoo::kScoredEpoch || head_.has_labels(batch),
      "'{}': in a batch of {} examples, one of them number {}{}remove such examples, or increase training.batch_size",
      files_.path().string(),
      examples.size(),
      examples.front(),
      options_.token_mask
          ? ", no token can be masked: all are padding or in "
            "data.mask.never_masked; "
          : ", none has a label that counts, so there is no loss; ");
  for (auto& [name, tensor] : batch) {
    tensor = runtime::to_device(tensor, device_);
    if (head_.kind_of(name) == zoo::InputKind::kPixels) {
      tensor = zoo::prepared_pixels(tensor, options_.pixels);
    }
  }
  zoo::ModelInput input = zoo::ModelInput::from_named(batch);
  input.loss_only = loss_only;
  return input;
}

bool ExampleBatches::has_equal_labels() const {
  return head_.has_equal_counts(
      zoo::ColumnChecks(files_, options_, /*architecture=*/""));
}

TaskScore ExampleBatches::report(const zoo::Score& score) const {
  TaskScore report;
  const auto& [name, items] = score.metric;
  if (!name.empty()) {
    report.text = formatted(
        "{} {:.1f} % of {} {}, ", name, 100 * score.right, score.items, items);
    std::string key = "heldout_" + name;
    std::replace(key.begin(), key.end(), ' ', '_');
    report.values[key] = score.right;
    if (items != "examples") {
      report.values["heldout_" + items] = score.items;
    }
  }
  report.text +=
      formatted("loss {:.4f} over {} examples", score.loss, score.examples);
  report.values["heldout_loss"] = score.loss;
  report.values["heldout_examples"] = score.examples;
  return report;
}

zoo::NamedTensors ExampleBatches::read(
    const std::vector<size_t>& examples) const {
  zoo::NamedTensors batch;
  for (const zoo::ExampleFiles::Column& column : files_.columns()) {
    batch.emplace(
        column.name,
        widened(files_.read(column, examples), head_.kind_of(column.name)));
  }
  head_.complete(batch);
  return batch;
}

void ExampleBatches::check_values(const zoo::NamedTensors& batch) const {
  for (const auto& [name, tensor] : batch) {
    const zoo::InputKind kind = head_.kind_of(name);
    if (kind == zoo::InputKind::kTokens && head_.vocab() > 0) {
      zoo::check_range(files_, name, tensor, head_.vocab());
    } else if (
        kind == zoo::InputKind::kLabels && head_.classes() > 0 &&
        !tensor.is_floating_point()) {
      zoo::check_range(files_, name, tensor, head_.classes());
    }
  }
}

void ExampleBatches::trim(zoo::NamedTensors& batch) const {
  if (!options_.trim_padding) {
    return;
  }
  const int64_t multiple = options_.sequence_multiple;
  if (const at::Tensor mask = zoo::find(batch, "attention_mask");
      mask.defined()) {
    std::vector<std::string> names{
        "input_ids",
        "attention_mask",
        "position_ids",
        "token_type_ids",
        "global_attention_mask",
        "context",
        "span"};
    int64_t used = used_columns(mask.ne(0));
    for (const std::string& name : head_.trimmed_with_tokens()) {
      if (const at::Tensor labels = zoo::find(batch, name); labels.defined()) {
        used = std::max(used, used_columns(labels.ne(-100)));
      }
      names.push_back(name);
    }
    const int64_t columns = mask.size(-1);
    narrow(batch, names, columns, kept_columns(used, columns, multiple));
    if (batch.at("attention_mask").eq(1).all().item<bool>()) {
      batch.erase("attention_mask");
    }
  }
  if (const auto names = head_.trimmed_with_labels(); !names.empty()) {
    const at::Tensor& labels = batch.at("labels");
    const int64_t columns = labels.size(1);
    narrow(
        batch,
        names,
        columns,
        kept_columns(used_columns(labels.ne(-100)), columns, multiple));
  }
}

} // namespace tessera::tasks
