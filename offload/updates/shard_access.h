// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardAccess` gives an update the weights and gradients of one page, on
// whichever tiers they rest.

#include "tessera/offload/updates/shard_tensors.h"
#include "tessera/offload/updates/staging_buffers.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/offload/updates/update_site.h"
#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/runtime/memory/pending_transfer.h"
#include "tessera/runtime/memory/resting_tensor.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::offload {

/// A page's shards where they rest. What is referred to outlives it.
struct RestingShards {
  const runtime::RestingTensor& weights;
  /// Null: the weights are the master.
  runtime::RestingTensor* separate_master;
  /// Where in the shard its parameters are.
  const std::vector<runtime::FlatSegment>& segments;
};

/// Master weights may be the page's own or not exist (each update then widens
/// the shard and rounds it back), and each of weights, gradients and master
/// weights may be on another tier. What cannot be used where it rests passes
/// through a buffer of the StagingBuffers. If the device updates, master
/// weights that rest elsewhere are given in host memory.
class ShardAccess {
 public:
  /// All must outlive this object.
  ShardAccess(
      const UpdateSite& site,
      const RestingShards& shards,
      const StreamedUpdate& streamed)
      : site_(site), shards_(shards), streamed_(streamed) {}

  const RestingShards& shards() const {
    return shards_;
  }
  const runtime::RestingTensor& weights() const {
    return shards_.weights;
  }
  /// The weights that updates change.
  const runtime::RestingTensor& master() const {
    return shards_.separate_master != nullptr ? *shards_.separate_master
                                              : shards_.weights;
  }
  /// Exchanges the page's own master weights for `master`, which must rest on
  /// the same tier.
  void swap_separate_master(runtime::RestingTensor& master) const;

  /// Begins to fetch what is not on the site's device, except the gradient.
  /// @param buffer of UpdateSite::staging_bytes(); may be null if that is 0.
  void begin_fetch(StagingBuffers::Buffer* buffer);
  /// Begins to fetch the gradient. Call it once, after begin_fetch().
  /// @param gradient its shard, as it is reduced.
  void begin_gradient(
      const runtime::RestingTensor& gradient,
      StagingBuffers::Buffer* buffer);
  /// Returns the tensors for an update, after both functions above, without
  /// state. Blocks until those in host memory are complete; what is copied to
  /// the device is complete in the order of the current stream.
  ShardTensors tensors();
  /// Ends the access without an update. Blocks.
  void forget();
  /// After the update: begins to copy what rests elsewhere back. The buffer is
  /// free again when the returned transfers have ended.
  /// @param written the stretches that were updated.
  std::vector<runtime::PendingTransfer> begin_return(
      const std::vector<runtime::FlatSpan>& written);
  /// The part of begin_return() for weights on another tier.
  /// @param values of the type of the weights; if updates round, only the
  ///   written ones are valid, else all.
  runtime::PendingTransfer begin_return_of_weights(
      const at::Tensor& values,
      const std::vector<runtime::FlatSpan>& written);

 private:
  at::Tensor place(
      int64_t numel,
      at::ScalarType dtype,
      StagingBuffers::Buffer* buffer) const;
  at::Tensor fetch(
      const runtime::RestingTensor& from,
      at::ScalarType dtype,
      StagingBuffers::Buffer* buffer);
  at::Tensor fetch_master(StagingBuffers::Buffer* buffer);
  void begin_read(const runtime::RestingTensor& from, const at::Tensor& into);

  const UpdateSite& site_;
  RestingShards shards_;
  const StreamedUpdate& streamed_;
  ShardTensors open_;
  std::vector<runtime::PendingTransfer> arriving_on_host_;
  std::vector<runtime::PendingTransfer> arriving_on_device_;
};

} // namespace tessera::offload
