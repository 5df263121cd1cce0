// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmBackend` is a c10d backend over shared memory, for ranks on one host.

#include "tessera/runtime/comm/collective_args.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace tessera::runtime {

class ShmQueue;

struct ShmOptions {
  /// Time limit for the other ranks to connect.
  std::chrono::milliseconds timeout{};
  /// False: data always passes through shared memory in pieces, as on systems
  /// where ranks may not read each other's memory.
  bool read_peers_directly = true;
};

/// Collectives on contiguous CPU tensors of any size and dtype. They return at
/// once, are carried out in issue order, and overlap with computation. Do not
/// change inputs or read outputs before wait() has returned.
///
/// A rank copies each byte that it receives once, directly from its peer's
/// tensor to its own (see [Note: reading a peer's memory]). Small messages, and
/// all messages where such reads are not permitted, pass through shared memory.
/// Reductions are computed in rank order, in float32 for bfloat16 and float16,
/// so all ranks get the same bits; each rank reduces only its own slice.
///
/// When the process of a rank ends or its backend is aborted, collectives that
/// need that rank fail on all others within a fraction of a second.
class ShmBackend : public c10d::Backend {
 public:
  /// Collective; blocks until all ranks are connected.
  /// @throws tessera::Error on every rank, with the same reason, when a rank
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

  /// Exchanges rows of the first dimension, as in c10d: the split sizes are the
  /// numbers of rows from and to each rank; without them, all get the same
  /// number. With split sizes it blocks until all ranks have called if ranks
  /// may not read each other's memory.
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
  int64_t largest_of_all(int64_t number);

  CollectiveArgs args_;
  std::shared_ptr<ShmQueue> queue_;
};

} // namespace tessera::runtime
