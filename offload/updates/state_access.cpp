// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/state_access.h"

#include "tessera/offload/stores/tier_bytes.h"
#include "tessera/runtime/memory/tensor_bytes.h"

#include <utility>

namespace tessera::offload {

StateAccess::StateAccess(
    const UpdateSite& site,
    std::vector<std::string> names,
    int64_t numel,
    int64_t segments,
    StagingBuffers& staging,
    StreamedUpdate& streamed)
    : site_(site),
      names_(std::move(names)),
      numel_(numel),
      staging_(staging),
      streamed_(streamed) {
  staging_.need(staging_bytes());
  if (site_.streams()) {
    streamed_.need(streamed_bytes(), segments);
  }
}

void StateAccess::add_bytes(TierBytes& bytes) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    add_tier_bytes(
        bytes,
        site_.tiers().state,
        MemoryPurpose::kOptimizerState,
        numel_,
        site_.types().moment);
  }
}

int64_t StateAccess::staging_bytes() const {
  const int64_t each =
      site_.tiers().state == MemoryTier::kNvme
          ? StagingBuffers::Buffer::bytes_for(numel_, site_.types().moment)
          : 0;
  return site_.staging_bytes() + each * static_cast<int64_t>(names_.size());
}

/// The bytes that are copied to the device and back.
int64_t StateAccess::streamed_bytes() const {
  const int64_t each = runtime::bytes_of(numel_, site_.types().moment);
  return each * static_cast<int64_t>(names_.size()) +
         (site_.streams_master()
              ? runtime::bytes_of(site_.shard().numel, site_.types().master)
              : 0);
}

void StateAccess::allocate(
    ShardAccess& shards,
    runtime::ShardStore* store,
    MemoryLedger& ledger) {
  shards_ = &shards;
  constexpr auto kPurpose = MemoryPurpose::kOptimizerState;
  const at::ScalarType dtype = site_.types().moment;
  for (const std::string& name : names_) {
    if (store == nullptr) {
      stored_.emplace_back(
          ledger.allocate_zeros(kPurpose, numel_, dtype, site_.device()));
    } else {
      stored_.emplace_back(store->reserve(
          name + " of '" + site_.shard().page + "'", kPurpose, numel_, dtype));
    }
  }
  open_.resize(stored_.size());
}

/// Makes the next user of the state wait until it is copied back: by note_use()
/// if it rests in memory; what is written to a file must be complete.
void StateAccess::end_streaming() const {
  std::vector<runtime::RestingTensor> all = stored_;
  if (site_.streams_master()) {
    all.push_back(shards_->master());
  }
  for (const runtime::RestingTensor& tensor : all) {
    if (tensor.in_memory()) {
      streamed_.note_use(tensor);
    } else {
      streamed_.wait();
    }
  }
}

void StateAccess::begin_fetch() {
  if (is_fetched_) {
    return;
  }
  is_fetched_ = true;
  if (const int64_t bytes = staging_bytes(); bytes > 0) {
    buffer_ = staging_.take(bytes);
  }
  shards_->begin_fetch(buffer_.get());
  for (size_t i = 0; i < stored_.size(); ++i) {
    const runtime::RestingTensor& stored = stored_[i];
    if (stored.in_memory()) {
      open_[i] = site_.streams() ? streamed_.open(stored) : stored.tensor();
    } else {
      open_[i] = buffer_->place(stored.numel(), stored.dtype());
      arriving_.push_back(stored.read(open_[i]));
    }
  }
}

void StateAccess::begin_fetch(const runtime::RestingTensor& gradient) {
  begin_fetch();
  shards_->begin_gradient(gradient, buffer_.get());
}

ShardTensors StateAccess::open(const runtime::RestingTensor& gradient) {
  begin_fetch(gradient);
  return open();
}

ShardTensors StateAccess::open() {
  begin_fetch();
  ShardTensors tensors = shards_->tensors();
  runtime::wait_all(arriving_);
  tensors.state = open_;
  return tensors;
}

void StateAccess::close(
    const std::vector<runtime::FlatSpan>& written,
    bool writes_state) {
  if (site_.streams()) {
    end_streaming();
  }
  std::vector<runtime::PendingTransfer> leaving =
      shards_->begin_return(written);
  for (size_t i = 0; i < stored_.size(); ++i) {
    if (writes_state && !stored_[i].in_memory()) {
      leaving.push_back(stored_[i].write(open_[i]));
    }
  }
  give_back(std::move(leaving));
}

void StateAccess::discard(std::vector<runtime::PendingTransfer> leaving) {
  shards_->forget();
  runtime::wait_all(arriving_);
  give_back(std::move(leaving));
}

void StateAccess::give_back(std::vector<runtime::PendingTransfer> leaving) {
  for (at::Tensor& state : open_) {
    state = at::Tensor();
  }
  if (buffer_ != nullptr) {
    staging_.give_back(std::move(buffer_), std::move(leaving));
  }
  is_fetched_ = false;
}

std::vector<runtime::FlatSpan> StateUpdate::written() const {
  std::vector<runtime::FlatSpan> written;
  for (const SpanUpdate& span : spans) {
    written.push_back({span.shard_offset, span.numel});
  }
  return written;
}

} // namespace tessera::offload
