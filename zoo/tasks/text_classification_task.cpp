// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classification_task.h"

#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/types.h>

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

zoo::ModelInput make_batch(
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    const std::vector<size_t>& rows,
    const BatchShare& share,
    c10::Device device) {
  std::vector<Encoding> encodings;
  std::vector<int64_t> labels;
  for (const size_t row : rows) {
    encodings.push_back(examples[row].encoding);
    labels.push_back(examples[row].label);
  }
  EncodedBatch padded =
      tokenizer.pad(encodings, {.multiple_of = share.sequence_multiple});
  zoo::ModelInput batch;
  const auto on_device = [&](std::vector<int64_t>& values) {
    return matrix(values, padded.rows, padded.length, device);
  };
  batch.input_ids = on_device(padded.input_ids);
  batch.token_type_ids = on_device(padded.token_type_ids);
  batch.attention_mask = on_device(padded.attention_mask);
  batch.labels = runtime::to_device(at::tensor(labels, at::kLong), device);
  return batch;
}

c10::Device device_of(const torch::nn::Module& model) {
  return model.parameters().front().device();
}

/// The number of scored rows, their correct predictions and the sum of their
/// losses.
class ScoreSums {
 public:
  void add(const zoo::ModelInput& input, const zoo::ModelOutput& output) {
    const auto rows = static_cast<double>(input.labels.size(0));
    correct_ += output.logits.argmax(1).eq(input.labels).sum().item<double>();
    loss_ += rows * output.loss.item<double>();
    rows_ += rows;
  }

  /// Sums over all ranks of the job. Collective.
  ClassificationScore total(EngineRef engine) const {
    const at::Tensor sums = at::tensor({correct_, loss_, rows_}, at::kDouble);
    engine.sum_over_ranks(sums);
    const auto* totals = sums.const_data_ptr<double>();
    return {
        totals[0] / totals[2],
        totals[1] / totals[2],
        static_cast<int64_t>(totals[2])};
  }

 private:
  double correct_ = 0;
  double loss_ = 0;
  double rows_ = 0;
};

MakeBatch make_batch_of(
    const zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    const BatchShare& share) {
  return [&tokenizer, &examples, share, device = device_of(model)](
             const std::vector<size_t>& rows, int64_t /*epoch*/) {
    return make_batch(tokenizer, examples, rows, share, device);
  };
}

} // namespace

TextClassificationTask::TextClassificationTask(
    const std::shared_ptr<zoo::Model>& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    const Options& options)
    : ModelTask(
          model,
          examples.size(),
          make_batch_of(*model, tokenizer, examples, options.share),
          options) {}

ClassificationScore evaluate_text_classification(
    ParallelRun& parallel,
    EngineRef engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size) {
  ScoreSums sums;
  run_on_examples(
      parallel,
      model,
      examples.size(),
      batch_size,
      make_batch_of(model, tokenizer, examples, parallel.batches()),
      [&](const zoo::ModelInput& input, const zoo::ModelOutput& output) {
        sums.add(input, output);
      });
  return sums.total(engine);
}

} // namespace tessera::zoo
