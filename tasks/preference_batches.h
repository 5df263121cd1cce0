// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceBatches` makes batches of pairs of answers for `PreferenceLoss`.

#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/zoo/data/data_set.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// [Note: batches of pairs] The texts of P pairs, chosen and rejected by turns,
/// have the numbers 0 to 2 P - 1. Each is a row, or, packed, a document in a
/// row of several whole pairs. For T learned tokens, ModelInput::others has
///
/// - kPlaces [T] int64: the position, counted over all rows, whose logits
///   predict the token,
/// - kTokens [T] int64: the token,
/// - kSlots [T] int64: its place in kTable,
/// - kTable [2 P, most learned tokens of a text] float32: zeros,
/// - kLengths [2 P] int64: learned tokens of each text.
struct PairInputs {
  static constexpr const char* kPlaces = "pair_places";
  static constexpr const char* kTokens = "pair_tokens";
  static constexpr const char* kSlots = "pair_slots";
  static constexpr const char* kTable = "pair_table";
  static constexpr const char* kLengths = "pair_lengths";
};

/// The numbers of a scored pair, in the order of DataSet::outputs_of().
enum class PairOutput { kLoss, kChosen, kRejected };
inline constexpr int64_t kPairOutputs = 3;

/// Packed sequences are the same in each epoch; an example is one of them. Not
/// packed, an example is a pair.
class PreferenceBatches : public zoo::DataSet {
 public:
  PreferenceBatches(
      std::vector<PreferencePair> pairs,
      const SupervisedInputs& inputs,
      uint64_t seed);

  size_t size() const override {
    return sequences_.size();
  }
  std::string text() const override;
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  /// Of pairs that are not packed.
  bool measures_metric() const override {
    return !inputs_.is_packed;
  }
  int64_t outputs_per_example() const override {
    return kPairOutputs;
  }
  TaskScore report(const zoo::Score& score) const override;
  /// Of pairs that are not packed.
  bool has_equal_labels() const override {
    return !inputs_.is_packed;
  }

 private:
  std::vector<PreferencePair> pairs_;
  SupervisedInputs inputs_;
  std::vector<std::vector<size_t>> sequences_; ///< pairs of each
};

} // namespace tessera::tasks
