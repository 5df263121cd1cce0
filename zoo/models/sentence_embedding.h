// SPDX-License-Identifier: Apache-2.0
#pragma once
// One vector for a text, from the hidden states of its tokens: what
// sentence-transformers' folders state beside the model.

#include "tessera/zoo/models/pretrained.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace tessera::zoo {

/// What a text's vector is made of; padding never counts.
enum class Pooling {
  kFirst, ///< the first token's features ("cls")
  kMax, ///< of each feature
  kMean,
  kMeanRoot, ///< the tokens' sum by the root of their number
  kWeightedMean, ///< token number i of the text, from 1 on, counts i times
  kLast, ///< the last token's features
};

/// hidden [B, S, features] -> [B, features].
/// @param attention_mask [B, S], 0 where a token is padding; undefined: none.
///     What a row of padding alone gives means nothing.
at::Tensor pool_tokens(
    Pooling pooling,
    const at::Tensor& hidden,
    const at::Tensor& attention_mask);

/// How a text's vector is made. With several ways they are put one behind the
/// other.
struct SentenceEmbedding {
  std::vector<Pooling> poolings = {Pooling::kMean};
  bool normalize = false; ///< to length 1

  /// From modules.json and the pooling's config.json; of a folder without
  /// modules.json the default, as sentence-transformers has it.
  /// @param features of the model, against those that the files state.
  /// @throws tessera::Error naming the file on modules and poolings that are
  ///     not implemented.
  static SentenceEmbedding from_folder(
      const std::filesystem::path& folder,
      int64_t features);

  /// hidden [B, S, features], attention_mask as pool_tokens() -> [B, features *
  /// poolings].
  at::Tensor operator()(
      const at::Tensor& hidden,
      const at::Tensor& attention_mask) const;
};

/// A base model (BERT, say, or a decoder) with it.
class SentenceEncoder {
 public:
  SentenceEncoder(std::shared_ptr<Model> model, SentenceEmbedding embedding);

  /// The folder of a sentence-transformers model, or of any base model. Heads
  /// of its architecture are left out.
  /// @throws tessera::Error as from_pretrained() and SentenceEmbedding.
  static SentenceEncoder from_folder(
      const std::filesystem::path& folder,
      const FromPretrainedOptions& options = {});

  /// [B, features * poolings]; gradients flow into the model.
  at::Tensor forward(const ModelInput& input);

  Model& model() {
    return *model_;
  }
  const SentenceEmbedding& embedding() const {
    return embedding_;
  }

 private:
  std::shared_ptr<Model> model_;
  SentenceEmbedding embedding_;
};

} // namespace tessera::zoo
