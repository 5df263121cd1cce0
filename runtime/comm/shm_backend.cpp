// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_backend.h"

#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/shm_exchange.h"
#include "tessera/runtime/comm/shm_meeting.h"
#include "tessera/runtime/comm/shm_operation.h"
#include "tessera/runtime/comm/shm_queue.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

class ShmWork : public c10d::Work {
 public:
  ShmWork(std::shared_ptr<ShmQueue> queue, ShmQueue::Ticket ticket)
      : queue_(std::move(queue)), ticket_(ticket) {}

  bool isCompleted() override {
    return queue_->is_over(ticket_);
  }

  bool isSuccess() const override {
    return queue_->is_over(ticket_) && !queue_->failure_of(ticket_);
  }

  std::exception_ptr exception() const override {
    return queue_->failure_of(ticket_);
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto deadline = timeout == kNoTimeout
                              ? std::chrono::steady_clock::time_point::max()
                              : std::chrono::steady_clock::now() + timeout;
    TESSERA_CHECK(
        queue_->wait(ticket_, deadline),
        "the collective is incomplete after {} ms",
        timeout.count());
    if (const auto failure = queue_->failure_of(ticket_)) {
      std::rethrow_exception(failure);
    }
    return true;
  }

  void abort() override {
    queue_->abort("the collective was aborted");
  }

 private:
  std::shared_ptr<ShmQueue> queue_;
  ShmQueue::Ticket ticket_;
};

c10::intrusive_ptr<c10d::Work> push(
    const std::shared_ptr<ShmQueue>& queue,
    std::unique_ptr<ShmOperation> operation) {
  return c10::make_intrusive<ShmWork>(queue, queue->push(std::move(operation)));
}

} // namespace

ShmBackend::ShmBackend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const ShmOptions& options)
    : Backend(rank, size), args_("shared memory", at::kCPU, size) {
  ShmRegion region = meet(*store, rank, size);
  ShmPeers peers(
      region, {rank, size, options.read_peers_directly, options.timeout});
  queue_ = std::make_shared<ShmQueue>(
      std::move(region), std::move(peers), rank, job_ranks(*store, size));
}

ShmBackend::~ShmBackend() {
  abort();
}

void ShmBackend::abort() {
  queue_->abort("the communicator is gone");
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& /*options*/) {
  args_.check_parts("all_gather", output, input);
  return push(
      queue_,
      std::make_unique<ShmGather>(
          queue_->port(), output, input, args_.equal_spans(bytes_in(input))));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  args_.check_parts("reduce_scatter", input, output);
  return push(
      queue_,
      std::make_unique<ShmReduce>(
          queue_->port(),
          output,
          input,
          args_.equal_spans(bytes_in(output)),
          args_.kind_of(options.reduceOp)));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce(
    std::vector<at::Tensor>& tensors,
    const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = args_.only(tensors, "all_reduce");
  const ReduceKind kind = args_.kind_of(options.reduceOp);
  const ShmPort& port = queue_->port();
  if (ShmFullReduce::fits(port, tensor)) {
    return push(queue_, std::make_unique<ShmFullReduce>(port, tensor, kind));
  }
  // Each rank reduces its slice in place, then all gather the slices.
  const auto spans = even_spans(tensor.numel(), tensor.itemsize(), getSize());
  const ByteSpan& local = spans[static_cast<size_t>(getRank())];
  const at::Tensor part = tensor.view({-1}).narrow(
      0, local.begin / tensor.itemsize(), local.bytes() / tensor.itemsize());
  push(queue_, std::make_unique<ShmReduce>(port, part, tensor, spans, kind));
  return push(
      queue_,
      std::make_unique<ShmGather>(
          port, tensor, part, spans, /*shows_results=*/true));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::broadcast(
    std::vector<at::Tensor>& tensors,
    const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = args_.only(tensors, "broadcast");
  std::vector<ByteSpan> spans(static_cast<size_t>(getSize()));
  spans.at(static_cast<size_t>(options.rootRank)) = {0, bytes_in(tensor)};
  return push(
      queue_,
      std::make_unique<ShmGather>(
          queue_->port(), tensor, tensor, std::move(spans)));
}

int64_t ShmBackend::largest_of_all(int64_t number) {
  const at::Tensor largest = at::full({1}, number, at::kLong);
  push(
      queue_,
      std::make_unique<ShmFullReduce>(
          queue_->port(), largest, ReduceKind::kMax))
      ->wait(kNoTimeout);
  return largest.item<int64_t>();
}

c10::intrusive_ptr<c10d::Work> ShmBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& /*options*/) {
  auto given = args_.blocks(output, input, output_splits, input_splits);
  const ShmPort& port = queue_->port();
  ShmExchange::Blocks blocks{
      std::move(given.out), std::move(given.in), bytes_in(output) / getSize()};
  if (!output_splits.empty()) {
    // The block lengths of the other ranks are unknown here.
    blocks.longest_bytes =
        port.peers.can_read()
            ? ShmExchange::always_direct(port)
            : largest_of_all(std::max(bytes_in(output), bytes_in(input)));
  }
  return push(
      queue_,
      std::make_unique<ShmExchange>(port, output, input, std::move(blocks)));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::barrier(
    const c10d::BarrierOptions& /*options*/) {
  const at::Tensor nothing = at::empty({0});
  return push(
      queue_,
      std::make_unique<ShmGather>(
          queue_->port(),
          nothing,
          nothing,
          std::vector<ByteSpan>(static_cast<size_t>(getSize()))));
}

} // namespace tessera::runtime
