// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GenerateOptions` selects how generate() picks tokens and when it stops.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// When a beam search stops although unfinished sequences remain.
enum class EarlyStopping {
  kNo, ///< when unfinished sequences are unlikely to be better
  kYes, ///< as soon as num_beams sequences have ended
  kNever, ///< when unfinished sequences cannot be better
};

/// Names and defaults are those of transformers' generation_config.
struct GenerateOptions {
  int64_t max_new_tokens = 20;
  int64_t min_new_tokens = 0; ///< no sequence ends before
  /// Tokens that end a sequence; empty: only max_new_tokens does.
  std::vector<int64_t> eos_token_id;
  int64_t pad_token_id = 0; ///< after the end of a sequence
  /// A sequence ends when its new text contains one of them. Only for
  /// TextGenerator, which knows the text: generate() refuses them.
  std::vector<std::string> stop_strings;

  /// Above 1: tokens that the sequence contains become less likely
  /// (arXiv:1909.05858).
  double repetition_penalty = 1;
  /// No n-gram of this size appears twice; 0: no restriction.
  int64_t no_repeat_ngram_size = 0;

  /// Samples tokens; otherwise takes the most likely one.
  bool do_sample = false;
  double temperature = 1; ///< divisor of the logits
  int64_t top_k = 50; ///< sample from the k most likely tokens; 0: from all
  /// Sample from the most likely tokens whose probabilities add up to this.
  double top_p = 1;
  /// Sample from tokens at least this fraction as likely as the most likely
  /// one.
  double min_p = 0;
  uint64_t seed = 0;

  /// Above 1: beam search with this number of beams; with do_sample, beams
  /// whose continuations are drawn.
  int64_t num_beams = 1;
  /// The log-probability of a beam is divided by its number of new tokens to
  /// this power.
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  /// Per prompt: the best of the beams, or independent samples.
  int64_t num_return_sequences = 1;

  /// @throws tessera::Error naming the option, its value and its range, or
  ///     options that exclude each other.
  void check() const;
  /// Checks each option by itself; `place` begins the message.
  void check_values(const std::string& place) const;
};

/// Reads the options from a model's folder: generation_config.json, and
/// config.json for tokens that it does not name. Files and fields may be
/// missing.
/// @param defaults of what they do not say.
/// @throws tessera::Error naming the file and the field.
GenerateOptions generate_options(
    const std::filesystem::path& folder,
    const GenerateOptions& defaults = {});

} // namespace tessera::zoo
