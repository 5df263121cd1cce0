// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PackedBatches` cuts documents of tokens, one after the other, into sequences
// of equal length.

#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/data/packed_samples.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::zoo {

struct PackedOptions {
  int64_t length = 0; ///< tokens of a sequence
  /// See TokenDataOptions. The batches then have document_ids and position_ids.
  bool separate_documents = false;
  uint64_t seed = 0; ///< of the orders of sources that are blended
};

/// The sequences of PackedSamples, neighbors of which share a token, so that
/// each token but the first of the epoch is predicted once.
class PackedBatches : public DataSet {
 public:
  /// @throws tessera::Error as PackedSamples.
  PackedBatches(
      std::vector<std::shared_ptr<const DocumentStream>> sources,
      const std::vector<double>& weights,
      const PackedOptions& options,
      c10::Device device);

  size_t size() const override {
    return samples_.size();
  }
  std::string text() const override {
    return samples_.text();
  }
  ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  int64_t left_out_tokens() const override {
    return samples_.left_out_tokens();
  }
  bool has_equal_labels() const override {
    return !options_.separate_documents;
  }
  bool measures_metric() const override {
    return false;
  }
  TaskScore report(const Score& score) const override;

  PackedSamples::Sample sample(size_t example, int64_t epoch) const {
    return samples_.sample(example, epoch);
  }

 private:
  PackedSamples samples_;
  PackedOptions options_;
  c10::Device device_;
};

} // namespace tessera::zoo
