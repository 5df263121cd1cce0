// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PagedStorage` attaches memory to a StorageImpl and detaches it, while every
// tensor on that storage stays valid.

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::sharding {

class PageFaultHandler;

/// What operators need to know of the page that a storage belongs to.
struct PageInfo {
  PageFaultHandler* handler = nullptr; ///< pages it in
  int number = -1; ///< among the pages of the handler
  /// Mixed precision: the arguments of operators are cast to it. Nothing:
  /// they are left as they are.
  std::optional<at::ScalarType> compute_dtype;
};

/// Controls what a StorageImpl points to. Parameters, their views and
/// everything that autograd saved share the StorageImpl and follow.
///
/// While detached, every read of the data pointer throws an error that names
/// the parameter; sizes and nbytes do not change.
class PagedStorage {
 public:
  /// Takes the storage's memory away: it is detached from now on.
  /// @param page must outlive this object.
  /// @param begin first element of the storage in the page's flat buffer.
  PagedStorage(
      c10::Storage storage,
      const PageInfo& page,
      std::string parameter_name,
      int64_t begin);
  PagedStorage(const PagedStorage&) = delete;
  PagedStorage& operator=(const PagedStorage&) = delete;

  /// Returns the PagedStorage of `storage`, or null for an ordinary one. O(1),
  /// without a lock or a map: it is the context of the storage's DataPtr.
  static PagedStorage* of(const c10::StorageImpl* storage);

  /// Points the storage at `data`, which must stay valid until detach().
  void attach(void* data);

  /// Detaches the storage from its memory.
  void detach();

  /// Makes reads of the data pointer throw `message`, until allow_reads(). The
  /// storage keeps its memory.
  void forbid_reads(const std::string& message);
  void allow_reads();
  bool forbids_reads() const {
    return forbids_reads_;
  }

  /// Gives the storage memory of its own; this object no longer controls it.
  void restore(c10::DataPtr memory);

  const PageInfo& page() const {
    return page_;
  }
  const std::string& parameter_name() const {
    return parameter_name_;
  }
  int64_t begin() const {
    return begin_;
  }
  int64_t nbytes() const {
    return nbytes_;
  }
  const c10::StorageImpl* impl() const {
    return storage_.unsafeGetStorageImpl();
  }
  /// Returns whether the storage still points through this object, i.e. its
  /// DataPtr was not replaced by other code.
  bool is_intact() const;

 private:
  c10::Storage storage_;
  const PageInfo& page_;
  std::string parameter_name_;
  int64_t begin_;
  int64_t nbytes_;
  bool forbids_reads_ = false; ///< although it is attached
};

/// Makes every read of `storage`'s data pointer throw `message`.
void forbid_access(c10::StorageImpl& storage, const std::string& message);

/// Undoes forbid_access().
void allow_access(c10::StorageImpl& storage);

} // namespace tessera::sharding
