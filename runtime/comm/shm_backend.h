// SPDX-License-Identifier: Apache-2.0
#pragma once
// A c10d backend for ranks of one host, over shared memory.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace tessera {

class ShmQueue;

struct ShmOptions {
  /// How long to wait for the other ranks to connect.
  std::chrono::milliseconds timeout{};
  /// False: data always passes through shared memory in pieces, as where ranks
  /// may not read each other's memory.
  bool read_peers_directly = true;
};

/// Collectives on contiguous CPU tensors of any size and type. They return at
/// once, proceed in issue order, and overlap with computation. Inputs must not
/// change, and outputs not be read, before wait() has returned.
///
/// A rank copies each byte that it receives once, straight from its peer's
/// tensor to its own (see [Note: reading a peer's memory]); what is small, or
/// may not be read, passes through shared memory. Reductions are taken in rank
/// order, for bfloat16 and float16 in float32, so that all ranks get the same
/// bits; each rank reduces its part only.
///
/// When a rank's process ends, or it gives its backend up, collectives that
/// need it fail on all others within a fraction of a second.
class ShmBackend : public c10d::Backend {
 public:
  /// Collective; blocks until all ranks are connected.
  /// @throws tessera::Error on every rank, with one reason, when some rank
  ///   cannot share memory with the others.
  ShmBackend(
      const c10::intrusive_ptr<c10d::Store>& store,
      int rank,
      int size,
      const ShmOptions& options);
  ~ShmBackend() override;

  const std::string getBackendName() const override {
    return "shm";
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options = {}) override;

  /// Sum or maximum. `output` may be this rank's part of `input`.
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

  /// Rows of the first dimension, as c10d has it: split sizes say how many come
  /// from and go to each rank; without any, all get the same number. Blocks
  /// until all ranks have called where there are split sizes and ranks may not
  /// read each other's memory.
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options = {}) override;

  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& options = {}) override;

  /// Fails what is under way, here and on the peers.
  void abort() override;

 private:
  int64_t largest_of_all(int64_t number);

  std::shared_ptr<ShmQueue> queue_;
};

} // namespace tessera
