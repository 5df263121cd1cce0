// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classification_task.h"

#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
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
    bool numbers,
    c10::Device device) {
  std::vector<Encoding> encodings;
  std::vector<int64_t> classes;
  std::vector<double> targets;
  for (const size_t row : rows) {
    encodings.push_back(examples[row].encoding);
    classes.push_back(examples[row].label);
    targets.push_back(examples[row].number);
  }
  ModelInput batch =
      padded_input(tokenizer, encodings, share.sequence_multiple, device);
  batch.labels = runtime::to_device(
      numbers ? at::tensor(targets, at::kFloat)
              : at::tensor(classes, at::kLong),
      device);
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
  ClassificationScore total(Engine& engine) const {
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

/// The moments of predictions and targets of scored rows.
class NumberSums {
 public:
  void add(const zoo::ModelInput& input, const zoo::ModelOutput& output) {
    const at::Tensor found = output.logits.flatten().to(at::kDouble);
    const at::Tensor wanted = input.labels.to(at::kDouble);
    sums_ += at::stack({at::ones_like(found).sum(),
                        found.sum(),
                        wanted.sum(),
                        found.square().sum(),
                        wanted.square().sum(),
                        (found * wanted).sum(),
                        (found - wanted).square().sum()})
                 .cpu();
  }

  /// Sums over all ranks of the job. Collective.
  RegressionScore total(Engine& engine) const {
    engine.sum_over_ranks(sums_);
    const auto* s = sums_.const_data_ptr<double>();
    const double covariance = s[0] * s[5] - s[1] * s[2];
    const double variances =
        (s[0] * s[3] - s[1] * s[1]) * (s[0] * s[4] - s[2] * s[2]);
    return {
        s[6] / s[0],
        variances > 0 ? covariance / std::sqrt(variances)
                      : std::numeric_limits<double>::quiet_NaN(),
        static_cast<int64_t>(s[0])};
  }

 private:
  at::Tensor sums_ = at::zeros({7}, at::kDouble);
};

MakeBatch make_batch_of(
    const zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    const BatchShare& share) {
  return [&tokenizer,
          &examples,
          share,
          numbers = predicts_numbers(model),
          device = device_of(model)](
             const std::vector<size_t>& rows, int64_t /*epoch*/) {
    return make_batch(tokenizer, examples, rows, share, numbers, device);
  };
}

} // namespace

ModelInput padded_input(
    const BertTokenizer& tokenizer,
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
    Engine& engine,
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

RegressionScore evaluate_text_regression(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size) {
  NumberSums sums;
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
