// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CpmModel` is CPM-1 and CPM-3 as in ModelCenter: a T5 half that generates
// after a prefix with bidirectional attention.

#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/models/layered_model.h"
#include "tessera/zoo/models/relative_stack.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace tessera::zoo {

/// The hyperparameters of a `CpmModel`; a family fills them from its
/// config.json.
struct CpmConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  RelativeStackOptions layers;
  double scale = 1; ///< factor on embeddings and on the input of the head
  bool tied_head = false; ///< the head's weight is the embedding's
  double embedding_deviation = 1; ///< standard deviation of initial weights
  double head_deviation = 1; ///< the same, of an untied head

  /// The first tokens of every sequence, which are rows of a table of prompts;
  /// 0: there is no table.
  int64_t prompt_tokens = 0;
  int64_t prompt_rows = 0; ///< of that table
  /// With segments: tokens of the same segment have the bias of their distance;
  /// otherwise that of the pair of their segment with itself.
  bool distances_in_segments = true;
};

/// Modules `embeddings.tokens` and `embeddings.prompts`, `encoder`
/// (RelativeStack), and `head` (absent if tied).
///
/// Takes input_ids, attention_mask, position_ids, labels (each token predicts
/// the next one's), and of the same shape `context`, nonzero at context tokens,
/// `span`, and with segments token_type_ids (by default 0). A context token
/// attends to all context tokens; the others attend to those and to earlier
/// tokens, in each case of the same span. The first input_ids of every sequence
/// are numbers of prompts, if the model has them. A cache keeps these inputs of
/// the tokens so far.
class CpmModel : public LayeredModel {
 public:
  /// @param json the config.json, which the model keeps.
  CpmModel(
      const CpmConfig& config,
      bool has_head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  std::unique_ptr<Head> head() override;

  bool divides_sequences() const override {
    return true;
  }
  /// False under context and sequence parallelism.
  bool takes_cache() const override {
    return context_.has_all_tokens();
  }
  std::map<std::string, NewTokens> continued_inputs() const override;

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  /// Inputs of all tokens so far, [B or 1, past + S]; undefined if not given.
  struct TokenInputs {
    at::Tensor positions;
    at::Tensor segments;
    at::Tensor context;
    at::Tensor span;
  };

  /// The number of tokens of this input that are prompts.
  int64_t prompts_in(const ModelInput& input) const;
  TokenInputs inputs_so_far(const ModelInput& input) const;
  at::Tensor embed(const ModelInput& input);
  at::Tensor bias(const ModelInput& input, const TokenInputs& tokens);
  at::Tensor mask(const ModelInput& input, const TokenInputs& tokens) const;
  void add_head(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);

  CpmConfig config_;
  bool has_head_;
  Embedding tokens_;
  torch::nn::Embedding prompts_{nullptr};
  RelativeStack encoder_{nullptr};
  Linear head_;
};

} // namespace tessera::zoo
