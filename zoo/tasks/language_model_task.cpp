// SPDX-License-Identifier: Apache-2.0
// The task "language_model": predicts the next token in a file of tokens.
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/zoo/tasks/run_model.h"
#include "tessera/zoo/data/token_batches.h"
#include "tessera/zoo/tasks/training_config.h"

#include <ATen/ops/tensor.h>

#include <optional>

namespace tessera::zoo {

namespace {

void visit_language_model(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  visit_model_source(fields, config);
  fields.field(
      "max_length",
      config.max_length,
      {.min = 2},
      "tokens per sequence. At most the positions of the model");
}

void visit_tokens(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.field(runtime::required("train"), config.train_file, "a token file");
  fields.field(
      "heldout",
      config.heldout_file,
      "a token file (empty: nothing is scored)");
  fields.choice(
      "token_type",
      config.token_type,
      {{"uint16", TokenType::kUint16}, {"int32", TokenType::kInt32}},
      "type of the tokens in a token file, as nanoGPT writes them (`numpy.array(ids, \"uint16\").tofile(\"train.bin\")`)");
}

void finish_tokens(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  check_model_source(reader, config);
}

std::optional<TokenFile> opened(
    const TrainingConfig& config,
    const std::filesystem::path& path) {
  return path.empty()
             ? std::nullopt
             : std::optional<TokenFile>(std::in_place, path, config.token_type);
}

void check_has_text(const std::optional<TokenFile>& tokens, int64_t length) {
  TESSERA_CHECK(
      !tokens || tokens->size() >= length,
      "'{}' has {} tokens, fewer than one sequence of model.max_length, {}; only complete sequences count",
      tokens->path().string(),
      tokens->size(),
      length);
}

/// Checks that all tokens are in the vocabulary; each rank reads its share of
/// the file. Collective over the job.
/// @throws tessera::Error on all ranks, with file, position and value of the
///     first token that is not.
void check_tokens(World& world, const TokenFile& tokens, int64_t vocab) {
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

Task open_tokens(
    const TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    ModelState state) {
  auto heldout = opened(config, config.heldout_file);
  check_has_text(heldout, config.max_length);
  auto train =
      opened(config, state == ModelState::kFirst ? config.train_file : "");
  Task task;
  task.model = configured_model(config, parallel);
  task.head = task.model->head();
  TESSERA_CHECK(
      task.head != nullptr && task.head->labels() == HeadLabels::kNextTokens,
      "language_model: a {} does not predict the next token; set a model.folder or model.architecture that does, such as GPT2LMHeadModel or LlamaForCausalLM",
      task.model->architecture());
  check_positions(*task.model, config.max_length);
  check_has_text(train, config.max_length);
  const int64_t multiple = parallel.batches().sequence_multiple;
  TESSERA_CHECK(
      !train || config.max_length % multiple == 0,
      "model.max_length is {}; to divide sequences over ranks, it must be a multiple of {}",
      config.max_length,
      multiple);
  const auto batches_of = [&](std::optional<TokenFile>& tokens) {
    if (!tokens) {
      return std::unique_ptr<TokenBatches>();
    }
    check_tokens(world, *tokens, task.head->vocab());
    return std::make_unique<TokenBatches>(
        std::move(*tokens), config.max_length, world.device());
  };
  task.train = batches_of(train);
  task.heldout = batches_of(heldout);
  return task;
}

} // namespace

const TaskKind kLanguageModel{
    "language_model",
    /*max_length=*/1024,
    visit_language_model,
    visit_tokens,
    finish_tokens,
    open_tokens};

} // namespace tessera::zoo
