// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/model_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/sharding/tensor_parallel/same_batch.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/generation/prompt_batch.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <ATen/ops/tensor.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::tasks {

namespace {

constexpr int64_t kBatchesBetweenChecks = 100;

/// Runs the model on `inputs`. @return results where there are any.
std::vector<zoo::ModelOutput> run_model(
    ParallelRun& parallel,
    const Task& task,
    const std::vector<zoo::ModelInput>& inputs) {
  zoo::Model& model = *task.model;
  if (parallel.pipeline() != nullptr) {
    return zoo::evaluate_pipeline(*parallel.pipeline(), model, inputs);
  }
  std::vector<zoo::ModelOutput> outputs;
  for (const zoo::ModelInput& input : inputs) {
    outputs.push_back(
        task.loss == nullptr ? model.forward(input)
                             : task.loss->score(model, input));
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

/// Those of tokens_of() that a mask says are padding. Waits for the device of
/// the masks.
int64_t padding_of(const zoo::ModelInput& batch) {
  int64_t padding = 0;
  const auto count = [&](const at::Tensor& ids, const at::Tensor& mask) {
    if (ids.defined() && mask.defined() && mask.sizes() == ids.sizes()) {
      padding += mask.eq(0).sum().item<int64_t>();
    }
  };
  count(batch.input_ids, batch.attention_mask);
  count(batch.decoder_input_ids, batch.decoder_attention_mask);
  return padding;
}

zoo::ModelInput on_device(const zoo::ModelInput& batch, c10::Device device) {
  return batch.with_tensors([device](const at::Tensor& tensor) {
    return runtime::to_device(tensor, device);
  });
}

/// Evaluation mode of a model until the end of the scope.
class EvaluationMode {
 public:
  explicit EvaluationMode(zoo::Model& model)
      : model_(model), was_training_(model.is_training()) {
    model_.eval();
  }
  ~EvaluationMode() {
    model_.train(was_training_);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  zoo::Model& model_;
  bool was_training_;
};

/// Generates for all prompts on every rank, because unsharding is collective
/// and texts end at different places. Nothing if `stops` has returned true.
std::optional<std::vector<std::vector<int64_t>>> generated_tokens(
    const zoo::ScoredPrompts& all,
    zoo::Model& model,
    c10::Device device,
    ParallelRun& parallel,
    int64_t batch_size,
    const std::function<bool()>& stops) {
  const auto& ends = all.options.eos_token_id;
  const auto rows = static_cast<size_t>(batch_size);
  std::vector<std::vector<int64_t>> texts;
  for (size_t begin = 0; begin < all.prompts.size(); begin += rows) {
    if (stops && stops()) {
      return std::nullopt;
    }
    const size_t end = std::min(begin + rows, all.prompts.size());
    const zoo::ModelInput batch = zoo::prompt_batch(
        {all.prompts.begin() + static_cast<std::ptrdiff_t>(begin),
         all.prompts.begin() + static_cast<std::ptrdiff_t>(end)},
        all.options.pad_token_id,
        device);
    zoo::GenerateOptions options = all.options;
    options.fit_to_model = true;
    options.prompt_numbers.resize(end - begin);
    std::iota(
        options.prompt_numbers.begin(),
        options.prompt_numbers.end(),
        static_cast<int64_t>(begin));
    const at::Tensor sequences =
        zoo::generate(model, batch, options, &parallel);
    for (int64_t row = 0; row < sequences.size(0); ++row) {
      auto text = zoo::new_tokens_of(model, options, batch, sequences, row);
      if (!text.empty() &&
          std::find(ends.begin(), ends.end(), text.back()) != ends.end()) {
        text.pop_back();
      }
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

/// With enough batches made ahead for a whole step.
DataLoaderOptions with_full_steps(
    DataLoaderOptions loading,
    int64_t micro_batches) {
  loading.prefetch =
      std::max(loading.prefetch, static_cast<int>(micro_batches));
  return loading;
}

std::vector<at::Tensor> tensors_of(const zoo::ModelInput& batch) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : batch.named()) {
    tensors.push_back(tensor);
  }
  return tensors;
}

} // namespace

bool weighs_micro_batches(
    LossMean loss_mean,
    bool has_equal_labels,
    bool is_mean_over_labels,
    int64_t micro_batches) {
  return loss_mean == LossMean::kLabels && !has_equal_labels &&
         is_mean_over_labels && micro_batches > 1;
}

KeptBatches kept_batches(
    const DataLoaderOptions& loading,
    int64_t accumulate,
    bool loads_steps,
    bool has_pipeline) {
  KeptBatches kept;
  kept.on_device = loads_steps || has_pipeline ? accumulate : 1;
  if (loading.threads > 0) {
    kept.ahead = loads_steps ? with_full_steps(loading, accumulate).prefetch
                             : loading.prefetch;
  }
  return kept;
}

ModelTask::ModelTask(
    const Task& task,
    Engine& engine,
    ParallelRun& parallel,
    int64_t batch_size,
    uint64_t seed,
    const DataLoaderOptions& loading,
    int64_t accumulate,
    const std::optional<CurriculumOptions>& curriculum,
    int64_t max_length,
    LossMean loss_mean)
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
      weighs_(weighs_micro_batches(
          loss_mean,
          task.train->has_equal_labels(),
          task.loss == nullptr || task.loss->is_mean_over_labels(),
          accumulate * parallel.batches().count)),
      loads_steps_(
          weighs_ || (task.loss != nullptr && task.loss->begins_steps())),
      labels_(static_cast<size_t>(accumulate)),
      weights_(static_cast<size_t>(accumulate), {1, 1}),
      forward_chunk_(zoo::pipeline_forward(
          *task.model,
          [this](int number) -> const zoo::ModelInput& {
            return batches_.at(static_cast<size_t>(number));
          },
          [this](const zoo::ModelOutput& output, int number) {
            return weighted(output, number);
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
          loads_steps_ ? with_full_steps(loading, accumulate) : loading) {
  task_.head->begin_training(parallel);
}

void ModelTask::begin_epoch(int64_t epoch) {
  epoch_ = epoch;
}

void ModelTask::load_ahead(int64_t index, int number) {
  const auto at = static_cast<size_t>(number);
  if (batches_.size() <= at) {
    batches_.resize(at + 1);
    padding_.resize(at + 1);
  }
  loader_.seek(epoch_ * batches_per_epoch() + index);
  zoo::ModelInput batch = loader_.next();
  if (curriculum_) {
    batch = first_tokens(
        batch, curriculum_length(*curriculum_, max_length_, step_));
  }
  if (weighs_) { // on the CPU, which waits for no device
    const auto counted =
        task_.loss == nullptr ? std::nullopt : task_.loss->count_labels(batch);
    labels_[at] = counted ? zoo::LossCounts{static_cast<double>(*counted)}
                          : task_.head->loss_counts(batch);
  }
  padding_[at] = padding_of(batch); // on the CPU
  batches_[at] = on_device(batch, engine_.device());
  if (same_batch_ != nullptr && index % kBatchesBetweenChecks == 0) {
    sharding::check_same_batch(tensors_of(batches_[at]), *same_batch_);
  }
}

void ModelTask::weigh_micro_batches() {
  zoo::LossCounts sum;
  for (const zoo::LossCounts& labels : labels_) {
    sum.first += labels.first;
    sum.second += labels.second;
  }
  // Ranks that see the same batch all count it.
  const at::Tensor sums = at::tensor(
      {sum.first, sum.second, static_cast<double>(labels_.size())},
      at::kDouble);
  engine_.sum_over_ranks(sums);
  const auto* all = sums.const_data_ptr<double>();
  const auto weight = [&](double labels, double sum) {
    return sum > 0 ? labels / (sum / all[2]) : 1.0;
  };
  for (size_t i = 0; i < labels_.size(); ++i) {
    weights_[i] = {
        weight(labels_[i].first, all[0]), weight(labels_[i].second, all[1])};
  }
}

at::Tensor ModelTask::weighted(const zoo::ModelOutput& output, int number)
    const {
  const zoo::LossCounts weight = weights_[static_cast<size_t>(number)];
  const auto second = output.others.find(zoo::kSecondLoss);
  const bool is_sum = second != output.others.end();
  if (!output.loss.defined() ||
      (weight.first == 1 && (!is_sum || weight.second == 1))) {
    return output.loss;
  }
  return is_sum ? (output.loss - second->second) * weight.first +
                      second->second * weight.second
                : output.loss * weight.first;
}

int64_t ModelTask::load_micro_batch(int64_t index, int number) {
  load_ahead(index, number);
  loaded_ = number;
  if (weighs_ && number + 1 == static_cast<int>(labels_.size())) {
    weigh_micro_batches();
  }
  return tokens_of(batches_[static_cast<size_t>(number)]);
}

void ModelTask::load(int64_t index) {
  ++number_;
  loaded_ = loads_steps_ ? number_ : 0;
  if (!loads_steps_) {
    load_ahead(index, 0);
  } else if (number_ == 0) {
    // Of the next epoch, too, where a step has batches of it.
    for (int i = 0; i < static_cast<int>(labels_.size()); ++i) {
      load_ahead(index + i, i);
    }
    if (weighs_) {
      weigh_micro_batches();
    }
  }
}

int64_t ModelTask::loaded_tokens() const {
  return tokens_of(current());
}

int64_t ModelTask::loaded_padding() const {
  return padding_[static_cast<size_t>(loaded_)];
}

MicroBatch ModelTask::forward(int64_t /*index*/) {
  const zoo::ModelInput& batch = current();
  zoo::ModelOutput output;
  if (task_.loss == nullptr) {
    output = task_.model->forward(batch);
  } else {
    if (task_.loss->begins_steps() && number_ == 0) {
      task_.loss->begin_step(
          *task_.model, batches_, [this](const at::Tensor& values) {
            engine_.sum_over_ranks(values);
          });
    }
    output.loss = task_.loss->loss(*task_.model, batch);
  }
  const at::Tensor loss = weighs_ ? weighted(output, number_) : output.loss;
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

std::optional<TaskScore> ModelTask::score(const std::function<bool()>& stops) {
  if (task_.heldout == nullptr) {
    return std::nullopt;
  }
  const auto score =
      evaluate(task_, engine_, parallel_, order_.batch_size(), stops);
  return score ? std::optional(task_.heldout->report(*score)) : std::nullopt;
}

std::optional<zoo::Score> evaluate(
    const Task& task,
    Engine& engine,
    ParallelRun& parallel,
    int64_t batch_size,
    const std::function<bool()>& stops) {
  const torch::NoGradGuard no_grad;
  zoo::Model& model = *task.model;
  const zoo::DataSet& data = *task.heldout;
  const EvaluationMode mode(model);
  task.head->begin_scoring();
  const BatchShare share = parallel.batches();
  const auto count = static_cast<int64_t>(data.size());
  const int64_t global_batch = batch_size * share.count;
  const bool metric = data.measures_metric();
  // Enough micro-batches at a time to fill a pipeline.
  const auto run_length =
      static_cast<size_t>(4 * parallel.mesh().size(ParallelGroup::kPipeline));
  zoo::ScoreSums sums;
  // The rows that this rank has scored; the others' are 0 until all are summed.
  const int64_t width = metric ? data.outputs_per_example() : 0;
  const at::Tensor all_outputs =
      width > 0 ? torch::zeros({count, width}, at::kDouble) : at::Tensor();
  std::vector<zoo::ModelInput> inputs;
  std::vector<int64_t> first_rows; // -1: a filler
  const auto run_inputs = [&] {
    const auto outputs = run_model(parallel, task, inputs);
    for (size_t i = 0; parallel.reports_loss() && i < outputs.size(); ++i) {
      if (first_rows[i] < 0) {
        continue;
      }
      const zoo::ScoredBatch batch{inputs[i], outputs[i], metric};
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
        data.make(rows, zoo::kScoredEpoch, /*loss_only=*/!metric),
        engine.device()));
    if (inputs.size() == run_length) {
      run_inputs();
      if (stops && stops()) {
        return std::nullopt;
      }
    }
  }
  if (!inputs.empty()) {
    run_inputs();
  }
  zoo::Score score =
      sums.total(engine, metric ? task.head->metric() : zoo::Metric{});
  if (const zoo::ScoredPrompts* prompts = data.prompts()) {
    if (std::isfinite(score.loss)) { // the same on all ranks
      auto generated = generated_tokens(
          *prompts, model, engine.device(), parallel, batch_size, stops);
      if (!generated) {
        return std::nullopt;
      }
      score.generated = std::move(*generated);
    } else { // generate() would throw, but this is for the trainer to judge
      score.generated.resize(prompts->prompts.size());
    }
  }
  if (width > 0) {
    engine.sum_over_ranks(all_outputs);
    score.outputs = all_outputs;
  }
  if (!std::isfinite(score.loss) && is_log_rank_zero()) {
    log_warning(
        "the loss of the held-out data is {}, and other scores of them mean nothing: outputs of the model are not finite, as its weights or the data are not, or are too large for the dtype; or nothing in the data has a label",
        score.loss);
  }
  return score;
}

} // namespace tessera::tasks
