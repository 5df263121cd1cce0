// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GenerateOptions` selects how generate() picks tokens and when it stops.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
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
  /// Instead of max_new_tokens: of the prompt, without padding, and the new
  /// tokens; of an encoder-decoder those of the decoder.
  std::optional<int64_t> max_length;
  int64_t min_length = 0; ///< likewise
  /// Lowers max_new_tokens, for each prompt, to what the model has positions
  /// for, instead of an error.
  bool fit_to_model = false;
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

  /// Added to the score of the last token of a sequence where the others of it
  /// have been written.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias;
  /// Sequences that are never completed.
  std::vector<std::vector<int64_t>> bad_words_ids;
  std::vector<int64_t> suppress_tokens; ///< never written
  std::vector<int64_t> begin_suppress_tokens; ///< never the first new token
  /// Written after a prompt of one token, such as a decoder's start token.
  /// What the decoder of an encoder-decoder begins with; nothing: the model's
  /// first_token().
  std::optional<int64_t> decoder_start_token_id;
  std::optional<int64_t> forced_bos_token_id;
  /// One of them is the last of the new tokens if nothing has ended before.
  std::vector<int64_t> forced_eos_token_id;

  /// Samples tokens; otherwise takes the most likely one.
  bool do_sample = false;
  double temperature = 1; ///< divisor of the logits
  int64_t top_k = 50; ///< sample from the k most likely tokens; 0: from all
  /// Sample from the most likely tokens whose probabilities add up to this.
  double top_p = 1;
  /// Sample from tokens at least this fraction as likely as the most likely
  /// one.
  double min_p = 0;
  /// What is drawn for a prompt follows from the seed and the prompt's number,
  /// whatever else is in its batch.
  uint64_t seed = 0;
  /// The number of each prompt among all those for which one seed is used, from
  /// 0; empty: the prompts of a batch are all of them.
  std::vector<int64_t> prompt_numbers;

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
  /// Checks each option by itself, those of sampling only if it is on; `place`
  /// begins the message.
  void check_values(const std::string& place) const;

  /// The number of a prompt of the batch, see prompt_numbers.
  int64_t number_of_prompt(int64_t index) const;

  /// The same for prompts of this length: max_length and min_length as numbers
  /// of new tokens.
  /// @throws tessera::Error if max_length leaves no room for any.
  GenerateOptions after(int64_t prompt_length) const;
};

/// Reads the options from a model's folder: generation_config.json, and
/// config.json for tokens that it does not name. Files and fields may be
/// missing. Fields that are not implemented are logged once.
/// @param defaults of what they do not say.
/// @throws tessera::Error naming the file and the field.
GenerateOptions generate_options(
    const std::filesystem::path& folder,
    const GenerateOptions& defaults = {});

} // namespace tessera::zoo
