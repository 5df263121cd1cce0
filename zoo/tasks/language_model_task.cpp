// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/language_model_task.h"

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/tasks/position_limit.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <string>

namespace tessera::zoo {

namespace {

MakeBatch make_batch_of(
    const zoo::Model& model,
    const TokenFile& tokens,
    int64_t length) {
  const c10::Device device = model.parameters().front().device();
  return [&tokens, length, device](
             const std::vector<size_t>& rows, int64_t /*epoch*/) {
    std::vector<at::Tensor> texts;
    for (const size_t row : rows) {
      const int64_t first = static_cast<int64_t>(row) * length;
      texts.push_back(tokens.read(first, length));
    }
    zoo::ModelInput batch;
    batch.input_ids = runtime::to_device(at::stack(texts), device);
    batch.labels = batch.input_ids;
    batch.loss_only = true;
    return batch;
  };
}

size_t texts_in(const TokenFile& tokens, int64_t length) {
  return static_cast<size_t>(tokens.size() / length);
}

std::string architecture_of(const zoo::Model& model) {
  return model.config().at("architectures").at(0).get<std::string>();
}

} // namespace

void check_language_model(const zoo::Model& model, int64_t length) {
  const auto* decoder = dynamic_cast<const zoo::Decoder*>(&model);
  TESSERA_CHECK(
      decoder != nullptr && decoder->head() == zoo::DecoderHead::kCausalLm,
      "language_model: a {} does not predict the next token; set a model.folder or model.architecture that does, such as GPT2LMHeadModel or LlamaForCausalLM",
      architecture_of(model));
  check_positions(model, length);
}

void check_tokens(
    World& world,
    const TokenFile& tokens,
    const zoo::Model& model) {
  const int64_t vocab =
      dynamic_cast<const zoo::Decoder&>(model).decoder_config().vocab;
  const int64_t begin = tokens.size() * world.rank() / world.size();
  const int64_t end = tokens.size() * (world.rank() + 1) / world.size();
  const auto outside = tokens.first_outside(begin, end - begin, vocab);
  // The first one of all ranks has the largest distance to the end.
  const at::Tensor distance =
      at::tensor(outside ? tokens.size() - *outside : int64_t{0}, at::kLong);
  if (world.size() > 1) {
    world.new_communicator("token checks")
        ->all_reduce_max(distance, "the check of token ids")
        .wait();
  }
  if (const auto found = distance.item<int64_t>(); found > 0) {
    tokens.fail_outside(tokens.size() - found, vocab);
  }
}

void check_has_text(const TokenFile& tokens, int64_t length) {
  TESSERA_CHECK(
      tokens.size() >= length,
      "'{}' has {} tokens, fewer than one sequence of model.max_length, {}; only complete sequences count",
      tokens.path().string(),
      tokens.size(),
      length);
}

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
      "model.max_length is {}; to divide sequences over ranks, it must be a multiple of {}",
      length,
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

} // namespace tessera::zoo
