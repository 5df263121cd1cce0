// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/frozen_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/training_config.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/formats/hf_folder_writer.h"
#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/pretrained.h"

#include <c10/core/GradMode.h>

#include <algorithm>

namespace tessera::tasks {

namespace {

/// Subtracts what the model takes of a tier.
void take_from(
    std::optional<int64_t>& limit,
    const Engine& engine,
    MemoryTier tier,
    const char* key,
    const std::string& label) {
  if (!limit) {
    return;
  }
  const int64_t taken = total_bytes(engine.planned_memory(tier));
  TESSERA_CHECK(
      taken < *limit,
      "{} takes {}, and memory.{} is {}, for both models; raise it, use more ranks, or keep the model in 16 bits (dtype)",
      label,
      runtime::size_text(taken),
      key,
      runtime::size_text(*limit));
  *limit -= taken;
}

} // namespace

void visit_fields(runtime::OptionFields& fields, FrozenModelOptions& options) {
  fields.field(
      runtime::required("folder"),
      options.folder,
      "Hugging Face folder of the model, or a run folder; it is sharded over all ranks (ZeRO stage 3), without gradients and optimizer state, and has a memory table of its own");
  fields.choice(
      "dtype",
      options.dtype,
      {{"float32", at::kFloat},
       {"bfloat16", at::kBFloat16},
       {"float16", at::kHalf}},
      "in which its weights are kept and used; by default as `precision.parameters`");
}

std::shared_ptr<zoo::Model> pretrained_frozen_model(
    const std::filesystem::path& folder,
    ParallelRun& parallel,
    const TrainingConfig& config) {
  zoo::FromPretrainedOptions from;
  from.context = zoo::layer_context(parallel);
  from.lazy = true;
  from.strict = config.strict;
  return zoo::from_pretrained(folder, from);
}

namespace {

/// @throws tessera::Error if both models have tokenizers, and an id stands for
///     another token in each.
void check_same_tokens(
    const std::filesystem::path& folder,
    const std::string& label,
    const TrainingConfig& config) {
  const std::filesystem::path trained = zoo::has_tokenizer(config.model_folder)
                                            ? config.model_folder
                                            : config.tokenizer_of_data();
  if (!zoo::has_tokenizer(trained) || !zoo::has_tokenizer(folder)) {
    return;
  }
  const auto trained_tokens = text::Tokenizer::from_folder(trained);
  const auto tokens = text::Tokenizer::from_folder(folder);
  const int64_t count = std::min(trained_tokens.size(), tokens.size());
  for (int64_t id = 0; id < count; ++id) {
    TESSERA_CHECK(
        trained_tokens.token(id) == tokens.token(id),
        "{}: the token {} is '{}' in '{}' and '{}' in '{}', which would be given ids of other tokens; use a model with the same tokenizer",
        label,
        id,
        trained_tokens.token(id),
        trained.string(),
        tokens.token(id),
        folder.string());
  }
}

} // namespace

FrozenModel::FrozenModel(
    const FrozenModelOptions& options,
    const std::string& label,
    World& world,
    ParallelRun& parallel,
    TrainingConfig& config,
    const MakeFrozenModel& make) {
  TESSERA_CHECK(
      parallel.pipeline() == nullptr &&
          parallel.mesh().size(ParallelGroup::kContext) == 1,
      "{} cannot be run under pipeline or context parallelism; set parallel.pipeline and parallel.context to 1",
      label);
  const std::filesystem::path folder = model_folder_of(options.folder);
  check_same_tokens(folder, label, config);
  model_ = make(folder, parallel, config);
  freeze(*model_);
  model_->eval();
  move_module(*model_, world.device());
  EngineOptions engine;
  engine.sharding = config.engine.sharding;
  engine.sharding.zero_stage = 3;
  engine.sharding.modules = {};
  engine.precision = config.engine.precision;
  // That is for the model that is trained.
  engine.precision.frozen_weights = FrozenWeights::kNone;
  if (options.dtype) {
    engine.precision.parameters =
        *options.dtype == at::kFloat ? std::nullopt : options.dtype;
  }
  engine.parallel = parallel.mesh_or_null();
  engine.log_memory = config.engine.log_memory;
  if (engine.log_memory && world.rank() == 0) {
    log_info("{} is '{}':", label, folder.string());
  }
  engine_.emplace(world, model_, engine);
  take_from(
      config.engine.memory.device_bytes,
      *engine_,
      MemoryTier::kDevice,
      "device_bytes",
      label);
  take_from(
      config.engine.memory.host_bytes,
      *engine_,
      MemoryTier::kHost,
      "host_bytes",
      label);
}

zoo::ModelOutput FrozenModel::forward(const zoo::ModelInput& batch) {
  const c10::NoGradGuard no_grad;
  zoo::ModelInput input = batch;
  if (const auto* const decodes =
          dynamic_cast<const zoo::EncoderDecoder*>(model_.get())) {
    input.decoder_input_ids = decodes->decoder_ids(batch);
  }
  input.labels = at::Tensor();
  input.loss_only = false;
  const zoo::ModelOutput output = model_->forward(input);
  // Pages are brought in as planned from the second batch on.
  engine_->step();
  return output;
}

} // namespace tessera::tasks
