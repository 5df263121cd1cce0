// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DataSet` is numbered examples that are made into batches of a model's
// inputs.

#include "tessera/engine/trainer/training_task.h"
#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/heads/score.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::zoo {

/// The epoch number for examples that are scored: their random masks are the
/// same each time.
inline constexpr int64_t kScoredEpoch = -1;

/// Prompts whose generated texts are scored, too.
struct ScoredPrompts {
  std::vector<std::vector<int64_t>> prompts; ///< tokens; none is empty
  GenerateOptions options; ///< of one text for each
};

class DataSet {
 public:
  virtual ~DataSet() = default;

  /// The number of examples.
  virtual size_t size() const = 0;
  /// "1024 tokens in sequences of 16".
  virtual std::string text() const = 0;

  /// Makes a batch of the examples with these numbers, on the CPU, on any
  /// thread and several at once. Random choices depend only on the numbers of
  /// the example and the epoch, so they are the same under any layout of ranks.
  /// @param loss_only only the loss is used; see ModelInput.
  virtual ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const = 0;

  /// Whether Head::metric() is measured when these examples are scored; else
  /// the loss only.
  virtual bool measures_metric() const = 0;
  /// How many numbers per example report() is given in Score::outputs; 0: none.
  virtual int64_t outputs_per_example() const {
    return 0;
  }
  /// These of a batch: [rows, outputs_per_example()], or as many numbers.
  virtual at::Tensor outputs_of(
      const ModelInput& /*input*/,
      const ModelOutput& output) const {
    return output.logits;
  }
  /// Score::generated is made of them; null: nothing is.
  virtual const ScoredPrompts* prompts() const {
    return nullptr;
  }
  virtual TaskScore report(const Score& score) const = 0;

  /// Tokens of the data that are in no example, as they do not fill one.
  virtual int64_t left_out_tokens() const {
    return 0;
  }

  /// Whether every example has the same number of labels, in every batch and
  /// epoch, so that LossMean makes no difference.
  virtual bool has_equal_labels() const {
    return false;
  }
};

} // namespace tessera::zoo
