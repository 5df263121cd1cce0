// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SpanObjective` and `PrefixObjective` are what encoder-decoders are
// pretrained on (T5, arXiv:1910.10683).

#include "tessera/zoo/data/objective.h"

#include <span>

namespace tessera::zoo {

/// The lengths that span corruption of a text has, all of them the same for
/// each text.
struct SpanLengths {
  int64_t text = 0; ///< tokens that fill `inputs`
  int64_t noise = 0; ///< of them are taken out
  int64_t spans = 0; ///< in so many spans
  int64_t inputs = 0; ///< with sentinels and the end token
  int64_t targets = 0; ///< likewise

  /// The longest text whose inputs have at most so many tokens, as T5's
  /// random_spans_helper().
  static SpanLengths of(int64_t inputs, const SpanOptions& options);
};

struct CorruptedText {
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
};

/// Takes spans out of a text: T5's random_spans_noise_mask(), where a span that
/// stays comes first. The lengths of spans are a random partition of their sum;
/// first those that are taken out, then those that stay.
/// @param sentinels at least lengths.spans.
CorruptedText corrupted_text(
    std::span<const int64_t> text,
    const SpanLengths& lengths,
    const std::vector<int64_t>& sentinels,
    int64_t end,
    const Uniforms& draws);

class SpanObjective : public Objective {
 public:
  /// @throws tessera::Error as make_objective().
  SpanObjective(
      const ObjectiveOptions& options,
      const std::optional<text::Tokenizer>& tokenizer,
      const Head& head,
      const ObjectiveSetting& setting);

  int64_t text_tokens() const override {
    return lengths_.text;
  }
  int64_t positions() const override {
    return length_;
  }
  ModelInput make(
      const PackedSamples& texts,
      const std::vector<size_t>& examples,
      int64_t epoch) const override;

 private:
  SpanLengths lengths_;
  std::vector<int64_t> sentinels_;
  int64_t end_;
  int64_t length_; ///< of inputs
  int64_t target_length_;
  uint64_t seed_;
};

/// The inputs are the beginning of a text, up to a random place, and the second
/// text is the rest. It has no end: the text was cut.
class PrefixObjective : public Objective {
 public:
  /// @throws tessera::Error as make_objective().
  PrefixObjective(
      const ObjectiveOptions& options,
      const std::optional<text::Tokenizer>& tokenizer,
      const Head& head,
      const ObjectiveSetting& setting);

  int64_t text_tokens() const override {
    return length_;
  }
  int64_t positions() const override {
    return length_;
  }
  ModelInput make(
      const PackedSamples& texts,
      const std::vector<size_t>& examples,
      int64_t epoch) const override;

 private:
  int64_t end_;
  int64_t length_;
  uint64_t seed_;
};

} // namespace tessera::zoo
