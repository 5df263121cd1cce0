// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StandardHead` is a head over texts or images, whose inputs are named as
// transformers names them.

#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/patch_embedding.h"

#include <optional>
#include <utility>

namespace tessera::zoo {

/// The inputs of a model: the tokens of texts, or images.
struct HeadInputs {
  int64_t vocab = 0; ///< vocabulary size; 0: not known
  int64_t token_types = 0; ///< of the inputs; 0: there are none
  std::optional<PatchEmbeddingOptions> images; ///< of image models
};

/// Checks files for the inputs that the model takes, their types and shapes.
class StandardHead : public Head {
 public:
  explicit StandardHead(HeadInputs inputs) : inputs_(std::move(inputs)) {}

  int64_t vocab() const override {
    return inputs_.vocab;
  }
  const PatchEmbeddingOptions* images() const override {
    return inputs_.images ? &*inputs_.images : nullptr;
  }
  int64_t token_types() const override {
    return inputs_.token_types;
  }
  void check(const ColumnChecks& examples) const override;

 protected:
  /// The inputs that make the loss, of those that only some heads take:
  /// `labels`, `start_positions`, `end_positions`, `next_sentence_label`,
  /// `noise`, `bool_masked_pos`, `second_pixel_values`.
  virtual std::vector<std::string> targets() const = 0;
  /// The number of patches of each image in a batch.
  int64_t patches_in(const NamedTensors& batch) const;

  virtual void check_labels(const ColumnChecks& /*examples*/) const {}
  virtual bool labels_may_be_floats() const {
    return false;
  }
  /// Whether input_ids are [rows, choices, length].
  virtual bool has_choices() const {
    return false;
  }

 private:
  void check_texts(const ColumnChecks& examples) const;
  void check_images(const ColumnChecks& examples) const;
  bool takes(const std::string& input) const;

  HeadInputs inputs_;
};

} // namespace tessera::zoo
