// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/data/sample_order.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace tessera {

SampleOrder::SampleOrder(
    size_t samples,
    int64_t batch_size,
    const BatchShare& share,
    uint64_t seed,
    int64_t micro_batches)
    : samples_(samples),
      batch_size_(batch_size),
      share_(share),
      seed_(seed),
      micro_batches_(micro_batches) {
  TESSERA_CHECK(
      batch_size > 0 && micro_batches > 0 && share.count > 0 &&
          share.index >= 0 && share.index < share.count,
      "SampleOrder: {} batches of {} samples, the share {} of {}; sizes are at least 1, and a share is less than their number",
      micro_batches,
      batch_size,
      share.index,
      share.count);
  TESSERA_CHECK(
      batches_per_epoch() > 0,
      "training data: {} examples do not fill one batch of {} on each of {} ranks. Lower training.batch_size or provide more data.",
      samples_,
      batch_size_,
      share_.count);
}

int64_t SampleOrder::batches_per_epoch() const {
  const int64_t batches = static_cast<int64_t>(samples_) / global_batch_size();
  return batches < micro_batches_ ? batches
                                  : batches - batches % micro_batches_;
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

SampleBatch SampleOrder::batch(int64_t number) const {
  const int64_t epoch = number / batches_per_epoch();
  const int64_t index = number % batches_per_epoch();
  const auto order = order_of(epoch);
  const auto first =
      order->begin() + (index * share_.count + share_.index) * batch_size_;
  return {number, epoch, {first, first + batch_size_}};
}

SamplePosition SampleOrder::position_of(int64_t number) const {
  return {
      number / batches_per_epoch(),
      number % batches_per_epoch() * global_batch_size()};
}

int64_t SampleOrder::number_at(const SamplePosition& position) const {
  // The rest of an epoch that does not fill a batch is left for the next one.
  return position.epoch * batches_per_epoch() +
         std::min(position.samples / global_batch_size(), batches_per_epoch());
}

} // namespace tessera
