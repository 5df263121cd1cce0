// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/model_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/sharding/parallel/same_batch.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/generation/prompt_batch.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr int64_t kBatchesBetweenChecks = 100;

/// Runs the model on `inputs`. @return results where there are any.
std::vector<ModelOutput> run_model(
    ParallelRun& parallel,
    const Task& task,
    const std::vector<ModelInput>& inputs) {
  Model& model = *task.model;
  if (parallel.pipeline() != nullptr) {
    return evaluate_pipeline(*parallel.pipeline(), model, inputs);
  }
  std::vector<ModelOutput> outputs;
  for (const ModelInput& input : inputs) {
    outputs.push_back(
        task.loss == nullptr ? model.forward(input)
                             : task.loss->score(model, input));
  }
  return outputs;
}

/// The tokens of a batch, padding included; for images, their number.
int64_t tokens_of(const ModelInput& batch) {
  int64_t tokens = 0;
  for (const at::Tensor& ids : {batch.input_ids, batch.decoder_input_ids}) {
    tokens += ids.defined() ? ids.numel() : 0;
  }
  return tokens == 0 && batch.pixel_values.defined()
             ? batch.pixel_values.size(0)
             : tokens;
}

ModelInput on_device(const ModelInput& batch, c10::Device device) {
  return batch.with_tensors([device](const at::Tensor& tensor) {
    return runtime::to_device(tensor, device);
  });
}

/// Generates for all prompts on every rank, because unsharding is collective
/// and texts end at different places.
std::vector<std::vector<int64_t>> generated_tokens(
    const ScoredPrompts& all,
    Model& model,
    c10::Device device,
    ParallelRun& parallel,
    int64_t batch_size) {
  const auto& ends = all.options.eos_token_id;
  const auto rows = static_cast<size_t>(batch_size);
  std::vector<std::vector<int64_t>> texts;
  for (size_t begin = 0; begin < all.prompts.size(); begin += rows) {
    const size_t end = std::min(begin + rows, all.prompts.size());
    const ModelInput batch = prompt_batch(
        {all.prompts.begin() + static_cast<std::ptrdiff_t>(begin),
         all.prompts.begin() + static_cast<std::ptrdiff_t>(end)},
        all.options.pad_token_id,
        device);
    GenerateOptions options = all.options;
    const auto most = model.position_limit();
    if (most && !model.first_token()) {
      options.max_new_tokens =
          std::min(options.max_new_tokens, *most + 1 - batch.input_ids.size(1));
    }
    const at::Tensor sequences = generate(model, batch, options, &parallel);
    const int64_t given = model.first_token() ? 1 : batch.input_ids.size(1);
    for (int64_t row = 0; row < sequences.size(0); ++row) {
      const at::Tensor own = sequences[row].slice(0, given).contiguous();
      const auto* first = own.const_data_ptr<int64_t>();
      texts.emplace_back(
          first,
          std::find_first_of(
              first, first + own.numel(), ends.begin(), ends.end()));
    }
  }
  return texts;
}

std::vector<at::Tensor> tensors_of(const ModelInput& batch) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : batch.named()) {
    tensors.push_back(tensor);
  }
  return tensors;
}

} // namespace

ModelTask::ModelTask(
    const Task& task,
    Engine& engine,
    ParallelRun& parallel,
    int64_t batch_size,
    uint64_t seed,
    const DataLoaderOptions& loading,
    int64_t accumulate,
    const std::optional<CurriculumOptions>& curriculum,
    int64_t max_length)
    : task_(task),
      engine_(engine),
      parallel_(parallel),
      same_batch_(parallel.one_batch()),
      order_(
          task.train->size(),
          batch_size,
          parallel.batches(),
          seed,
          accumulate),
      curriculum_(curriculum),
      max_length_(max_length),
      forward_chunk_(pipeline_forward(
          *task.model,
          [this](int number) -> const ModelInput& {
            return batches_.at(static_cast<size_t>(number));
          })),
      loader_(
          order_,
          [&data = *task.train,
           device = engine.device()](const SampleBatch& batch) {
            return data.make(batch.samples, batch.epoch, /*loss_only=*/true)
                .with_tensors([device](const at::Tensor& tensor) {
                  return pinned(tensor, device);
                });
          },
          loading) {
  task_.head->begin_training(parallel);
}

void ModelTask::begin_epoch(int64_t epoch) {
  epoch_ = epoch;
}

int64_t ModelTask::load_micro_batch(int64_t index, int number) {
  const auto at = static_cast<size_t>(number);
  if (batches_.size() <= at) {
    batches_.resize(at + 1);
  }
  loader_.seek(epoch_ * batches_per_epoch() + index);
  ModelInput batch = loader_.next();
  if (curriculum_) {
    batch = first_tokens(
        batch, curriculum_length(*curriculum_, max_length_, step_));
  }
  batches_[at] = on_device(batch, engine_.device());
  if (same_batch_ != nullptr && index % kBatchesBetweenChecks == 0) {
    sharding::check_same_batch(tensors_of(batches_[at]), *same_batch_);
  }
  return tokens_of(batches_[at]);
}

void ModelTask::load(int64_t index) {
  load_micro_batch(index, 0);
}

int64_t ModelTask::loaded_tokens() const {
  return tokens_of(batches_.front());
}

MicroBatch ModelTask::forward(int64_t /*index*/) {
  const ModelInput& batch = batches_.front();
  const at::Tensor loss = task_.loss == nullptr
                              ? task_.model->forward(batch).loss
                              : task_.loss->loss(*task_.model, batch);
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

void ModelTask::after_step(int64_t step, int64_t steps) {
  task_.head->after_step(engine_, step, steps);
}

std::optional<TaskScore> ModelTask::score() {
  if (task_.heldout == nullptr) {
    return std::nullopt;
  }
  return task_.heldout->report(
      evaluate(task_, engine_, parallel_, order_.batch_size()));
}

Score evaluate(
    const Task& task,
    Engine& engine,
    ParallelRun& parallel,
    int64_t batch_size) {
  const torch::NoGradGuard no_grad;
  Model& model = *task.model;
  const DataSet& data = *task.heldout;
  const bool was_training = model.is_training();
  model.eval();
  task.head->begin_scoring();
  const BatchShare share = parallel.batches();
  const auto count = static_cast<int64_t>(data.size());
  const int64_t global_batch = batch_size * share.count;
  const bool metric = data.measures_metric();
  // Enough micro-batches at a time to fill a pipeline.
  const auto run_length =
      static_cast<size_t>(4 * parallel.mesh().size(ParallelGroup::kPipeline));
  ScoreSums sums;
  // The rows that this rank has scored; the others' are 0 until all are summed.
  const int64_t width = metric ? data.outputs_per_example() : 0;
  const at::Tensor all_outputs =
      width > 0 ? torch::zeros({count, width}, at::kDouble) : at::Tensor();
  std::vector<ModelInput> inputs;
  std::vector<int64_t> first_rows; // -1: a filler
  const auto run_inputs = [&] {
    const auto outputs = run_model(parallel, task, inputs);
    for (size_t i = 0; parallel.tells_loss() && i < outputs.size(); ++i) {
      if (first_rows[i] < 0) {
        continue;
      }
      const ScoredBatch batch{inputs[i], outputs[i], metric};
      if (task.loss == nullptr) {
        task.head->add_score(batch, sums);
      } else {
        task.loss->add_score(*task.head, batch, sums);
      }
      if (width > 0) {
        const at::Tensor found =
            data.outputs_of(inputs[i], outputs[i]).reshape({-1, width});
        all_outputs.slice(0, first_rows[i], first_rows[i] + found.size(0))
            .copy_(found);
      }
    }
    inputs.clear();
    first_rows.clear();
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
    first_rows.push_back(rows.empty() ? -1 : first);
    if (rows.empty()) {
      rows.push_back(0);
    }
    inputs.push_back(on_device(
        data.make(rows, kScoredEpoch, /*loss_only=*/!metric), engine.device()));
    if (inputs.size() == run_length) {
      run_inputs();
    }
  }
  if (!inputs.empty()) {
    run_inputs();
  }
  std::vector<std::vector<int64_t>> generated;
  if (const ScoredPrompts* prompts = data.prompts()) {
    generated = generated_tokens(
        *prompts, model, engine.device(), parallel, batch_size);
  }
  model.train(was_training);
  Score score = sums.total(engine, metric ? task.head->metric() : Metric{});
  score.generated = std::move(generated);
  if (width > 0) {
    engine.sum_over_ranks(all_outputs);
    score.outputs = all_outputs;
  }
  return score;
}

} // namespace tessera::zoo
