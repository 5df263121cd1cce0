// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SampleOrder` says which samples are in each batch of each rank.

#include "tessera/engine/data/epoch_batches.h"
#include "tessera/engine/parallel/parallel_run.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera {

/// The samples of one batch on this rank.
struct SampleBatch {
  int64_t number = 0; ///< from the start of the first epoch
  int64_t epoch = 0;
  std::vector<size_t> samples;
};

/// The samples of each epoch in an order of its own, a function of seed and
/// epoch alone. Successive batches of all ranks together take the next ones;
/// those that do not fill a last optimizer step are skipped in this epoch, so
/// that the stream of samples is the same for any number of ranks, batch size
/// and number of micro-batches whose product is the same. May be used from
/// several threads at once.
class SampleOrder {
 public:
  /// @param samples of the data.
  /// @param batch_size samples in one batch of one rank.
  /// @param share which of the batches at a time this rank has; see
  ///     ParallelRun::batches().
  /// @param seed the same on all ranks.
  /// @param micro_batches of one optimizer step. Where an epoch has fewer
  ///     samples than one step, steps have samples of several.
  /// @throws tessera::Error if the samples do not fill one batch on each rank.
  SampleOrder(
      size_t samples,
      int64_t batch_size,
      const BatchShare& share,
      uint64_t seed,
      int64_t micro_batches = 1);

  int64_t batches_per_epoch() const {
    return batches_.per_epoch();
  }
  int64_t batch_size() const {
    return batch_size_;
  }
  size_t samples() const {
    return samples_;
  }
  uint64_t seed() const {
    return seed_;
  }

  /// The batches of all ranks, none of which begins elsewhere.
  const EpochBatches& batches() const {
    return batches_;
  }

  SampleBatch batch(int64_t number) const {
    return batch(number, batches_);
  }
  /// @param batches a copy of batches(), which may begin elsewhere.
  SampleBatch batch(int64_t number, const EpochBatches& batches) const;

 private:
  using Order = std::vector<size_t>;

  std::shared_ptr<const Order> order_of(int64_t epoch) const;

  size_t samples_;
  int64_t batch_size_;
  BatchShare share_;
  uint64_t seed_;
  EpochBatches batches_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const Order>> orders_;
};

} // namespace tessera
