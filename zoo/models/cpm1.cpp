// SPDX-License-Identifier: Apache-2.0
// CPM-1 (arXiv:2012.00413) as in ModelCenter: a T5 half that generates after a
// prefix with bidirectional attention.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/heads/token_heads.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/layers/masks.h"
#include "tessera/zoo/models/cpm_like.h"
#include "tessera/zoo/models/families.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/model_center_names.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

#include <array>
#include <memory>
#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

/// Modules `embeddings.tokens`, `encoder` (RelativeStack), and `head` (absent
/// if tied).
///
/// Takes input_ids, attention_mask, labels (each token predicts the next
/// one's), and of the same shape `context`, nonzero at context tokens, and
/// `span`. A context token attends to all context tokens; the others attend to
/// those and to earlier tokens, in each case of the same span.
class Cpm1 : public Model {
 public:
  Cpm1(
      const EncoderDecoderConfig& config,
      bool has_head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names)
      : Model(
            std::move(json),
            std::move(names),
            pipeline::StageLayers(
                context.place(),
                layer_costs(
                    config.encoder.layers,
                    has_head ? config.vocab * config.features : 0)),
            {"head."}),
        config_(config),
        has_head_(has_head),
        context_(context) {
    const bool is_tied = has_head && config.tied_head && stage().has_last();
    if (stage().has_first() || is_tied) {
      const auto embeddings = register_module(
          "embeddings", std::make_shared<torch::nn::Module>("Embeddings"));
      tokens_ = Embedding(
          *embeddings,
          "tokens",
          context_,
          {config.vocab, config.features, {}, config.embedding_deviation});
    }
    encoder_ = register_module(
        "encoder", RelativeStack(context_, config.encoder, stage().own()));
    if (has_head && !config.tied_head && stage().has_last()) {
      head_ = Linear::column(
          *this,
          "head",
          context_,
          {config.features, config.vocab, false, 1, config.head_deviation});
    }
  }

  std::unique_ptr<Head> head() override {
    return has_head_ ? std::make_unique<NextTokenHead>(
                           HeadInputs{.vocab = config_.vocab})
                     : nullptr;
  }

 protected:
  void check(const ModelInput& input) const override {
    check_ids("input_ids", input.input_ids, config_.vocab);
    constexpr std::array<std::string_view, 5> kTaken = {
        "input_ids", "attention_mask", "context", "span", "labels"};
    check_not_taken(input, std::span(kTaken).first(has_head_ ? 5 : 4));
    for (const auto& [name, tensor] : input.named()) {
      check_same_shape(name.c_str(), tensor, input.input_ids);
    }
  }

  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override {
    const at::Tensor& ids = input.input_ids;
    if (begin == 0) {
      state.hidden = tokens_.forward(ids);
      state.bias = encoder_->bias(ids.size(1), ids.device());
    }
    LayerInput layer;
    layer.mask = with_safe_rows(all_of(
        {given_first(input),
         same_span(input),
         padding_mask(input.attention_mask)}));
    encoder_->run(begin, end, layer, input.hidden_states, state);
    return state;
  }

  ModelOutput output(const ModelInput& input, const LayerState& state)
      override {
    ModelOutput output;
    for (const at::Tensor& entered : state.entered) {
      output.hidden_states.push_back(context_.whole(entered));
    }
    const at::Tensor hidden = encoder_->finish(state.hidden);
    if (!has_head_ || input.hidden_states) {
      output.last_hidden_state = context_.whole(hidden);
    }
    if (input.hidden_states) {
      output.hidden_states.push_back(output.last_hidden_state);
    }
    if (has_head_) {
      output.last_hidden_state = at::Tensor();
      add_head(input, hidden, output);
    }
    return output;
  }

 private:
  static at::Tensor given_first(const ModelInput& input) {
    const at::Tensor causal =
        causal_mask(input.input_ids.size(1), input.input_ids.device());
    const auto found = input.others.find("context");
    if (found == input.others.end()) {
      return causal;
    }
    const at::Tensor given = found->second.ne(0).unsqueeze(1);
    return given.unsqueeze(2) | (~given.unsqueeze(3) & causal);
  }

  static at::Tensor same_span(const ModelInput& input) {
    const auto found = input.others.find("span");
    return found == input.others.end() ? at::Tensor()
                                       : document_mask(found->second);
  }

  void add_head(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output) {
    const VocabHead head(context_);
    const at::Tensor weight =
        config_.tied_head ? tokens_.weight() : head_.weight();
    const at::Tensor targets = input.labels.defined()
                                   ? next_token_targets(input.labels)
                                   : at::Tensor();
    if (input.loss_only) {
      TESSERA_CHECK(targets.defined(), "loss_only without labels");
      output.loss = head.loss(hidden, weight, {}, targets);
      return;
    }
    output.logits = head.logits(hidden, weight, {});
    if (targets.defined()) {
      output.loss = cross_entropy(output.logits, targets);
    }
  }

  EncoderDecoderConfig config_;
  bool has_head_;
  LayerContext context_;
  Embedding tokens_;
  RelativeStack encoder_{nullptr};
  Linear head_;
};

NameTable cpm1_names(bool has_head) {
  NameTable table{
      .prefix = "cpm1.",
      .base =
          {{"input_embedding", {"embeddings.tokens"}},
           {"position_bias.relative_attention_bias",
            {"encoder.relative_bias.weight"}}},
      .head = {{"output_projection", {"head"}}},
      .is_base = !has_head,
      .ignored = {"output_projection.*"}};
  add_model_center_stack(table, "encoder", "encoder");
  return table;
}

MakeModel make(bool has_head) {
  return [has_head](
             const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    return std::make_shared<Cpm1>(
        cpm_like_config(fields),
        has_head,
        context,
        std::move(json),
        cpm1_names(has_head));
  };
}

} // namespace

ModelFamily cpm1_family() {
  return {"cpm1", {{"CPM1ForLM", make(true)}, {"CPM1", make(false)}}};
}

} // namespace tessera::zoo
