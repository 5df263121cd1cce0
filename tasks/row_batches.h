// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RowBatches` is a data set of examples in memory that become rows of tokens.

#include "tessera/zoo/data/data_set.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::tasks {

/// What DataSet asks of a kind of rows; the members are those of its functions.
struct RowTraits {
  bool measures_metric = true;
  int64_t outputs_per_example = 0;
  bool has_equal_labels = false;
};

/// The batches are the same in each epoch. They are on the CPU.
template <typename Example>
class RowBatches : public zoo::DataSet {
 public:
  size_t size() const override {
    return examples_.size();
  }
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t /*epoch*/,
      bool loss_only) const override {
    zoo::ModelInput batch = rows(examples);
    batch.loss_only = loss_only;
    return batch;
  }
  bool measures_metric() const override {
    return traits_.measures_metric;
  }
  int64_t outputs_per_example() const override {
    return traits_.outputs_per_example;
  }
  bool has_equal_labels() const override {
    return traits_.has_equal_labels;
  }

  const std::vector<Example>& examples() const {
    return examples_;
  }

 protected:
  RowBatches(std::vector<Example> examples, const RowTraits& traits)
      : examples_(std::move(examples)), traits_(traits) {}

  void add_example(Example example) {
    examples_.push_back(std::move(example));
  }
  /// A batch of the examples with these numbers.
  virtual zoo::ModelInput rows(const std::vector<size_t>& numbers) const = 0;

 private:
  std::vector<Example> examples_;
  RowTraits traits_;
};

} // namespace tessera::tasks
