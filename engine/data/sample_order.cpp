// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/data/sample_order.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace tessera {

namespace {

/// Batches of all ranks; of those that fill a step of `micro_batches`, if any.
int64_t batches_in(
    size_t samples,
    int64_t batch_samples,
    int64_t micro_batches) {
  const int64_t batches = static_cast<int64_t>(samples) / batch_samples;
  return batches < micro_batches ? batches : batches - batches % micro_batches;
}

const BatchShare& checked(
    int64_t batch_size,
    const BatchShare& share,
    int64_t micro_batches) {
  TESSERA_CHECK(
      batch_size > 0 && micro_batches > 0,
      "SampleOrder: batch_size is {} and micro_batches {}; both must be at least 1.",
      batch_size,
      micro_batches);
  TESSERA_CHECK(
      share.index >= 0 && share.index < share.count,
      "SampleOrder: the share {} of {} does not exist; shares are numbered from 0.",
      share.index,
      share.count);
  return share;
}

} // namespace

SampleOrder::SampleOrder(
    size_t samples,
    int64_t batch_size,
    const BatchShare& share,
    uint64_t seed,
    int64_t micro_batches)
    : samples_(samples),
      batch_size_(batch_size),
      share_(checked(batch_size, share, micro_batches)),
      seed_(seed),
      batches_(
          static_cast<int64_t>(samples),
          batch_size * share.count,
          batches_in(samples, batch_size * share.count, micro_batches),
          micro_batches) {
  TESSERA_CHECK(
      batches_per_epoch() > 0,
      "SampleOrder: {} cannot fill one batch of {} on each of {}. Lower batch_size (of a configuration: training.batch_size) or provide more data.",
      runtime::count_text(static_cast<int64_t>(samples_), "example"),
      batch_size_,
      runtime::count_text(share_.count, "rank"));
}

std::shared_ptr<const SampleOrder::Order> SampleOrder::order_of(
    int64_t epoch) const {
  constexpr size_t kKeptOrders = 2; // one that ends and the next
  const std::lock_guard lock(mutex_);
  auto& found = orders_[epoch];
  if (!found) {
    Order order(samples_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937_64 generator(seed_ + static_cast<uint64_t>(epoch));
    // Fisher-Yates by hand: std::shuffle differs between standard libraries.
    for (size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[generator() % (i + 1)]);
    }
    found = std::make_shared<const Order>(std::move(order));
  }
  const std::shared_ptr<const Order> result = found;
  while (orders_.size() > kKeptOrders) {
    orders_.erase(
        orders_.begin()->first == epoch ? std::prev(orders_.end())
                                        : orders_.begin());
  }
  return result;
}

SampleBatch SampleOrder::batch(int64_t number, const EpochBatches& batches)
    const {
  const SamplePosition begin = batches.position_of(number);
  const auto order = order_of(begin.epoch);
  const auto first =
      order->begin() + begin.samples + share_.index * batch_size_;
  return {number, begin.epoch, {first, first + batch_size_}};
}

} // namespace tessera
