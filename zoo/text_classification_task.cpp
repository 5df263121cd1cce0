// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/text_classification_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera {

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
  return device.is_cpu() ? view.clone() : to_device(view, device);
}

ClassificationBatch make_batch(
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    const std::vector<size_t>& rows,
    c10::Device device) {
  std::vector<Encoding> encodings;
  std::vector<int64_t> labels;
  for (const size_t row : rows) {
    encodings.push_back(examples[row].encoding);
    labels.push_back(examples[row].label);
  }
  EncodedBatch padded = tokenizer.pad(encodings);
  ClassificationBatch batch;
  const auto on_device = [&](std::vector<int64_t>& values) {
    return matrix(values, padded.rows, padded.length, device);
  };
  batch.input.input_ids = on_device(padded.input_ids);
  batch.input.token_type_ids = on_device(padded.token_type_ids);
  batch.input.attention_mask = on_device(padded.attention_mask);
  batch.labels = to_device(at::tensor(labels, at::kLong), device);
  return batch;
}

c10::Device device_of(const torch::nn::Module& model) {
  return model.parameters().front().device();
}

/// In float32: a scaled loss has no room in float16.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.to(at::kFloat), labels);
}

} // namespace

TextClassificationTask::TextClassificationTask(
    const World& world,
    BertForSequenceClassification model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size,
    uint64_t seed)
    : world_(world),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      examples_(examples),
      batch_size_(batch_size),
      seed_(seed) {
  TESSERA_CHECK(
      batches_per_epoch() > 0,
      "training data: ",
      examples.size(),
      " examples do not fill one batch of ",
      batch_size,
      " on each of ",
      world.size(),
      " ranks. Lower training.batch_size or give more data.");
}

int64_t TextClassificationTask::batches_per_epoch() const {
  return static_cast<int64_t>(examples_.size()) / (batch_size_ * world_.size());
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

void TextClassificationTask::load(int64_t index) {
  const int64_t first = (index * world_.size() + world_.rank()) * batch_size_;
  const std::vector<size_t> rows(
      order_.begin() + first, order_.begin() + first + batch_size_);
  batch_ = make_batch(tokenizer_, examples_, rows, device_of(*model_));
}

MicroBatch TextClassificationTask::forward(int64_t /*index*/) {
  const auto logits = model_->forward(batch_.input);
  return {loss_of(logits, batch_.labels), batch_.input.input_ids.numel()};
}

ClassificationScore evaluate_text_classification(
    const World& world,
    Engine& engine,
    BertForSequenceClassification& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const auto count = static_cast<int64_t>(examples.size());
  const int64_t global_batch = batch_size * world.size();
  double correct = 0;
  double loss = 0;
  double scored = 0;
  // Every rank runs as many forwards as the others: they gather together. A
  // rank without rows of its own in the last one repeats an example unscored.
  for (int64_t begin = 0; begin < count; begin += global_batch) {
    const int64_t first = begin + world.rank() * batch_size;
    const int64_t last = std::min(first + batch_size, count);
    std::vector<size_t> rows;
    for (int64_t row = first; row < last; ++row) {
      rows.push_back(static_cast<size_t>(row));
    }
    const bool is_filler = rows.empty();
    if (is_filler) {
      rows.push_back(0);
    }
    const auto batch = make_batch(tokenizer, examples, rows, device_of(*model));
    const auto logits = model->forward(batch.input);
    if (is_filler) {
      continue;
    }
    const auto rows_scored = static_cast<double>(rows.size());
    correct += logits.argmax(1).eq(batch.labels).sum().item<double>();
    loss += rows_scored * loss_of(logits, batch.labels).item<double>();
    scored += rows_scored;
  }
  model->train(was_training);
  const at::Tensor sums = at::tensor({correct, loss, scored}, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* totals = sums.const_data_ptr<double>();
  return {
      totals[0] / totals[2],
      totals[1] / totals[2],
      static_cast<int64_t>(totals[2])};
}

} // namespace tessera
