// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/example_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/tasks/column_checks.h"
#include "tessera/zoo/tasks/example_checks.h"
#include "tessera/zoo/tasks/input_kind.h"

#include <torch/types.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

using zoo::NamedTensors;

at::Tensor find(const NamedTensors& batch, const std::string& name) {
  const auto found = batch.find(name);
  return found == batch.end() ? at::Tensor() : found->second;
}

/// [channels, 1, 1], or one number for all, on the device of `pixels`.
at::Tensor per_channel(
    const std::vector<double>& numbers,
    const at::Tensor& pixels) {
  return torch::tensor(numbers, torch::kFloat)
      .view({-1, 1, 1})
      .to(pixels.device());
}

at::Tensor prepared_pixels(const at::Tensor& pixels, const PixelOptions& how) {
  const bool is_bytes = !pixels.is_floating_point();
  at::Tensor result = pixels.to(torch::kFloat);
  const double scale = how.scale.value_or(is_bytes ? 1.0 / 255 : 1.0);
  if (scale != 1) {
    result = result * scale;
  }
  if (!how.mean.empty()) {
    result = result - per_channel(how.mean, pixels);
  }
  return how.std.empty() ? result : result / per_channel(how.std, pixels);
}

/// The values of a file in the types that models take, except for pixels.
at::Tensor widened(
    const std::string& name,
    const at::Tensor& numbers,
    const TrainedHead& head) {
  switch (kind_of_input(name)) {
    case InputKind::kPixels:
      return numbers; // bytes are transferred as bytes
    case InputKind::kNumbers:
      return numbers.to(torch::kFloat);
    case InputKind::kLabels:
      return numbers.is_floating_point() || head.has_several_labels
                 ? numbers.to(torch::kFloat)
                 : numbers.to(torch::kLong);
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
    NamedTensors& batch,
    std::initializer_list<const char*> names,
    int64_t columns,
    int64_t kept) {
  for (const char* name : names) {
    const auto found = batch.find(name);
    if (found != batch.end() && found->second.dim() > 1 &&
        found->second.size(-1) == columns) {
      found->second = found->second.narrow(-1, 0, kept).contiguous();
    }
  }
}

/// The used columns rounded up to a multiple, at least one and at most all.
int64_t kept_columns(int64_t used, int64_t columns, int64_t multiple) {
  const int64_t rounded =
      (std::max<int64_t>(used, 1) + multiple - 1) / multiple * multiple;
  return std::min(rounded, columns);
}

} // namespace

void visit_fields(runtime::OptionFields& fields, PixelOptions& options) {
  fields.field(
      "scale",
      options.scale,
      {},
      "the model gets (pixel * scale - mean) / std, as in preprocessor_config.json; by default 1/255 for bytes, else 1");
  fields.field(
      "mean",
      options.mean,
      {},
      "per channel, or one for all; by default 0. ViT uses `[0.5, 0.5, 0.5]`");
  fields.field(
      "std",
      options.std,
      {.min = 0, .open_min = true},
      "per channel, or one for all; by default 1. ViT uses `[0.5, 0.5, 0.5]`");
}

ExampleBatches::ExampleBatches(
    const ExampleFiles& files,
    TrainedHead head,
    ExampleOptions options,
    c10::Device device)
    : files_(files),
      head_(std::move(head)),
      options_(std::move(options)),
      device_(device) {
  check_examples(files_, head_, options_);
}

zoo::ModelInput ExampleBatches::make(
    const std::vector<size_t>& examples,
    int64_t epoch,
    bool loss_only) const {
  NamedTensors batch = read(examples);
  check_values(batch);
  trim(batch);
  add_masks(batch, examples, epoch);
  TESSERA_CHECK(
      epoch == kScoredEpoch || has_labels(batch),
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
    if (kind_of_input(name) == InputKind::kPixels) {
      tensor = prepared_pixels(tensor, options_.pixels);
    }
  }
  zoo::ModelInput input = zoo::ModelInput::from_named(batch);
  input.loss_only = loss_only;
  return input;
}

NamedTensors ExampleBatches::read(const std::vector<size_t>& examples) const {
  NamedTensors batch;
  for (const ExampleFiles::Column& column : files_.columns()) {
    batch.emplace(
        column.name,
        widened(column.name, files_.read(column, examples), head_));
  }
  const at::Tensor ids = find(batch, "input_ids");
  if (head_.kind == HeadKind::kNextTokens && !find(batch, "labels").defined()) {
    const at::Tensor mask = find(batch, "attention_mask");
    batch["labels"] = mask.defined() ? ids.masked_fill(mask.eq(0), -100) : ids;
  }
  return batch;
}

void ExampleBatches::check_values(const NamedTensors& batch) const {
  for (const auto& [name, tensor] : batch) {
    const InputKind kind = kind_of_input(name);
    if (kind == InputKind::kTokens && head_.vocab > 0) {
      check_range(files_, name, tensor, head_.vocab);
    } else if (
        kind == InputKind::kLabels && head_.classes > 0 &&
        !tensor.is_floating_point()) {
      check_range(files_, name, tensor, head_.classes);
    }
  }
}

bool ExampleBatches::has_labels(const NamedTensors& batch) const {
  if (head_.kind == HeadKind::kAnswers) {
    // Positions outside of the sequence are ignored.
    const int64_t length = batch.at("input_ids").size(1);
    const auto is_inside = [&](const char* name) {
      const at::Tensor& places = batch.at(name);
      return places.ge(0).logical_and(places.lt(length)).any().item<bool>();
    };
    return is_inside("start_positions") && is_inside("end_positions");
  }
  at::Tensor labels = find(batch, "labels");
  if (!labels.defined() || labels.is_floating_point()) {
    return true;
  }
  if (head_.kind == HeadKind::kNextTokens) {
    labels = labels.slice(1, 1); // nothing predicts the first
  }
  return labels.ne(-100).any().item<bool>();
}

void ExampleBatches::trim(NamedTensors& batch) const {
  if (!options_.trim_padding) {
    return;
  }
  const at::Tensor labels = find(batch, "labels");
  const int64_t multiple = options_.sequence_multiple;
  if (const at::Tensor mask = find(batch, "attention_mask"); mask.defined()) {
    int64_t used = used_columns(mask.ne(0));
    if (labels.defined() && labels_follow_input(head_.kind)) {
      used = std::max(used, used_columns(labels.ne(-100)));
    }
    const int64_t columns = mask.size(-1);
    const int64_t kept = kept_columns(used, columns, multiple);
    narrow(
        batch,
        {"input_ids",
         "attention_mask",
         "position_ids",
         "token_type_ids",
         "global_attention_mask",
         "context",
         "span"},
        columns,
        kept);
    if (labels_follow_input(head_.kind)) {
      narrow(batch, {"labels"}, columns, kept);
    }
    if (batch.at("attention_mask").eq(1).all().item<bool>()) {
      batch.erase("attention_mask");
    }
  }
  if (head_.kind == HeadKind::kSecondText) {
    // Tokens after the last label affect none before it.
    const int64_t columns = labels.size(1);
    narrow(
        batch,
        {"labels", "decoder_input_ids", "decoder_attention_mask"},
        columns,
        kept_columns(used_columns(labels.ne(-100)), columns, multiple));
  }
}

void ExampleBatches::add_masks(
    NamedTensors& batch,
    const std::vector<size_t>& examples,
    int64_t epoch) const {
  const auto draws = [&](int64_t each) {
    return draws_of(examples, epoch, options_.seed, each);
  };
  if (options_.token_mask) {
    at::Tensor& ids = batch.at("input_ids");
    const MaskedTokens masked = mask_tokens(
        ids,
        find(batch, "attention_mask"),
        draws(3 * ids.size(1)),
        head_.vocab,
        *options_.token_mask);
    ids = masked.ids;
    batch["labels"] = masked.labels;
  }
  if (head_.kind != HeadKind::kAutoencoder &&
      head_.kind != HeadKind::kMaskedPixels) {
    return;
  }
  const zoo::ImageSize size = zoo::image_size_of(batch.at("pixel_values"));
  const int64_t patches = head_.images->grid(size).area();
  if (head_.kind == HeadKind::kAutoencoder) {
    if (!find(batch, "noise").defined()) {
      batch["noise"] = draws(patches);
    }
  } else if (!find(batch, "bool_masked_pos").defined()) {
    batch["bool_masked_pos"] =
        mask_patches(draws(patches), options_.patch_mask);
  }
}

} // namespace tessera::zoo
