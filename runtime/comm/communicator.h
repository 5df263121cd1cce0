// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Communicator` runs collectives among a fixed group of ranks, over any c10d
// backend.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

class MissingRanks;
class StreamTime;

} // namespace tessera::runtime

namespace tessera {

/// Called about twice a second while a rank waits for its peers. It may throw
/// to end the wait, e.g. when another rank has reported that it took a
/// different path.
using WaitCheck = std::function<void()>;

/// A collective in progress. Call wait() before touching its tensors; the
/// handle keeps them alive until then.
class PendingCollective {
 public:
  struct Wait {
    std::chrono::milliseconds timeout{};
    /// Whether the work runs on a stream, which waits in place of the host.
    bool on_stream = false;
    /// Finds the ranks that a rank waits for; null: they are not known.
    std::shared_ptr<runtime::MissingRanks> missing_ranks;
    uint64_t number = 0; ///< of the collective, in its communicator
  };

  PendingCollective() = default;
  PendingCollective(
      c10::intrusive_ptr<c10d::Work> work,
      std::string label,
      Wait wait);

  /// Adds a step that wait() runs after the collective and after steps added
  /// earlier; the result is complete after the last step.
  void then(std::function<void()> step);

  /// True between issue and wait().
  bool pending() const {
    return work_.defined();
  }

  /// Blocks until the collective is done (CPU), or makes the current stream
  /// wait for it (CUDA). Does nothing if no collective is pending. Logs every
  /// 10 s which ranks have not joined the collective.
  /// @throws tessera::Error when a peer is gone, the timeout has passed, or
  ///   `check` throws. On CUDA the host does not wait, and c10d's watchdog ends
  ///   the process when a peer is gone or the timeout has passed.
  void wait(const WaitCheck& check = {});

 private:
  /// Tells the other ranks that this one waits.
  void answer_roll_call() const;
  /// The ranks that have not joined, for messages; empty if that is not known.
  std::vector<int> missing_ranks(bool log, std::chrono::seconds waited) const;

  c10::intrusive_ptr<c10d::Work> work_;
  std::string label_;
  Wait wait_;
  std::function<void()> last_step_;
};

/// Block lengths of an all-to-all, in elements, by rank.
struct AllToAllBlocks {
  std::vector<int64_t> taken; ///< of the output, by sending rank
  std::vector<int64_t> sent; ///< of the input, by receiving rank
};

/// Collectives among `size()` ranks. Every rank issues the same collectives in
/// the same order. All of them except barrier() return at once; the result is
/// available after PendingCollective::wait(). A communicator of one rank needs
/// no backend: its collectives copy if input and output differ, and are done on
/// return.
///
/// Over NCCL and the like a collective runs on the current stream, like an
/// operator, and wait() has nothing to wait for. (c10d's asynchronous mode
/// would put all collectives on one stream of its own, so that all-gathers
/// would queue after reductions.)
///
/// A backend for CPU tensors handles CUDA tensors by copies through the host,
/// where ranks share devices. Issue and wait must
/// then run with the same current stream, and block the host for it.
class Communicator {
 public:
  /// A communicator of one rank.
  explicit Communicator(std::string name);

  Communicator(
      std::string name,
      c10::intrusive_ptr<c10d::Backend> backend,
      std::chrono::milliseconds timeout,
      std::shared_ptr<runtime::MissingRanks> missing_ranks = nullptr);

  /// Aborts collectives in progress if the backend can (all but Gloo).
  /// The communicator cannot be used afterwards, on this or any other rank.
  void abort() noexcept;

  /// Waits for collectives in progress, for about a second on the CPU and 30 s
  /// on a device with streams. A collective that has not ended by then never
  /// will; it is aborted, or, with Gloo, leaked with its threads. On a device
  /// with streams, waits as long for the other ranks to destroy theirs, since
  /// they may still read this rank's memory. While an exception propagates, it
  /// does not wait for a device, but aborts.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  const std::string& name() const {
    return name_;
  }
  /// c10d's name of the backend, such as "gloo"; "none" with one rank.
  std::string transport() const;

  /// output[r * n, (r + 1) * n) = input of rank r, n = input.numel().
  /// @param label names the collective in errors, e.g. "unshard of 'layer.0'".
  PendingCollective all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string label);

  /// output = sum over ranks of input[rank() * n, (rank() + 1) * n), n =
  /// output.numel(). `input` is overwritten; `output` may be that slice of it.
  PendingCollective reduce_scatter_sum(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string label);

  /// Block r of `output` = block rank() of rank r's `input`; both consist of
  /// size() equal blocks, in order.
  PendingCollective all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string label);

  /// As above with blocks of any length, including 0. blocks.taken[r] on this
  /// rank must equal blocks.sent[rank()] on rank r.
  PendingCollective all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const AllToAllBlocks& blocks,
      std::string label);

  PendingCollective all_reduce_sum(const at::Tensor& tensor, std::string label);
  PendingCollective all_reduce_max(const at::Tensor& tensor, std::string label);
  PendingCollective broadcast(
      const at::Tensor& tensor,
      int root,
      std::string label);

  /// Blocks until every rank has called it.
  void barrier(const WaitCheck& check = {});

 private:
  /// @param blocks empty if all have the same length.
  PendingCollective exchange(
      const at::Tensor& output,
      const at::Tensor& input,
      AllToAllBlocks blocks,
      std::string label);
  PendingCollective all_reduce(
      const at::Tensor& tensor,
      const c10d::ReduceOp& op,
      std::string label);
  /// Issues a collective.
  /// @param bytes of its tensor, for traces.
  PendingCollective pending(
      const std::function<c10::intrusive_ptr<c10d::Work>()>& issue,
      std::string label,
      size_t bytes);
  void trace(
      const c10::intrusive_ptr<c10d::Work>& work,
      const runtime::StreamTime& begin,
      const std::string& label,
      size_t bytes) const;
  bool on_stream() const {
    return device_.has_value();
  }
  void leave_device() noexcept;
  /// Whether the tensor must be copied through the host.
  bool is_staged(const at::Tensor& tensor) const {
    return !on_stream() && !tensor.is_cpu();
  }

  std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::chrono::milliseconds timeout_{};
  std::shared_ptr<runtime::MissingRanks> missing_ranks_;
  uint64_t issued_ = 0; ///< collectives so far
  /// The device that the backend is bound to, like that of NCCL:
  /// collectives and waits for them run on the current stream.
  std::optional<at::Device> device_;
  std::vector<c10::Stream> streams_; ///< of `device_`, with collectives
  bool is_aborted_ = false;
  bool is_gloo_ = false;
  int rank_ = 0;
  int size_ = 1;
  // Weak, because a work holds its tensors.
  std::deque<c10::weak_intrusive_ptr<c10d::Work>> under_way_;
};

/// Makes a Gloo backend for CPU tensors over `store`. Binds to the loopback
/// interface if MASTER_ADDR is local, to GLOO_SOCKET_IFNAME if that is set, and
/// otherwise to the address of the host. Collective; blocks until all `size`
/// ranks have arrived.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

} // namespace tessera
