// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextGenerator` generates texts from texts: a tokenizer, a model and the
// options of generate().

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/generation/generate.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

struct TextOptions {
  /// Without eos_token_id, texts end with the eos_token of the tokenizer.
  GenerateOptions tokens;
  /// Of the prompts, e.g. a beginning of a text. False for rendered chats.
  bool add_special_tokens = true;
  /// Special tokens do not appear in the texts.
  bool skip_special_tokens = true;
};

enum class FinishReason {
  kEnd, ///< an end token
  kStop, ///< a stop string
  kLength, ///< max_new_tokens
};

/// "end", "stop", "length".
const char* name_of(FinishReason reason);

struct GeneratedText {
  /// What the model wrote, without the stop string and what follows it; from a
  /// model that fills blanks the prompt with its blanks filled in.
  std::string text;
  /// The new tokens, with the one that ends them; of all blanks.
  std::vector<int64_t> tokens;
  /// If the model fills blanks: kLength if any of them was cut.
  FinishReason reason = FinishReason::kLength;
};

/// Sees each piece of a text as soon as it is sure: whole characters, and
/// nothing of a stop string. Beams and filled blanks come as one piece.
/// @param text of the results: prompt * num_return_sequences + copy.
using OnText = std::function<void(size_t text, std::string_view fragment)>;

/// A text ends at the first end token, when it contains one of the stop
/// strings, which may stretch over several tokens (with beams each of the
/// beams, as by transformers' StopStringCriteria, but stop strings that begin
/// in the prompt do not count), or after max_new_tokens.
///
/// Prompts of one call are a batch, padded on the left, and the results are
/// those of each prompt alone, see zoo::generate(): greedy ones, beams, and,
/// under the number of the prompt, what is drawn. A model that fills blanks
/// (GLM) writes the [MASK], [sMASK] and [gMASK] of each prompt one after the
/// other, see BlankedText.
class TextGenerator {
 public:
  /// @param model, parallel as for generate(); outlive this object.
  /// @param device of the model.
  TextGenerator(
      Model& model,
      text::Tokenizer tokenizer,
      TextOptions options,
      at::Device device = at::kCPU,
      ParallelRun* parallel = nullptr);

  /// Collective if ranks divide the model, with the same prompts; every rank
  /// has the results, and calls on_text.
  /// @param kept of the prompts before, e.g. of a conversation, of which the
  ///     last one may begin with them; see zoo::generate().
  /// @param first_number that of the first prompt, where a seed is used for
  ///     those of several calls; see GenerateOptions::prompt_numbers.
  /// @return num_return_sequences texts for each prompt, best first.
  /// @throws tessera::Error naming the prompt (from 1) if it has no tokens or
  ///     no blank, or is too long for the model; and as generate().
  std::vector<GeneratedText> generate(
      const std::vector<std::string>& prompts,
      const OnText& on_text = {},
      PromptCache* kept = nullptr,
      int64_t first_number = 0) const;

  const TextOptions& options() const {
    return options_;
  }
  const text::Tokenizer& tokenizer() const {
    return tokenizer_;
  }

 private:
  /// What one row writes, see Row in the source.
  class Row;

  std::vector<int64_t> prompt_tokens(const std::string& text) const;
  /// @param name of the prompt.
  /// @throws tessera::Error if it leaves no room for new tokens.
  void check_length(const std::vector<int64_t>& prompt, const std::string& name)
      const;
  /// Generates from a batch, and decodes.
  /// @param before tokens before the new ones of each prompt, which decide
  ///     whether a text begins with a space.
  std::vector<GeneratedText> write(
      const ModelInput& batch,
      const std::vector<std::vector<int64_t>>& before,
      const GenerateOptions& options,
      const OnText& on_text,
      PromptCache* kept) const;
  std::vector<GeneratedText> fill(
      const std::vector<std::string>& prompts,
      const OnText& on_text,
      int64_t first_number) const;

  Model& model_;
  text::Tokenizer tokenizer_;
  TextOptions options_;
  at::Device device_;
  ParallelRun* parallel_;
};

} // namespace tessera::zoo
