// SPDX-License-Identifier: Apache-2.0
#pragma once
// `IpcBackend` is a c10d backend for ranks that share a device.

#include "support/ipc/ipc_queue.h"
#include "tessera/runtime/comm/collective_args.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <vector>

namespace tessera::runtime::ipc {

/// Collectives on contiguous tensors of one device, of any size and dtype, on
/// the current stream: like operators, they return at once, and what is issued
/// on this stream afterwards sees their results (see [Note: collectives in the
/// order of streams]). A work's wait() has the current stream wait, if that is
/// another one; only a barrier's blocks the host. Tensors must live until the
/// stream has passed, as those of any operator.
///
/// Sums are computed in rank order, in float32 for bfloat16 and float16: all
/// ranks get the same bits, which are ShmBackend's too.
///
/// When a rank ends or its backend is aborted, the others' streams run on
/// within a fraction of a second, with garbage, and their next collective or
/// wait() throws the reason (see [Note: a stream that waits for a lost rank]).
///
/// A stream that waits holds its queue of the device: give the device as many
/// queues as there are streams (CUDA_DEVICE_MAX_CONNECTIONS=32), else streams
/// that share one wait for each other, possibly in a circle.
class IpcBackend : public c10d::Backend {
 public:
  /// Collective; blocks until all ranks are connected and have exchanged a few
  /// bytes.
  /// @throws tessera::Error on every rank, with the same reason, when a rank
  ///   cannot share memory with the others or gets other bytes.
  IpcBackend(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      const IpcOptions& options,
      std::unique_ptr<StreamDriver> driver);
  ~IpcBackend() override;

  const std::string getBackendName() const override {
    return "ipc";
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options = {}) override;

  /// Sum or maximum. `output` may be this rank's slice of `input`.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options = {}) override;

  /// Sum or maximum of one tensor.
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options = {}) override;

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options = {}) override;

  /// As ShmBackend's. With split sizes it blocks the host until all ranks have
  /// called.
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options = {}) override;

  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& options = {}) override;

  /// Fails the collectives in progress, here and on the peers.
  void abort() override;

 private:
  c10::intrusive_ptr<c10d::Work> issue(
      const IpcPlan& plan,
      bool blocks_host = false);
  /// Copies the block of `in` for each other rank to that rank's row of the
  /// slot, `row` bytes of it at a time.
  decltype(IpcPlan::publish) publish_blocks(
      const at::Tensor& in,
      std::vector<ByteSpan> blocks,
      int64_t row) const;
  /// Fills each rank's span of `out` with the `local` of that rank.
  IpcPlan gather(
      const at::Tensor& out,
      const at::Tensor& local,
      std::vector<ByteSpan> spans) const;
  /// Reduces this rank's span of every rank's `in` into `out`.
  IpcPlan reduce(
      const at::Tensor& out,
      const at::Tensor& in,
      std::vector<ByteSpan> spans,
      ReduceKind kind) const;
  /// Reduces all of every rank's `tensor`, on every rank.
  IpcPlan reduce_full(const at::Tensor& tensor, ReduceKind kind) const;
  /// @param longest_bytes at least the longest block of any rank; the same on
  ///   all ranks.
  IpcPlan exchange(
      const at::Tensor& out,
      const at::Tensor& in,
      CollectiveArgs::Blocks blocks,
      int64_t longest_bytes) const;
  /// The lengths of the blocks that each rank sends, by rank; none when the
  /// queue has failed. Collective; blocks the host.
  std::vector<std::vector<int64_t>> exchange_lengths(
      const std::vector<ByteSpan>& blocks);
  /// The longest of these blocks.
  /// @throws tessera::Error when a rank sends a block of another length than
  ///   this one takes.
  int64_t longest_of(
      const std::vector<std::vector<int64_t>>& sent,
      const std::vector<ByteSpan>& taken) const;
  void test_gather();

  std::shared_ptr<IpcQueue> queue_;
  CollectiveArgs args_;
};

} // namespace tessera::runtime::ipc
