// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/cpm_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/heads/token_heads.h"
#include "tessera/zoo/layers/attention_function.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

/// Numbers of prompts are no tokens, and so not predicted.
class AfterPromptsHead : public NextTokenHead {
 public:
  AfterPromptsHead(const HeadInputs& inputs, int64_t prompt_tokens)
      : NextTokenHead(inputs), prompt_tokens_(prompt_tokens) {}

  void complete(NamedTensors& batch) const override {
    const bool is_given = batch.count("labels") != 0;
    NextTokenHead::complete(batch);
    if (!is_given && prompt_tokens_ > 0) {
      at::Tensor& labels = batch.at("labels");
      labels = labels.clone();
      labels.slice(1, 0, prompt_tokens_).fill_(-100);
    }
  }

 private:
  int64_t prompt_tokens_;
};

} // namespace

CpmModel::CpmModel(
    const CpmConfig& config,
    bool has_head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : LayeredModel(
          context,
          std::move(json),
          std::move(names),
          layer_costs(
              config.layers.layers,
              has_head ? config.vocab * config.features : 0)),
      config_(config),
      has_head_(has_head) {
  const bool is_tied = has_head && config.tied_head && stage().has_last();
  if (stage().has_first() || is_tied) {
    const auto embeddings = register_module(
        "embeddings", std::make_shared<torch::nn::Module>("Embeddings"));
    tokens_ = Embedding(
        *embeddings,
        "tokens",
        context_,
        {config.vocab, config.features, {}, config.embedding_deviation});
    if (stage().has_first() && config.prompt_rows > 0) {
      prompts_ = full_table(
          *embeddings,
          "prompts",
          {config.prompt_rows,
           config.features,
           {},
           config.embedding_deviation});
    }
  }
  encoder_ = register_module(
      "encoder", RelativeStack(context_, config.layers, stage().local()));
  if (has_head && !config.tied_head && stage().has_last()) {
    head_ = Linear::column(
        *this,
        "head",
        context_,
        {config.features, config.vocab, false, 1, config.head_deviation});
  }
}

std::unique_ptr<Head> CpmModel::head() {
  return has_head_
             ? std::make_unique<AfterPromptsHead>(
                   HeadInputs{.vocab = config_.vocab}, config_.prompt_tokens)
             : nullptr;
}

std::map<std::string, NewTokens> CpmModel::continued_inputs() const {
  std::map<std::string, NewTokens> inputs = {
      {"context", NewTokens::kZero}, {"span", NewTokens::kAsLast}};
  if (config_.layers.segments > 0) {
    inputs.emplace("token_type_ids", NewTokens::kAsLast);
  }
  return inputs;
}

int64_t CpmModel::prompts_in(const ModelInput& input) const {
  return std::clamp<int64_t>(
      config_.prompt_tokens - past_tokens(input), 0, input.input_ids.size(1));
}

void CpmModel::check(const ModelInput& input) const {
  const at::Tensor& ids = input.input_ids;
  // Below either bound; then each part below its own.
  check_ids("input_ids", ids, std::max(config_.vocab, config_.prompt_rows));
  const int64_t prompts = prompts_in(input);
  const int64_t tokens = ids.size(1) - prompts;
  if (prompts > 0) {
    check_ids(
        "input_ids (prompts)", ids.narrow(1, 0, prompts), config_.prompt_rows);
  }
  if (tokens > 0) {
    check_ids("input_ids", ids.narrow(1, prompts, tokens), config_.vocab);
  }
  std::vector<std::string_view> taken = {
      "input_ids", "attention_mask", "position_ids", "context", "span"};
  if (has_head_) {
    taken.emplace_back("labels");
  }
  if (config_.layers.segments > 0) {
    taken.emplace_back("token_type_ids");
  }
  check_not_taken(input, taken);
  check_mask(
      "attention_mask",
      input.attention_mask,
      ids.size(0),
      past_tokens(input) + ids.size(1));
  if (input.token_type_ids.defined()) {
    check_ids("token_type_ids", input.token_type_ids, config_.layers.segments);
  }
  for (const auto& [name, tensor] : input.named()) {
    if (name == "position_ids") {
      check_same_shape(
          name.c_str(),
          tensor,
          tensor.size(0) == 1 ? ids.narrow(0, 0, 1) : ids);
    } else if (name != "attention_mask") {
      check_same_shape(name.c_str(), tensor, ids);
    }
  }
}

CpmModel::TokenInputs CpmModel::inputs_so_far(const ModelInput& input) const {
  const auto other = [&](const char* name) {
    const auto found = input.others.find(name);
    return found == input.others.end() ? at::Tensor() : found->second;
  };
  TokenInputs tokens{
      input.position_ids,
      input.token_type_ids,
      other("context"),
      other("span")};
  const std::array<std::pair<const char*, at::Tensor*>, 4> all{
      {{"position_ids", &tokens.positions},
       {"token_type_ids", &tokens.segments},
       {"context", &tokens.context},
       {"span", &tokens.span}}};
  for (const auto& [name, tensor] : all) {
    if (tensor->defined()) {
      *tensor = tensor->to(at::kLong);
    }
    if (input.cache != nullptr) {
      *tensor = input.cache->extend_input(
          name,
          tensor->defined() ? tensor->expand(input.input_ids.sizes())
                            : *tensor);
    }
  }
  return tokens;
}

at::Tensor CpmModel::embed(const ModelInput& input) {
  const at::Tensor& ids = input.input_ids;
  const int64_t prompts = prompts_in(input);
  at::Tensor x;
  if (prompts == 0) {
    x = tokens_.forward(context_.local_tokens(ids));
  } else {
    const at::Tensor is_prompt =
        torch::arange(ids.size(1), ids.options()).lt(prompts).unsqueeze(0);
    x = tokens_.forward(context_.local_tokens(ids.masked_fill(is_prompt, 0)));
    const at::Tensor rows = at::constant_pad_nd(
        prompts_->forward(ids.narrow(1, 0, prompts).to(at::kLong)),
        {0, 0, 0, ids.size(1) - prompts});
    const at::Tensor is_token =
        is_prompt.logical_not().unsqueeze(2).to(rows.scalar_type());
    x = x * context_.between(context_.local_tokens(is_token)) +
        context_.between(context_.local_tokens(rows));
  }
  return config_.scale == 1 ? x : x * config_.scale;
}

at::Tensor CpmModel::bias(const ModelInput& input, const TokenInputs& tokens) {
  const at::Tensor& ids = input.input_ids;
  const int64_t past = past_tokens(input);
  const int64_t segments = config_.layers.segments;
  if (!tokens.positions.defined() && !tokens.segments.defined() &&
      config_.distances_in_segments) {
    return encoder_->bias(ids.size(1), ids.device(), past);
  }
  const auto of_queries = [&](const at::Tensor& all) {
    return all.narrow(1, past, ids.size(1));
  };
  const at::Tensor positions =
      tokens.positions.defined()
          ? tokens.positions
          : torch::arange(past + ids.size(1), ids.options().dtype(at::kLong))
                .unsqueeze(0);
  const at::Tensor distances = relative_buckets(
      positions.unsqueeze(1) - of_queries(positions).unsqueeze(2),
      config_.layers.buckets);
  if (segments == 0) {
    return encoder_->bias(distances);
  }
  const at::Tensor of_keys = tokens.segments.defined()
                                 ? tokens.segments
                                 : torch::zeros_like(positions);
  const at::Tensor pairs =
      config_.layers.buckets.buckets +
      segment_buckets(of_queries(of_keys), of_keys, segments);
  if (!config_.distances_in_segments) {
    return encoder_->bias(pairs);
  }
  return encoder_->bias(at::where(
      of_queries(of_keys).unsqueeze(2).eq(of_keys.unsqueeze(1)),
      distances,
      pairs));
}

at::Tensor CpmModel::mask(const ModelInput& input, const TokenInputs& tokens)
    const {
  const int64_t past = past_tokens(input);
  const int64_t length = past + input.input_ids.size(1);
  at::Tensor seen =
      AttentionPattern::causal(length, length, input.input_ids.device())
          .dense();
  if (tokens.context.defined()) {
    const at::Tensor given = tokens.context.ne(0).unsqueeze(1);
    seen = given.unsqueeze(2) | (~given.unsqueeze(3) & seen);
  }
  if (tokens.span.defined()) {
    const at::Tensor& span = tokens.span;
    seen = seen & span.unsqueeze(2).eq(span.unsqueeze(1)).unsqueeze(1);
  }
  seen = seen.narrow(2, past, input.input_ids.size(1));
  if (input.attention_mask.defined()) {
    seen = seen & input.attention_mask.ne(0).unsqueeze(1).unsqueeze(1);
  }
  return with_safe_rows(seen);
}

LayerState CpmModel::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  const TokenInputs tokens = inputs_so_far(input);
  if (begin == 0) {
    state.hidden = embed(input);
    state.bias = bias(input, tokens);
  }
  LayerInput layer;
  layer.cache = input.cache;
  layer.mask = mask(input, tokens);
  encoder_->run(begin, end, layer, input.hidden_states, state);
  return state;
}

ModelOutput CpmModel::output(const ModelInput& input, const LayerState& state) {
  ModelOutput output;
  const at::Tensor hidden = encoder_->finish(state.hidden);
  if (!has_head_ || input.hidden_states) {
    output.last_hidden_state = context_.full(hidden);
  }
  if (input.hidden_states) {
    output.hidden_states =
        hidden_states(state.entered, output.last_hidden_state);
  }
  if (has_head_) {
    output.last_hidden_state = at::Tensor();
    add_head(input, hidden, output);
  }
  return output;
}

void CpmModel::add_head(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const at::Tensor weight =
      config_.tied_head ? tokens_.weight() : head_.weight();
  const at::Tensor scaled =
      config_.scale == 1 ? hidden : hidden * config_.scale;
  const at::Tensor targets =
      input.labels.defined() ? next_token_targets(input.labels) : at::Tensor();
  VocabHead(context_).add_result(input, scaled, weight, {}, targets, output);
}

} // namespace tessera::zoo
