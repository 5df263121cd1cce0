// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PackedBatches` cuts documents of tokens, one after the other, into sequences
// of equal length.

#include "tessera/zoo/data/document_stream.h"
#include "tessera/zoo/data/random_order.h"
#include "tessera/zoo/tasks/data_set.h"

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

/// Sequence i of an epoch has tokens [i * (length - 1), i * (length - 1) +
/// length) of its source: neighbors share a token, so that each token but the
/// first of the epoch is predicted once. Documents are in another order in each
/// epoch, and in that of the file where they are scored. Tokens that do not
/// fill the last sequence are left out.
///
/// With weights, the samples of an epoch are divided among the sources in
/// proportion to them. A source goes on in the next epoch where it ended, and
/// begins again, in another order, when it is at its end. Everything is a
/// function of seeds, epoch and example.
class PackedBatches : public DataSet {
 public:
  /// @param weights of the sources; empty: all samples of each, which are
  ///     numbered in their order.
  /// @throws tessera::Error naming a source that has less than one sequence, or
  ///     whose weight gives it none.
  PackedBatches(
      std::vector<std::shared_ptr<const DocumentStream>> sources,
      const std::vector<double>& weights,
      const PackedOptions& options,
      c10::Device device);

  size_t size() const override;
  std::string text() const override;
  ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  bool measures_metric() const override {
    return false;
  }
  TaskScore report(const Score& score) const override;

  /// A sample of a source.
  struct Sample {
    size_t source = 0;
    int64_t epoch = 0; ///< of the source
    int64_t index = 0; ///< in it
  };
  Sample sample(size_t example, int64_t epoch) const;

 private:
  struct Source {
    std::shared_ptr<const DocumentStream> stream;
    int64_t samples = 0; ///< in one epoch of its own
    int64_t share = 0; ///< in one epoch of all
    int64_t begin = 0; ///< of its share among the examples of an epoch
  };
  int64_t samples_of(const DocumentStream& stream) const;
  void set_shares(const std::vector<double>& weights);

  std::vector<Source> sources_;
  PackedOptions options_;
  c10::Device device_;
  int64_t size_ = 0;
  bool is_blend_;
};

} // namespace tessera::zoo
