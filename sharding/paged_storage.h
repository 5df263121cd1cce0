// SPDX-License-Identifier: Apache-2.0
#pragma once
// One StorageImpl whose memory comes and goes while every tensor over it stays.

#include <c10/core/Storage.h>

#include <cstdint>
#include <string>

namespace tessera {

class ParamGroup;

/// Takes over what a StorageImpl points to. Parameters, their views and
/// everything autograd saved share the StorageImpl and follow.
///
/// While detached, every read of the data pointer throws with the name of the
/// parameter; sizes and nbytes stay as they were.
class PagedStorage {
 public:
  /// Moves the storage's memory out: detached from now on.
  /// @param group owns this object and outlives it.
  /// @param begin first element of the storage in the group's flat buffer.
  PagedStorage(
      c10::Storage storage,
      ParamGroup& group,
      std::string parameter_name,
      int64_t begin);
  PagedStorage(const PagedStorage&) = delete;
  PagedStorage& operator=(const PagedStorage&) = delete;

  /// The PagedStorage behind `storage`, or null for an ordinary one.
  /// O(1), no lock, no map: it hangs on the storage's own DataPtr.
  static PagedStorage* of(const c10::StorageImpl* storage);

  /// Points the storage at `data`, which must stay valid until detach().
  void attach(void* data);

  /// Points the storage at nothing.
  void detach();

  /// Gives the storage memory of its own; this object no longer governs it.
  void restore(c10::DataPtr memory);

  ParamGroup& group() const {
    return group_;
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
  /// True while this object, and nothing put there behind the engine's back,
  /// is what the storage points through.
  bool is_intact() const;

 private:
  c10::Storage storage_;
  ParamGroup& group_;
  std::string parameter_name_;
  int64_t begin_;
  int64_t nbytes_;
};

/// Makes every read of `storage`'s data pointer throw `message`.
void forbid_access(c10::StorageImpl& storage, const std::string& message);

/// Undoes forbid_access().
void allow_access(c10::StorageImpl& storage);

} // namespace tessera
