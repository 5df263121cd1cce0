// SPDX-License-Identifier: Apache-2.0
#pragma once
// Heads that predict tokens, or a class for each token.

#include "tessera/zoo/heads/standard_head.h"

namespace tessera::zoo {

/// Each token predicts its own label: a token of the vocabulary, or a class.
class TokenHead : public StandardHead {
 public:
  /// @param classes 0: labels are not checked.
  TokenHead(HeadInputs inputs, int64_t classes)
      : StandardHead(std::move(inputs)), classes_(classes) {}

  HeadLabels labels() const override {
    return HeadLabels::kTokens;
  }
  int64_t classes() const override {
    return classes_;
  }
  std::vector<std::string> trimmed_with_tokens() const override {
    return {"labels"};
  }
  Metric metric() const override {
    return {"accuracy", "tokens"};
  }
  void add_score(const ScoredBatch& batch, ScoreSums& sums) const override;

 protected:
  std::vector<std::string> targets() const override {
    return {"labels"};
  }
  void check_labels(const ColumnChecks& examples) const override;

 private:
  int64_t classes_;
};

/// Each token predicts the next one; the labels are input_ids unless the file
/// has others.
class NextTokenHead : public TokenHead {
 public:
  explicit NextTokenHead(const HeadInputs& inputs)
      : TokenHead(inputs, inputs.vocab) {}

  HeadLabels labels() const override {
    return HeadLabels::kNextTokens;
  }
  std::vector<ObjectiveKind> objectives() const override {
    return {ObjectiveKind::kNextToken};
  }
  void complete(NamedTensors& batch) const override;
  bool has_labels(const NamedTensors& batch) const override;
  void add_score(const ScoredBatch& batch, ScoreSums& sums) const override;

 protected:
  void check_labels(const ColumnChecks& /*examples*/) const override {}
};

/// Masked tokens are predicted, and with `follows` whether the second sentence
/// of each example follows the first.
class MaskedTokenHead : public TokenHead {
 public:
  explicit MaskedTokenHead(const HeadInputs& inputs, bool follows = false)
      : TokenHead(inputs, inputs.vocab), follows_(follows) {}

  bool predicts_masked_tokens() const override {
    return true;
  }
  std::vector<ObjectiveKind> objectives() const override {
    return {ObjectiveKind::kMasked};
  }
  bool predicts_pairs() const override {
    return follows_;
  }
  void draw(
      NamedTensors& batch,
      const ExampleOptions& options,
      const BatchDraws& draws) const override;
  bool has_labels(const NamedTensors& batch) const override;
  LossCounts loss_counts(const ModelInput& batch) const override;
  void add_score(const ScoredBatch& batch, ScoreSums& sums) const override;

 protected:
  std::vector<std::string> targets() const override;
  void check_labels(const ColumnChecks& examples) const override;

 private:
  bool follows_;
};

/// The tokens that fill the blanks of a text are predicted, in place.
class BlankHead : public TokenHead {
 public:
  explicit BlankHead(const HeadInputs& inputs)
      : TokenHead(inputs, inputs.vocab) {}

  std::vector<ObjectiveKind> objectives() const override {
    return {ObjectiveKind::kBlankFilling};
  }
};

/// The tokens of an encoder-decoder's second text are predicted.
class SecondTextHead : public TokenHead {
 public:
  explicit SecondTextHead(const HeadInputs& inputs)
      : TokenHead(inputs, inputs.vocab) {}

  std::vector<ObjectiveKind> objectives() const override {
    return {ObjectiveKind::kSpanCorruption, ObjectiveKind::kPrefix};
  }
  std::vector<std::string> trimmed_with_tokens() const override {
    return {};
  }
  /// Tokens after the last label affect none before it.
  std::vector<std::string> trimmed_with_labels() const override {
    return {"labels", "decoder_input_ids", "decoder_attention_mask"};
  }

 protected:
  void check_labels(const ColumnChecks& examples) const override;
};

} // namespace tessera::zoo
