// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/document_stream.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/data/random_order.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {

DocumentStream::DocumentStream(
    std::shared_ptr<const TokenDocuments> data,
    std::vector<int64_t> documents,
    uint64_t key)
    : data_(std::move(data)), documents_(std::move(documents)), key_(key) {
  for (const int64_t document : documents_) {
    tokens_ += data_->length(document);
  }
}

DocumentStream::Order DocumentStream::made_order(int64_t epoch) const {
  Order order;
  order.documents.reserve(documents_.size());
  order.ends.reserve(documents_.size());
  const RandomOrder random(
      documents(), runtime::split_mix(key_ + static_cast<uint64_t>(epoch)));
  int64_t end = 0;
  for (int64_t i = 0; i < documents(); ++i) {
    const int64_t number = epoch == kFileOrder ? i : random[i];
    const int64_t document = documents_[static_cast<size_t>(number)];
    end += data_->length(document);
    order.documents.push_back(document);
    order.ends.push_back(end);
  }
  return order;
}

std::shared_ptr<const DocumentStream::Order> DocumentStream::order_of(
    int64_t epoch) const {
  // A source that is much repeated has samples of many epochs in each of the
  // run's.
  constexpr size_t kKeptDocuments = 1 << 22;
  constexpr size_t kLeastOrders = 3;
  const std::lock_guard lock(mutex_);
  auto& order = orders_[epoch];
  if (!order) {
    order = std::make_shared<const Order>(made_order(epoch));
  }
  std::shared_ptr<const Order> found = order;
  const size_t most = std::max(
      kLeastOrders, kKeptDocuments / std::max<size_t>(1, documents_.size()));
  while (orders_.size() > most) {
    // The farthest one.
    const auto first = orders_.begin();
    const auto last = std::prev(orders_.end());
    orders_.erase(epoch - first->first >= last->first - epoch ? first : last);
  }
  return found;
}

void DocumentStream::read(
    int64_t epoch,
    int64_t begin,
    std::span<int64_t> tokens,
    std::vector<int64_t>& starts) const {
  const auto count = static_cast<int64_t>(tokens.size());
  TESSERA_CHECK(
      begin >= 0 && count <= tokens_ - begin,
      "{} tokens from {} are not among the {} of '{}'",
      count,
      begin,
      tokens_,
      data_->file().path().string());
  const auto order = order_of(epoch);
  starts.clear();
  const auto& ends = order->ends;
  auto at = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
  for (int64_t done = 0; done < count; ++at) {
    const auto i = static_cast<size_t>(at);
    const int64_t document = order->documents[i];
    const int64_t from = begin + done - (ends[i] - data_->length(document));
    const int64_t part = std::min(count - done, ends[i] - begin - done);
    if (part == 0) {
      continue; // an empty document
    }
    if (done > 0) {
      starts.push_back(done);
    }
    data_->read_into(
        document,
        from,
        tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(part)));
    done += part;
  }
}

} // namespace tessera::zoo
