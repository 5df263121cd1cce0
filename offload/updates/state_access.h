// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StateAccess` keeps an optimizer's state of one page where it rests, and
// gives an update all tensors that it needs: state, weights and gradients.

#include "tessera/offload/updates/shard_access.h"
#include "tessera/offload/updates/shard_tensors.h"
#include "tessera/offload/updates/staging_buffers.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/offload/updates/update_site.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/pending_transfer.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/memory/shard_store.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::offload {

/// Flat tensors of one size, on one tier. Up to allocate(), a plan of them.
/// The functions below allocate() may be called on any thread, but on one at a
/// time over all objects with the same buffers.
class StateAccess {
 public:
  /// Tells the buffers what will pass through them. All must outlive this
  /// object.
  /// @param names of the state tensors.
  /// @param numel of each.
  /// @param segments the number of runs in one update.
  StateAccess(
      const UpdateSite& site,
      std::vector<std::string> names,
      int64_t numel,
      int64_t segments,
      StagingBuffers& staging,
      StreamedUpdate& streamed);
  StateAccess(const StateAccess&) = delete;
  StateAccess& operator=(const StateAccess&) = delete;

  const UpdateSite& site() const {
    return site_;
  }
  const std::vector<std::string>& names() const {
    return names_;
  }
  int64_t numel() const {
    return numel_;
  }
  StreamedUpdate& streamed() const {
    return streamed_;
  }
  /// Adds what the state takes of its tier.
  void add_bytes(TierBytes& bytes) const;
  /// The bytes of a staging buffer that an update takes.
  int64_t staging_bytes() const;

  /// @param shards of the page; must outlive this object.
  /// @param store of the page's state; null: it is on the site's device.
  void allocate(
      ShardAccess& shards,
      runtime::ShardStore* store,
      MemoryLedger& ledger);

  ShardAccess& shards() const {
    return *shards_;
  }
  /// The state where it rests, in the order of the names. Between two updates
  /// it may be exchanged for tensors on the same tier.
  std::vector<runtime::RestingTensor>& stored() {
    return stored_;
  }
  bool is_fetched() const {
    return is_fetched_;
  }

  /// Begins to fetch the tensors, except the gradient, unless that has begun.
  void begin_fetch();
  /// The same including the gradient.
  /// @param gradient its shard, as it is reduced.
  void begin_fetch(const runtime::RestingTensor& gradient);
  /// Completes the fetch and returns the tensors. Blocks until they have
  /// arrived.
  ShardTensors open(const runtime::RestingTensor& gradient);
  /// As above, without the gradient.
  ShardTensors open();
  /// Copies what was written back to where it rests, in the background.
  /// @param written the stretches of the shard that were written.
  void close(const std::vector<runtime::FlatSpan>& written, bool writes_state);
  /// Ends the access without copying back.
  /// @param leaving transfers that still use the staging buffer.
  void discard(std::vector<runtime::PendingTransfer> leaving = {});

 private:
  int64_t streamed_bytes() const;
  void end_streaming() const;
  void give_back(std::vector<runtime::PendingTransfer> leaving);

  const UpdateSite& site_;
  std::vector<std::string> names_;
  int64_t numel_;
  StagingBuffers& staging_;
  StreamedUpdate& streamed_;
  ShardAccess* shards_ = nullptr; ///< from allocate() on
  std::vector<runtime::RestingTensor> stored_;
  std::vector<at::Tensor> open_; ///< the state while an update uses it
  bool is_fetched_ = false; ///< being fetched, or complete
  std::shared_ptr<StagingBuffers::Buffer> buffer_;
  std::vector<runtime::PendingTransfer> arriving_;
};

/// Updates the tensors of a page.
/// @param before null: they are updated in place; else see update_segments_().
using UpdateFunction = std::function<
    void(const ShardTensors& tensors, const ShardTensors* before)>;

/// The complete description of an update: later changes of parameters, rates
/// and flags do not affect it, so that any thread can run it.
struct StateUpdate {
  size_t page = 0; ///< its number
  StateAccess* state = nullptr;
  std::vector<SpanUpdate> spans;
  runtime::RestingTensor gradient; ///< as for StateAccess::open()
  UpdateFunction run;

  /// The stretches of the shard that it writes.
  std::vector<runtime::FlatSpan> written() const;
};

} // namespace tessera::offload
