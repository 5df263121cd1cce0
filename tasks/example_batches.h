// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExampleBatches` makes batches of any model's inputs from examples in files.

#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/inputs/example_files.h"
#include "tessera/zoo/inputs/example_options.h"

#include <c10/core/Device.h>

namespace tessera::tasks {

/// Copies rows of files, widens their numbers, and adds what the head derives
/// or draws: labels of language models, masks of tokens and patches.
class ExampleBatches : public zoo::DataSet {
 public:
  /// @param head outlives this.
  /// @param architecture of the model, for messages.
  /// @param measures_metric see DataSet.
  /// @throws tessera::Error as Head::check().
  ExampleBatches(
      zoo::ExampleFiles files,
      const zoo::Head& head,
      std::string architecture,
      zoo::ExampleOptions options,
      bool measures_metric,
      c10::Device device);

  size_t size() const override {
    return files_.size();
  }
  std::string text() const override;
  /// @throws tessera::Error naming the file and the tensor if token ids are
  ///     outside of the vocabulary or token labels outside of the classes; if
  ///     no example of a training batch has a label.
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  /// Reads the labels of classes.
  bool has_equal_labels() const override;
  bool measures_metric() const override {
    return measures_metric_;
  }
  TaskScore report(const zoo::Score& score) const override;

 private:
  zoo::NamedTensors read(const std::vector<size_t>& examples) const;
  void check_values(const zoo::NamedTensors& batch) const;
  void trim(zoo::NamedTensors& batch) const;

  zoo::ExampleFiles files_;
  const zoo::Head& head_;
  zoo::ExampleOptions options_;
  bool measures_metric_;
  c10::Device device_;
};

} // namespace tessera::tasks
