// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ProcessGroup` stands in for NCCL's: collectives of the virtual device are
// commands of the current stream and do not block the host. The ranks connect
// in the first collective, which blocks the host until all have called it, and
// a group that is destroyed with collectives in flight aborts them.

#include "support/vdev/vdev_runtime.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tests::vdev {

class ProcessGroup final : public c10d::Backend {
 public:
  ProcessGroup(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      c10::DeviceIndex index,
      std::chrono::milliseconds timeout);
  /// Overwrites what collectives in flight would have given with NaN, as an
  /// abort leaves it in an unknown state, and notes a violation.
  ~ProcessGroup() override;

  const std::string getBackendName() const override {
    return "vdev";
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  /// Blocks the host.
  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& options) override;

  /// Connects without a collective.
  void eagerConnectSingleDevice(at::Device device) override;
  /// Waits for what is in flight.
  void shutdown() override;
  void abort() override;

 private:
  struct State;
  using Start = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

  void connect();
  void issue(
      const char* name,
      const std::vector<at::Tensor>& read,
      const std::vector<at::Tensor>& written,
      bool is_async,
      Start start);

  c10::DeviceIndex index_;
  std::shared_ptr<State> state_;
};

} // namespace tessera::tests::vdev
