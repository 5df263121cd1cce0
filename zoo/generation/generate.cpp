// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/generate.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/generation/next_token.h"
#include "tessera/zoo/layers/masks.h"
#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

namespace tessera::zoo {

namespace {

/// Rows that go through the model together.
struct TextGroup {
  int64_t first;
  int64_t rows;
  KeyValueCache cache;
};

/// Before each text, [B]; undefined where there is none.
at::Tensor padding_of(const Model& model, const ModelInput& prompt) {
  if (model.first_token() || !prompt.attention_mask.defined()) {
    return {};
  }
  return prompt.attention_mask.ne(0).to(at::kInt).argmax(1).to(at::kCPU);
}

class Writer {
 public:
  Writer(
      Model& model,
      const ModelInput& prompt,
      const GenerateOptions& options,
      ParallelRun* parallel)
      : model_(model),
        prompt_(prompt),
        options_(options),
        executor_(parallel == nullptr ? nullptr : parallel->pipeline()),
        stages_(
            executor_ == nullptr
                ? nullptr
                : &parallel->groups()[ParallelGroup::kPipeline]),
        next_(options, padding_of(model, prompt)),
        device_(prompt.input_ids.device()) {
    check();
    const int64_t rows = prompt.input_ids.size(0);
    tokens_ = model.first_token()
                  ? torch::full({rows, 1}, *model.first_token(), torch::kLong)
                  : prompt.input_ids.to(at::kCPU, at::kLong);
    given_ = tokens_.size(1);
    ended_ = torch::zeros({rows}, torch::kBool);
    make_groups(rows);
  }

  at::Tensor write() {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < options_.max_new_tokens; ++i) {
      const at::Tensor next = agreed(read());
      tokens_ = at::cat(
          {tokens_,
           next.masked_fill(ended_, options_.pad_token_id).unsqueeze(1)},
          1);
      for (const int64_t end : options_.eos_token_id) {
        ended_ |= next.eq(end);
      }
      if (ended_.all().item<bool>()) {
        break;
      }
    }
    return tokens_;
  }

 private:
  void check() const {
    TESSERA_CHECK(
        model_.takes_cache(),
        "generate: a ",
        model_.config().value("architectures", nlohmann::json()).dump(),
        ", with its layers as they are divided, cannot go on with texts: it "
        "takes a model that reads from left to right, without divided "
        "sequences");
    TESSERA_CHECK(
        prompt_.input_ids.defined() && prompt_.input_ids.dim() == 2 &&
            prompt_.input_ids.numel() > 0,
        "generate: input_ids are missing, empty or not [batch, sequence]");
    for (const auto& [name, tensor] : prompt_.named()) {
      TESSERA_CHECK(
          name == "input_ids" || name == "attention_mask",
          "generate: '",
          name,
          "' is given; it takes input_ids and attention_mask");
    }
    const at::Tensor& mask = prompt_.attention_mask;
    TESSERA_CHECK(
        !mask.defined() || mask.sizes() == prompt_.input_ids.sizes(),
        "generate: attention_mask is ",
        mask.defined() ? mask.sizes() : at::IntArrayRef(),
        ", but input_ids are ",
        prompt_.input_ids.sizes());
    TESSERA_CHECK(
        model_.first_token() || !mask.defined() ||
            mask.select(1, -1).ne(0).all().item<bool>(),
        "generate: a text ends with padding; pad texts on the left");
    check_positions();
  }

  /// Learned positions end: better now than when most is written. The last
  /// token is not read.
  void check_positions() const {
    const auto* decoder = dynamic_cast<const Decoder*>(&model_);
    if (decoder == nullptr ||
        decoder->decoder_config().learned_positions == 0) {
      return;
    }
    const int64_t most = decoder->decoder_config().learned_positions -
                         decoder->decoder_config().position_offset;
    const int64_t given = prompt_.input_ids.size(1);
    TESSERA_CHECK(
        given + options_.max_new_tokens - 1 <= most,
        "generate: the longest text has ",
        given,
        " tokens and max_new_tokens is ",
        options_.max_new_tokens,
        "; the model has positions for ",
        most,
        ": use max_new_tokens of ",
        std::max<int64_t>(0, most + 1 - given),
        " or less, or shorter texts");
  }

  void make_groups(int64_t rows) {
    const int64_t count =
        stages_ == nullptr ? 1 : std::min<int64_t>(rows, stages_->size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = i * rows / count;
      groups_.push_back(
          {first,
           (i + 1) * rows / count - first,
           KeyValueCache(given_ + options_.max_new_tokens)});
    }
  }

  /// What the model reads now: all tokens, later the last one.
  ModelInput input_of(TextGroup& group) const {
    const auto own = [&](const at::Tensor& all) {
      return all.narrow(0, group.first, group.rows).to(device_);
    };
    ModelInput input;
    input.cache = &group.cache;
    input.last_logits = true;
    const int64_t read = group.cache.length();
    const at::Tensor fresh =
        own(tokens_.narrow(1, read, tokens_.size(1) - read));
    if (model_.first_token()) {
      input.input_ids = own(prompt_.input_ids);
      input.decoder_input_ids = fresh;
      if (prompt_.attention_mask.defined()) {
        input.attention_mask = own(prompt_.attention_mask);
      }
      return input;
    }
    input.input_ids = fresh;
    if (prompt_.attention_mask.defined()) {
      input.attention_mask = at::constant_pad_nd(
          own(prompt_.attention_mask), {0, tokens_.size(1) - given_}, 1);
      input.position_ids = positions_without_padding(input.attention_mask)
                               .narrow(1, read, fresh.size(1))
                               .clamp_min(0);
    }
    return input;
  }

  /// @return logits of the next token [B, vocabulary], where the model's last
  ///     layer is; elsewhere undefined.
  at::Tensor read() {
    std::vector<ModelInput> inputs;
    for (TextGroup& group : groups_) {
      inputs.push_back(input_of(group));
    }
    std::vector<at::Tensor> logits;
    if (executor_ == nullptr) {
      logits.push_back(model_.forward(inputs.front()).logits);
    } else {
      for (ModelOutput& output :
           evaluate_pipeline(*executor_, model_, inputs)) {
        logits.push_back(std::move(output.logits));
      }
    }
    for (TextGroup& group : groups_) {
      group.cache.advance(tokens_.size(1) - group.cache.length());
    }
    if (logits.empty()) {
      return {};
    }
    TESSERA_CHECK(
        logits.front().defined(),
        "generate: the model has no language model's head");
    return at::cat(logits).select(1, -1);
  }

  /// The next tokens [B], the same on all stages.
  at::Tensor agreed(const at::Tensor& logits) {
    at::Tensor next =
        logits.defined()
            ? next_.choose(logits, tokens_, tokens_.size(1) - given_)
            : torch::empty({tokens_.size(0)}, torch::kLong);
    if (stages_ != nullptr) {
      next = next.to(device_);
      stages_->broadcast(next, stages_->size() - 1, "the next tokens").wait();
    }
    return next.to(at::kCPU);
  }

  Model& model_;
  const ModelInput& prompt_;
  const GenerateOptions& options_;
  PipelineExecutor* executor_;
  Communicator* stages_; ///< null without a pipeline
  NextToken next_;
  at::Device device_;
  at::Tensor tokens_; ///< [B, so far] int64
  int64_t given_ = 0; ///< of them
  at::Tensor ended_; ///< [B] bool
  std::deque<TextGroup> groups_;
};

} // namespace

at::Tensor generate(
    Model& model,
    const ModelInput& prompt,
    const GenerateOptions& options,
    ParallelRun* parallel) {
  return Writer(model, prompt, options, parallel).write();
}

} // namespace tessera::zoo
