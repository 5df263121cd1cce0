// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives among a fixed group of ranks, over any c10d backend.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Called about twice a second while a rank waits for its peers; throws to end
/// the wait, e.g. when another rank has reported that it took another path.
using WaitCheck = std::function<void()>;

/// A collective under way. wait() must be called before its tensors are
/// touched; the handle keeps them alive until then.
class PendingCollective {
 public:
  PendingCollective() = default;
  PendingCollective(
      c10::intrusive_ptr<c10d::Work> work,
      std::string what,
      std::chrono::milliseconds timeout,
      bool on_stream = false);

  /// Runs `step` at the end of wait(), before the result is there and after
  /// steps that were given before.
  void then(std::function<void()> step);

  /// True between issue and wait().
  bool pending() const {
    return work_.defined();
  }

  /// Blocks until the collective is done (CPU), or makes the current stream
  /// wait for it (CUDA). Without a pending collective it does nothing.
  /// @throws tessera::Error when a peer is gone, the timeout has passed, or
  ///   `check` throws. On CUDA the host does not wait: there c10d's watchdog
  ///   ends the process when a peer is gone or the timeout has passed.
  void wait(const WaitCheck& check = {});

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::chrono::milliseconds timeout_{};
  bool on_stream_ = false;
  std::function<void()> last_step_;
};

/// How the tensors of an all-to-all are cut, in elements, by rank.
struct AllToAllBlocks {
  std::vector<int64_t> taken; ///< of the output, by the rank they come from
  std::vector<int64_t> sent; ///< of the input, by the rank they go to
};

/// Collectives among `size()` ranks. Every rank issues the same collectives in
/// the same order. All functions return at once; the result is there after
/// PendingCollective::wait(). A group of one needs no backend: its collectives
/// copy where input and output differ and are done on return.
///
/// Over NCCL a collective runs on the stream that is current when it is issued,
/// like an operator, and there is nothing to wait for: c10d's asynchronous mode
/// would put all of them on one stream of its own, gathers behind reductions.
///
/// A backend for CPU tensors serves CUDA tensors through copies on the host,
/// for ranks that share a device. Issue and wait then run with the same current
/// stream, and block the host for it.
class Communicator {
 public:
  /// A group of one.
  explicit Communicator(std::string name);

  Communicator(
      std::string name,
      c10::intrusive_ptr<c10d::Backend> backend,
      std::chrono::milliseconds timeout);

  /// Ends what is under way, where the backend can (NCCL); the communicator is
  /// of no use afterwards, here and on the other ranks. Does not throw.
  void abort() noexcept;

  /// Waits a moment for collectives under way. What has not ended by then never
  /// will, and is aborted, or under Gloo left behind with its threads.
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

  /// output[r * n, (r + 1) * n) = input of rank r, n = input.numel().
  /// @param what names the collective in errors, e.g. "unshard of 'layer.0'".
  PendingCollective all_gather(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string what);

  /// output = sum over ranks of input[rank() * n, (rank() + 1) * n),
  /// n = output.numel(). `input` is overwritten; `output` may be that very part
  /// of it.
  PendingCollective reduce_scatter_sum(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string what);

  /// Block r of `output` = block rank() of rank r's `input`; both are made of
  /// size() equal blocks, one behind the other.
  PendingCollective all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      std::string what);

  /// The same with blocks of any length, 0 too. A rank that sends n elements
  /// to another is one that the other one takes n elements from.
  PendingCollective all_to_all(
      const at::Tensor& output,
      const at::Tensor& input,
      const AllToAllBlocks& blocks,
      std::string what);

  PendingCollective all_reduce_sum(const at::Tensor& tensor, std::string what);
  PendingCollective all_reduce_max(const at::Tensor& tensor, std::string what);
  PendingCollective broadcast(
      const at::Tensor& tensor,
      int root,
      std::string what);

  /// Blocks until every rank has called it.
  void barrier(const WaitCheck& check = {});

 private:
  /// @param blocks empty: of one length.
  PendingCollective exchange(
      const at::Tensor& output,
      const at::Tensor& input,
      AllToAllBlocks blocks,
      std::string what);
  PendingCollective pending(
      c10::intrusive_ptr<c10d::Work> work,
      std::string what);
  /// Whether the tensor has to travel through the host.
  bool is_staged(const at::Tensor& tensor) const {
    return !on_stream_ && !tensor.is_cpu();
  }

  std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::chrono::milliseconds timeout_{};
  // NCCL: collectives run on a stream, and so do waits for them.
  bool on_stream_ = false;
  bool is_gloo_ = false;
  int rank_ = 0;
  int size_ = 1;
  // Weak, because a work holds its tensors.
  std::deque<c10::weak_intrusive_ptr<c10d::Work>> under_way_;
};

/// A Gloo group for CPU tensors over the given store.
/// Binds to the loopback interface when MASTER_ADDR is local, to
/// GLOO_SOCKET_IFNAME when that is set, else to the host's address.
/// Blocks until all `size` ranks have arrived.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

} // namespace tessera
