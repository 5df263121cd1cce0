// SPDX-License-Identifier: Apache-2.0
#pragma once
// How texts are gone on with.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// When texts that have ended stop a search; see BeamSearch.
enum class EarlyStopping {
  kNo, ///< when those that go on are hardly going to be better
  kYes, ///< as soon as there are as many as beams
  kNever, ///< when those that go on can not be better
};

/// Under the names and with the defaults of transformers' generation_config.
struct GenerateOptions {
  int64_t max_new_tokens = 20;
  int64_t min_new_tokens = 0; ///< before which no text ends
  /// Tokens that end a text; empty: only their number does.
  std::vector<int64_t> eos_token_id;
  int64_t pad_token_id = 0; ///< behind the end of a text

  /// Above 1: tokens that are in the text get less likely (arXiv:1909.05858).
  double repetition_penalty = 1;
  /// So many tokens in a row are not written twice; 0: they may be.
  int64_t no_repeat_ngram_size = 0;

  /// Tokens are drawn; otherwise each is the likeliest one.
  bool do_sample = false;
  double temperature = 1; ///< that logits are divided by
  int64_t top_k = 50; ///< of so many likeliest ones; 0: of all
  double top_p = 1; ///< of the likeliest ones that have this probability
  double min_p = 0; ///< of those as likely as this part of the likeliest
  uint64_t seed = 0;

  /// Above 1: so many texts are gone on with side by side, and those whose
  /// tokens together are the likeliest win.
  int64_t num_beams = 1;
  /// Their logarithms are divided by a text's new tokens to this power.
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  /// Of every text: the best of the beams, or so many draws.
  int64_t num_return_sequences = 1;

  /// @throws tessera::Error naming the option, its value and its range, or
  ///     options that do not go together.
  void check() const;
  /// The same for each option by itself; `place` begins the message.
  void check_values(const std::string& place) const;
};

/// What a model's folder says: generation_config.json, and config.json for
/// tokens that it does not name. Files and fields may be missing.
/// @throws tessera::Error naming the file and the field.
GenerateOptions generate_options(const std::filesystem::path& folder);

} // namespace tessera::zoo
