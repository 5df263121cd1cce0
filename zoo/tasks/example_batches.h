// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExampleBatches` makes batches of any model's inputs from examples in files.

#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/inputs/example_files.h"
#include "tessera/zoo/inputs/example_options.h"

#include <c10/core/Device.h>

namespace tessera::zoo {

/// Copies rows of files, widens their numbers, and adds what the head derives
/// or draws: labels of language models, masks of tokens and patches.
class ExampleBatches : public DataSet {
 public:
  /// @param head outlives this.
  /// @param architecture of the model, for messages.
  /// @param measures_metric see DataSet.
  /// @throws tessera::Error as Head::check().
  ExampleBatches(
      ExampleFiles files,
      const Head& head,
      std::string architecture,
      ExampleOptions options,
      bool measures_metric,
      c10::Device device);

  size_t size() const override {
    return files_.size();
  }
  std::string text() const override;
  /// @throws tessera::Error naming the file and the tensor if token ids are
  ///     outside of the vocabulary or token labels outside of the classes; if
  ///     no example of a training batch has a label.
  ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  bool measures_metric() const override {
    return measures_metric_;
  }
  TaskScore report(const Score& score) const override;

 private:
  NamedTensors read(const std::vector<size_t>& examples) const;
  void check_values(const NamedTensors& batch) const;
  void trim(NamedTensors& batch) const;

  ExampleFiles files_;
  const Head& head_;
  ExampleOptions options_;
  bool measures_metric_;
  c10::Device device_;
};

} // namespace tessera::zoo
