// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/language_model_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

namespace tessera {

namespace {

MakeBatch make_batch_of(
    const zoo::Model& model,
    const TokenFile& tokens,
    int64_t length) {
  const c10::Device device = model.parameters().front().device();
  return [&tokens, length, device](const std::vector<size_t>& rows) {
    std::vector<at::Tensor> texts;
    for (const size_t row : rows) {
      texts.push_back(tokens.read(static_cast<int64_t>(row) * length, length));
    }
    zoo::ModelInput batch;
    batch.input_ids = to_device(at::stack(texts), device);
    batch.labels = batch.input_ids;
    batch.loss_only = true;
    return batch;
  };
}

size_t texts_in(const TokenFile& tokens, int64_t length) {
  return static_cast<size_t>(tokens.size() / length);
}

} // namespace

LanguageModelTask::LanguageModelTask(
    const std::shared_ptr<zoo::Model>& model,
    const TokenFile& tokens,
    int64_t length,
    const Options& options)
    : ModelTask(
          model,
          texts_in(tokens, length),
          make_batch_of(*model, tokens, length),
          options) {
  TESSERA_CHECK(
      length % options.share.sequence_multiple == 0,
      "model.max_length is ",
      length,
      "; ranks that divide sequences need a multiple of ",
      options.share.sequence_multiple);
}

LanguageModelScore evaluate_language_model(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    const TokenFile& tokens,
    int64_t length,
    int64_t batch_size) {
  double loss = 0;
  double predicted = 0;
  run_on_examples(
      parallel,
      model,
      texts_in(tokens, length),
      batch_size,
      make_batch_of(model, tokens, length),
      [&](const zoo::ModelInput& input, const zoo::ModelOutput& output) {
        const auto count =
            static_cast<double>(input.labels.size(0) * (length - 1));
        loss += count * output.loss.item<double>();
        predicted += count;
      });
  const at::Tensor sums = at::tensor({loss, predicted}, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* totals = sums.const_data_ptr<double>();
  return {totals[0] / totals[1], static_cast<int64_t>(totals[1])};
}

} // namespace tessera
