// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextBatches` makes batches of labeled texts, each padded to its longest row.

#include "tessera/zoo/tasks/data_set.h"
#include "tessera/zoo/tasks/text_classification_data.h"
#include "tessera/zoo/tokenizer/tokenizer.h"

#include <c10/core/Device.h>

#include <memory>

namespace tessera::zoo {

/// A batch of texts, padded to the longest one, on `device`.
/// @param multiple_of the length is rounded up to a multiple of this.
ModelInput padded_input(
    const Tokenizer& tokenizer,
    const std::vector<Encoding>& texts,
    int64_t multiple_of,
    c10::Device device);

/// Texts with classes or, if `classes` is 0, numbers.
class TextBatches : public DataSet {
 public:
  TextBatches(
      std::shared_ptr<const Tokenizer> tokenizer,
      std::vector<LabelledEncoding> examples,
      size_t classes,
      int64_t sequence_multiple,
      c10::Device device);

  size_t size() const override {
    return examples_.size();
  }
  std::string text() const override;
  ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  bool measures_metric() const override {
    return true;
  }
  TaskScore report(const Score& score) const override;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<LabelledEncoding> examples_;
  size_t classes_;
  int64_t sequence_multiple_;
  c10::Device device_;
};

} // namespace tessera::zoo
