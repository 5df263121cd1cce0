// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DocumentStream` is documents of tokens one after the other, in an order of
// their own in each epoch.

#include "tessera/zoo/data/token_documents.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace tessera::zoo {

/// May be read from several threads at once. The orders of the epochs that were
/// read last are kept: 16 bytes per document.
class DocumentStream {
 public:
  /// @param documents those that are read, by number.
  /// @param key of the orders; see also kFileOrder.
  DocumentStream(
      std::shared_ptr<const TokenDocuments> data,
      std::vector<int64_t> documents,
      uint64_t key);

  /// The epoch whose order is that of the file.
  static constexpr int64_t kFileOrder = -1;

  int64_t tokens() const {
    return tokens_;
  }
  int64_t documents() const {
    return static_cast<int64_t>(documents_.size());
  }
  const TokenDocuments& data() const {
    return *data_;
  }

  /// Tokens [begin, begin + tokens.size()) of an epoch.
  /// @param starts gets the places among them where a document begins, but for
  ///     the first token.
  void read(
      int64_t epoch,
      int64_t begin,
      std::span<int64_t> tokens,
      std::vector<int64_t>& starts) const;

 private:
  struct Order {
    std::vector<int64_t> documents;
    std::vector<int64_t> ends; ///< of them, in tokens of the epoch
  };
  std::shared_ptr<const Order> order_of(int64_t epoch) const;
  Order made_order(int64_t epoch) const;

  std::shared_ptr<const TokenDocuments> data_;
  std::vector<int64_t> documents_;
  uint64_t key_;
  int64_t tokens_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const Order>> orders_;
};

} // namespace tessera::zoo
