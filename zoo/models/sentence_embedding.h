// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SentenceEmbedding` pools the hidden states of a sequence into one vector, as
// configured in a sentence-transformers folder.

#include "tessera/zoo/models/pretrained.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace tessera::zoo {

/// How hidden states are pooled; padding is excluded.
enum class Pooling {
  kFirst, ///< the first token's features ("cls")
  kMax, ///< maximum of each feature
  kMean,
  kMeanRoot, ///< sum over tokens divided by the square root of their number
  kWeightedMean, ///< mean in which token number i, from 1, has weight i
  kLast, ///< the last token's features
};

/// hidden [B, S, features] -> [B, features].
/// @param attention_mask [B, S], 0 at padding; undefined: no padding. The
///     result of a row that is all padding is meaningless.
at::Tensor pool_tokens(
    Pooling pooling,
    const at::Tensor& hidden,
    const at::Tensor& attention_mask);

/// The pooling of a folder. The results of several poolings are concatenated.
struct SentenceEmbedding {
  std::vector<Pooling> poolings = {Pooling::kMean};
  bool normalize = false; ///< to length 1

  /// Reads modules.json and the pooling's config.json; without modules.json
  /// returns the default, as sentence-transformers does.
  /// @param features hidden size of the model, checked against the files.
  /// @throws tessera::Error naming the file, on modules and poolings that are
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

/// A base model (an encoder such as BERT, or a decoder) with a
/// SentenceEmbedding.
class SentenceEncoder {
 public:
  SentenceEncoder(std::shared_ptr<Model> model, SentenceEmbedding embedding);

  /// Loads the folder of a sentence-transformers model, or of any base model.
  /// Heads of its architecture are ignored.
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
