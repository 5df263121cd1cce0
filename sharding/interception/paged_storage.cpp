// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/paged_storage.h"

#include <utility>

namespace tessera::sharding {

namespace {

// [Note: access flag] StorageImpl can throw when its data pointer is read, but
// the only public function for that also drops the data. The flag is private;
// it is accessed by explicit instantiation of a template, which may name
// private members.
template <auto Flag, auto Refresh>
struct AccessFlag {
  friend void set_access_flag(c10::StorageImpl& storage, bool forbidden) {
    storage.*Flag = forbidden;
    (storage.*Refresh)();
  }
};
void set_access_flag(c10::StorageImpl& storage, bool forbidden);
template struct AccessFlag<
    &c10::StorageImpl::throw_on_immutable_data_ptr_,
    &c10::StorageImpl::refresh_has_data_ptr_check>;

// Marks a DataPtr as that of a PagedStorage; there is nothing to free.
void paged_storage_deleter(void* /*context*/) {}

c10::DataPtr make_data_ptr(void* data, PagedStorage* page, c10::Device device) {
  return {data, page, &paged_storage_deleter, device};
}

} // namespace

void forbid_access(c10::StorageImpl& storage, const std::string& message) {
  storage.get_extra_meta().custom_data_ptr_error_msg_ = message;
  set_access_flag(storage, true);
}

void allow_access(c10::StorageImpl& storage) {
  set_access_flag(storage, false);
}

PagedStorage::PagedStorage(
    c10::Storage storage,
    const PageInfo& page,
    std::string parameter_name,
    int64_t begin)
    : storage_(std::move(storage)),
      page_(page),
      parameter_name_(std::move(parameter_name)),
      begin_(begin),
      nbytes_(static_cast<int64_t>(storage_.nbytes())) {
  forbid_access(
      *storage_.unsafeGetStorageImpl(),
      "parameter '" + parameter_name_ +
          "' is sharded: its values are not on this rank now. Read or save it "
          "inside an engine.gather() scope, or through "
          "engine.for_each_parameter() (Python: engine.state_dict()).");
  detach();
}

PagedStorage* PagedStorage::of(const c10::StorageImpl* storage) {
  // The checked accessor would throw for a detached storage.
  const c10::DataPtr& data =
      const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &paged_storage_deleter
             ? static_cast<PagedStorage*>(data.get_context())
             : nullptr;
}

void PagedStorage::attach(void* data) {
  c10::StorageImpl& impl = *storage_.unsafeGetStorageImpl();
  set_access_flag(impl, false);
  impl.set_data_ptr_noswap(make_data_ptr(data, this, impl.device()));
}

void PagedStorage::detach() {
  c10::StorageImpl& impl = *storage_.unsafeGetStorageImpl();
  const c10::Device device = impl._mutable_data_ptr_no_checks().device();
  impl.set_data_ptr_noswap(make_data_ptr(nullptr, this, device));
  set_access_flag(impl, true);
}

void PagedStorage::forbid_reads(const std::string& message) {
  forbid_access(*storage_.unsafeGetStorageImpl(), message);
  forbids_reads_ = true;
}

void PagedStorage::allow_reads() {
  allow_access(*storage_.unsafeGetStorageImpl());
  forbids_reads_ = false;
}

void PagedStorage::restore(c10::DataPtr memory) {
  c10::StorageImpl& impl = *storage_.unsafeGetStorageImpl();
  set_access_flag(impl, false);
  impl.set_data_ptr_noswap(std::move(memory));
}

bool PagedStorage::is_intact() const {
  return of(storage_.unsafeGetStorageImpl()) == this;
}

} // namespace tessera::sharding
