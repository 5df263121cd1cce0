// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_batches.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <utility>

namespace tessera::zoo {

namespace {

/// [rows, length] on `device`.
at::Tensor matrix(
    std::vector<int64_t>& values,
    int64_t rows,
    int64_t length,
    c10::Device device) {
  const at::Tensor view =
      at::from_blob(values.data(), {rows, length}, at::kLong);
  // The copy outlives `values`, and so does pinned memory.
  return device.is_cpu() ? view.clone() : runtime::to_device(view, device);
}

std::string texts_text(int64_t count) {
  return runtime::count_text(count, "text");
}

} // namespace

ModelInput padded_input(
    const Tokenizer& tokenizer,
    const std::vector<Encoding>& texts,
    int64_t multiple_of,
    c10::Device device) {
  EncodedBatch padded = tokenizer.pad(texts, {.multiple_of = multiple_of});
  ModelInput batch;
  const auto on_device = [&](std::vector<int64_t>& values) {
    return matrix(values, padded.rows, padded.length, device);
  };
  batch.input_ids = on_device(padded.input_ids);
  batch.token_type_ids = on_device(padded.token_type_ids);
  batch.attention_mask = on_device(padded.attention_mask);
  return batch;
}

TextBatches::TextBatches(
    std::shared_ptr<const Tokenizer> tokenizer,
    std::vector<LabelledEncoding> examples,
    size_t classes,
    int64_t sequence_multiple,
    c10::Device device)
    : tokenizer_(std::move(tokenizer)),
      examples_(std::move(examples)),
      classes_(classes),
      sequence_multiple_(sequence_multiple),
      device_(device) {}

std::string TextBatches::text() const {
  return texts_text(static_cast<int64_t>(size())) + " with " +
         (classes_ == 0
              ? "numbers"
              : runtime::count_text(static_cast<int64_t>(classes_), "label"));
}

ModelInput TextBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool /*loss_only*/) const {
  std::vector<Encoding> encodings;
  std::vector<int64_t> classes;
  std::vector<double> numbers;
  for (const size_t example : examples) {
    encodings.push_back(examples_[example].encoding);
    classes.push_back(examples_[example].label);
    numbers.push_back(examples_[example].number);
  }
  ModelInput batch =
      padded_input(*tokenizer_, encodings, sequence_multiple_, device_);
  batch.labels = runtime::to_device(
      classes_ == 0 ? at::tensor(numbers, at::kFloat)
                    : at::tensor(classes, at::kLong),
      device_);
  return batch;
}

TaskScore TextBatches::report(const Score& score) const {
  if (classes_ == 0) {
    return {
        formatted(
            "mean squared error {:.4f} over {}, Pearson correlation {:.4f}",
            score.squared_error,
            texts_text(score.examples),
            score.pearson),
        {{"heldout_loss", score.squared_error},
         {"heldout_pearson", score.pearson},
         {"heldout_examples", score.examples}}};
  }
  const double majority = majority_share(examples_);
  return {
      formatted(
          "accuracy {:.1f} % of {}, loss {:.4f} (always guessing the most frequent label: {:.1f} %)",
          100 * score.right,
          texts_text(score.examples),
          score.loss,
          100 * majority),
      {{"heldout_accuracy", score.right},
       {"heldout_loss", score.loss},
       {"heldout_examples", score.examples},
       {"majority_baseline", majority}}};
}

} // namespace tessera::zoo
