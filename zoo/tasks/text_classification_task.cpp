// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/text_classification_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/sharding/parallel/same_batch.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kBatchesBetweenChecks = 100;

/// [rows, length] on `device`.
at::Tensor matrix(
    std::vector<int64_t>& values,
    int64_t rows,
    int64_t length,
    c10::Device device) {
  const at::Tensor view =
      at::from_blob(values.data(), {rows, length}, at::kLong);
  // The copy outlives `values`, and so does pinned memory.
  return device.is_cpu() ? view.clone() : to_device(view, device);
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
  batch.labels = to_device(at::tensor(labels, at::kLong), device);
  return batch;
}

c10::Device device_of(const torch::nn::Module& model) {
  return model.parameters().front().device();
}

/// Rows that were scored, their right answers and the sum of their losses.
class ScoreSums {
 public:
  void add(const zoo::ModelInput& input, const zoo::ModelOutput& output) {
    const auto rows = static_cast<double>(input.labels.size(0));
    correct_ += output.logits.argmax(1).eq(input.labels).sum().item<double>();
    loss_ += rows * output.loss.item<double>();
    rows_ += rows;
  }

  /// Over all ranks of the job. Collective.
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

/// Runs the model on `inputs`. @return results where there are any.
std::vector<zoo::ModelOutput> run_model(
    ParallelRun& parallel,
    zoo::Model& model,
    const std::vector<zoo::ModelInput>& inputs) {
  if (parallel.pipeline() != nullptr) {
    return zoo::evaluate_pipeline(*parallel.pipeline(), model, inputs);
  }
  std::vector<zoo::ModelOutput> outputs;
  for (const zoo::ModelInput& input : inputs) {
    outputs.push_back(model.forward(input));
  }
  return outputs;
}

} // namespace

TextClassificationTask::TextClassificationTask(
    BatchShare share,
    std::shared_ptr<zoo::Model> model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size,
    uint64_t seed,
    Communicator* same_batch)
    : share_(share),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      examples_(examples),
      batch_size_(batch_size),
      seed_(seed),
      same_batch_(same_batch),
      forward_chunk_(zoo::pipeline_forward(
          *model_,
          [this](int number) -> const zoo::ModelInput& {
            return batches_.at(static_cast<size_t>(number));
          })) {
  TESSERA_CHECK(
      batches_per_epoch() > 0,
      "training data: ",
      examples.size(),
      " examples do not fill one batch of ",
      batch_size,
      " on each of ",
      share.count,
      " ranks. Lower training.batch_size or give more data.");
}

int64_t TextClassificationTask::batches_per_epoch() const {
  return static_cast<int64_t>(examples_.size()) / (batch_size_ * share_.count);
}

void TextClassificationTask::begin_epoch(int64_t epoch) {
  order_.resize(examples_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::mt19937_64 generator(seed_ + static_cast<uint64_t>(epoch));
  // Fisher-Yates by hand: std::shuffle differs between standard libraries.
  for (size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[generator() % (i + 1)]);
  }
}

int64_t TextClassificationTask::load_micro_batch(int64_t index, int number) {
  const int64_t first = (index * share_.count + share_.index) * batch_size_;
  const std::vector<size_t> rows(
      order_.begin() + first, order_.begin() + first + batch_size_);
  const auto at = static_cast<size_t>(number);
  if (batches_.size() <= at) {
    batches_.resize(at + 1);
  }
  batches_[at] =
      make_batch(tokenizer_, examples_, rows, share_, device_of(*model_));
  if (same_batch_ != nullptr && index % kBatchesBetweenChecks == 0) {
    check_same_batch(
        {batches_[at].input_ids, batches_[at].labels}, *same_batch_);
  }
  return batches_[at].input_ids.numel();
}

void TextClassificationTask::load(int64_t index) {
  load_micro_batch(index, 0);
}

MicroBatch TextClassificationTask::forward(int64_t /*index*/) {
  const zoo::ModelInput& batch = batches_.front();
  return {model_->forward(batch).loss, batch.input_ids.numel()};
}

std::vector<at::Tensor> TextClassificationTask::forward_chunk(
    int chunk,
    int number,
    const std::vector<at::Tensor>& received) {
  return forward_chunk_(chunk, number, received);
}

ClassificationScore evaluate_text_classification(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const BatchShare share = parallel.batches();
  const auto count = static_cast<int64_t>(examples.size());
  const int64_t global_batch = batch_size * share.count;
  // What fills a pipeline, at a time.
  const auto run_length =
      static_cast<size_t>(4 * parallel.mesh().size(ParallelGroup::kPipeline));
  ScoreSums sums;
  std::vector<zoo::ModelInput> inputs;
  std::vector<bool> is_filler;
  const auto run_inputs = [&] {
    const auto outputs = run_model(parallel, model, inputs);
    for (size_t i = 0; parallel.tells_loss() && i < outputs.size(); ++i) {
      if (!is_filler[i]) {
        sums.add(inputs[i], outputs[i]);
      }
    }
    inputs.clear();
    is_filler.clear();
  };
  // Every rank runs as many forwards as the others: they gather together. A
  // rank without rows of its own in the last one repeats an example unscored.
  for (int64_t begin = 0; begin < count; begin += global_batch) {
    const int64_t first = begin + share.index * batch_size;
    const int64_t last = std::min(first + batch_size, count);
    std::vector<size_t> rows;
    for (int64_t row = first; row < last; ++row) {
      rows.push_back(static_cast<size_t>(row));
    }
    is_filler.push_back(rows.empty());
    if (rows.empty()) {
      rows.push_back(0);
    }
    inputs.push_back(
        make_batch(tokenizer, examples, rows, share, device_of(model)));
    if (inputs.size() == run_length) {
      run_inputs();
    }
  }
  if (!inputs.empty()) {
    run_inputs();
  }
  model.train(was_training);
  return sums.total(engine);
}

} // namespace tessera
