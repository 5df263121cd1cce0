// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Head` is what a model is trained for: the examples that it takes, its
// labels, and how it is scored. `Model::head()` makes it.

#include "tessera/engine/engine.h"
#include "tessera/zoo/heads/score.h"
#include "tessera/zoo/inputs/input_kind.h"
#include "tessera/zoo/inputs/model_input.h"
#include "tessera/zoo/inputs/objective_options.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

class ParallelRun;

} // namespace tessera

namespace tessera::zoo {

class ColumnChecks;
struct ExampleOptions;
struct PatchEmbeddingOptions;

/// The meaning of `ModelInput::labels`.
enum class HeadLabels {
  kOther,
  kNextTokens, ///< tokens; each predicts the next one
  kTokens, ///< a token or a class for each token
  kClass, ///< one class per example
  kClasses, ///< 0 or 1 for each class
  kNumbers,
};

/// Random numbers of a batch, uniform in [0, 1): float32 [rows, each]. A
/// function of the seed, the epoch and the example alone.
using BatchDraws = std::function<at::Tensor(int64_t each)>;

/// A head takes any inputs and is scored by the model's loss; heads of models
/// override what they know better. A batch is made of the rows of files in this
/// order: complete(), a check of values (vocab(), classes()), removal of
/// padding, draw(), has_labels(). It is on the CPU until then.
class Head {
 public:
  virtual ~Head() = default;

  virtual HeadLabels labels() const {
    return HeadLabels::kOther;
  }
  /// Token ids are less than this; 0: they are not checked.
  virtual int64_t vocab() const {
    return 0;
  }
  /// Token types are less than this; 0: the model does not take any.
  virtual int64_t token_types() const {
    return 0;
  }
  /// Integer labels are less than this, or -100; 0: they are not checked.
  virtual int64_t classes() const {
    return 0;
  }
  /// The images that the model takes; null: it takes none.
  virtual const PatchEmbeddingOptions* images() const {
    return nullptr;
  }
  /// Whether there are two views of each image: `pixel_values` and
  /// `second_pixel_values`.
  virtual bool takes_two_views() const {
    return false;
  }
  /// Whether answers are found in texts: outputs are logits of their starts and
  /// ends.
  virtual bool finds_answers() const {
    return false;
  }
  /// The meaning of the values of an input.
  virtual InputKind kind_of(const std::string& input) const {
    return kind_of_input(input);
  }

  /// @throws tessera::Error on files that the model cannot be trained on.
  virtual void check(const ColumnChecks& /*examples*/) const {}
  /// Adds inputs that follow from others, and changes types.
  virtual void complete(NamedTensors& /*batch*/) const {}
  /// Inputs besides those named after tokens that lose the columns where
  /// attention_mask is 0 in all rows.
  virtual std::vector<std::string> trimmed_with_tokens() const {
    return {};
  }
  /// Inputs that lose the columns after the last label of any row.
  virtual std::vector<std::string> trimmed_with_labels() const {
    return {};
  }
  /// Whether labels can be made by masking tokens (ExampleOptions::token_mask).
  virtual bool predicts_masked_tokens() const {
    return false;
  }
  /// What the model can be pretrained on, of documents of tokens; the first is
  /// the usual.
  virtual std::vector<ObjectiveKind> objectives() const {
    return {};
  }
  /// Whether it also learns how the two texts of a pair are related
  /// (`next_sentence_label`).
  virtual bool predicts_pairs() const {
    return false;
  }
  /// Adds random inputs that the file does not have.
  virtual void draw(
      NamedTensors& /*batch*/,
      const ExampleOptions& /*options*/,
      const BatchDraws& /*draws*/) const {}
  /// Whether anything in a batch has a label, so that there is a loss. By
  /// default, whether `labels`, if they are integers, are not all -100.
  virtual bool has_labels(const NamedTensors& batch) const;

  /// What the loss of a batch is the mean over, or, where the model's output
  /// has kSecondLoss, what both parts are; by default the labels of tokens that
  /// count, where labels() are such, else its rows.
  virtual LossCounts loss_counts(const ModelInput& batch) const;
  /// Whether loss_counts() of all batches with the same number of these
  /// examples are the same; by default, unless labels() are those of tokens.
  virtual bool has_equal_counts(const ColumnChecks& examples) const;

  /// What is measured besides the loss; no name: nothing.
  virtual Metric metric() const {
    return {};
  }
  /// Adds a scored batch to `sums`; by default its loss, weighted by its rows.
  virtual void add_score(const ScoredBatch& batch, ScoreSums& sums) const;

  /// Called before training. @param parallel outlives the training.
  virtual void begin_training(ParallelRun& /*parallel*/) {}
  /// Called after each optimizer step `step` of `steps`, counted from 1, that
  /// was not skipped. Collective.
  virtual void after_step(
      Engine& /*engine*/,
      int64_t /*step*/,
      int64_t /*steps*/) {}
  /// Called before the model is scored: batches may then differ in size between
  /// ranks.
  virtual void begin_scoring() {}
};

/// Those that are not -100; of undefined ones 0.
double count_labels(const at::Tensor& labels);

/// The tensor of that name; undefined if there is none.
at::Tensor find(const NamedTensors& batch, const std::string& name);

} // namespace tessera::zoo
