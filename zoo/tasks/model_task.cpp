// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/model_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/same_batch.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr int64_t kBatchesBetweenChecks = 100;

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

/// The tokens of a batch, padding included; for images, their number.
int64_t tokens_of(const zoo::ModelInput& batch) {
  int64_t tokens = 0;
  for (const at::Tensor& ids : {batch.input_ids, batch.decoder_input_ids}) {
    tokens += ids.defined() ? ids.numel() : 0;
  }
  return tokens == 0 && batch.pixel_values.defined()
             ? batch.pixel_values.size(0)
             : tokens;
}

std::vector<at::Tensor> tensors_of(const zoo::ModelInput& batch) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : batch.named()) {
    tensors.push_back(tensor);
  }
  return tensors;
}

} // namespace

ModelTask::ModelTask(
    std::shared_ptr<zoo::Model> model,
    size_t examples,
    MakeBatch make_batch,
    const Options& options)
    : model_(std::move(model)),
      examples_(examples),
      make_batch_(std::move(make_batch)),
      options_(options),
      forward_chunk_(zoo::pipeline_forward(
          *model_,
          [this](int number) -> const zoo::ModelInput& {
            return batches_.at(static_cast<size_t>(number));
          })) {
  TESSERA_CHECK(
      batches_per_epoch() > 0,
      "training data: {} examples do not fill one batch of {} on each of {} ranks. Lower training.batch_size or provide more data.",
      examples,
      options.batch_size,
      options.share.count);
}

int64_t ModelTask::batches_per_epoch() const {
  return static_cast<int64_t>(examples_) /
         (options_.batch_size * options_.share.count);
}

void ModelTask::begin_epoch(int64_t epoch) {
  epoch_ = epoch;
  order_.resize(examples_);
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::mt19937_64 generator(options_.seed + static_cast<uint64_t>(epoch));
  // Fisher-Yates by hand: std::shuffle differs between standard libraries.
  for (size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[generator() % (i + 1)]);
  }
}

int64_t ModelTask::load_micro_batch(int64_t index, int number) {
  const int64_t first = (index * options_.share.count + options_.share.index) *
                        options_.batch_size;
  const std::vector<size_t> rows(
      order_.begin() + first, order_.begin() + first + options_.batch_size);
  const auto at = static_cast<size_t>(number);
  if (batches_.size() <= at) {
    batches_.resize(at + 1);
  }
  batches_[at] = make_batch_(rows, epoch_);
  if (options_.same_batch != nullptr && index % kBatchesBetweenChecks == 0) {
    sharding::check_same_batch(tensors_of(batches_[at]), *options_.same_batch);
  }
  return tokens_of(batches_[at]);
}

void ModelTask::load(int64_t index) {
  load_micro_batch(index, 0);
}

MicroBatch ModelTask::forward(int64_t /*index*/) {
  const zoo::ModelInput& batch = batches_.front();
  const at::Tensor loss = model_->forward(batch).loss;
  TESSERA_CHECK(
      loss.defined(),
      "training: the model returned no loss; its head has none, or the data has no labels");
  return {loss, tokens_of(batch)};
}

std::vector<at::Tensor> ModelTask::forward_chunk(
    int chunk,
    int number,
    const std::vector<at::Tensor>& received) {
  return forward_chunk_(chunk, number, received);
}

void run_on_examples(
    ParallelRun& parallel,
    zoo::Model& model,
    size_t examples,
    int64_t batch_size,
    const MakeBatch& make_batch,
    const std::function<void(const zoo::ModelInput&, const zoo::ModelOutput&)>&
        use) {
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const BatchShare share = parallel.batches();
  const auto count = static_cast<int64_t>(examples);
  const int64_t global_batch = batch_size * share.count;
  // Enough micro-batches at a time to fill a pipeline.
  const auto run_length =
      static_cast<size_t>(4 * parallel.mesh().size(ParallelGroup::kPipeline));
  std::vector<zoo::ModelInput> inputs;
  std::vector<bool> is_filler;
  const auto run_inputs = [&] {
    const auto outputs = run_model(parallel, model, inputs);
    for (size_t i = 0; parallel.tells_loss() && i < outputs.size(); ++i) {
      if (!is_filler[i]) {
        use(inputs[i], outputs[i]);
      }
    }
    inputs.clear();
    is_filler.clear();
  };
  // Every rank runs the same number of forwards, because unsharding is
  // collective. A rank without rows of its own in the last one repeats an
  // example, unscored.
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
    inputs.push_back(make_batch(rows, kScoredEpoch));
    if (inputs.size() == run_length) {
      run_inputs();
    }
  }
  if (!inputs.empty()) {
    run_inputs();
  }
  model.train(was_training);
}

} // namespace tessera::zoo
