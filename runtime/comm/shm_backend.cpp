// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_backend.h"

#include "tessera/runtime/comm/shm_exchange.h"
#include "tessera/runtime/comm/shm_operation.h"
#include "tessera/runtime/comm/shm_queue.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>
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

constexpr const char* kGood = "good";

/// Every rank states `mine`, kGood or a reason.
/// @return the first reason, by rank, or kGood; the same on all ranks.
std::string verdict(
    c10d::Store& store,
    const std::string& mine,
    int rank,
    int size) {
  const auto key = [](int r) { return "attached/" + std::to_string(r); };
  if (rank != 0) {
    store.set(key(rank), to_bytes(mine));
    return to_text(store.get("verdict"));
  }
  std::string all = mine;
  for (int r = 1; r < size; ++r) {
    const std::string theirs = to_text(store.get(key(r)));
    if (all == kGood && theirs != kGood) {
      all = "rank " + std::to_string(r) + ": " + theirs;
    }
  }
  store.set("verdict", to_bytes(all));
  return all;
}

ShmRegion meet(c10d::Store& store, int rank, int size) {
  std::optional<ShmRegion> region;
  std::string mine = kGood;
  try {
    if (rank == 0) {
      region.emplace(ShmRegion::create(size));
      store.set("region", to_bytes(region->address()));
    } else {
      const std::string address = to_text(store.get("region"));
      TESSERA_CHECK(!address.empty(), "rank 0 has no shared memory");
      region.emplace(ShmRegion::attach(address, size));
    }
  } catch (const Error& error) {
    mine = error.what();
    if (rank == 0) {
      store.set("region", to_bytes(""));
    }
  }
  const std::string all = verdict(store, mine, rank, size);
  TESSERA_CHECK(all == kGood, "{}", all);
  return std::move(*region);
}

void check_tensor(const at::Tensor& tensor, const char* function) {
  TESSERA_CHECK(
      tensor.device().is_cpu() && tensor.is_contiguous(),
      "{} over shared memory takes contiguous CPU tensors, but got one of shape {} and strides {} on {}",
      function,
      tensor.sizes(),
      tensor.strides(),
      tensor.device());
}

const at::Tensor& only(
    const std::vector<at::Tensor>& tensors,
    const char* function) {
  TESSERA_CHECK(
      tensors.size() == 1,
      "{} over shared memory takes one tensor, but got {}",
      function,
      tensors.size());
  check_tensor(tensors[0], function);
  return tensors[0];
}

ReduceKind kind_of(const c10d::ReduceOp& op) {
  if (op == c10d::ReduceOp::SUM) {
    return ReduceKind::kSum;
  }
  TESSERA_CHECK(
      op == c10d::ReduceOp::MAX,
      "the shared-memory transport supports only sum and maximum reductions; set TESSERA_TRANSPORT=gloo for others");
  return ReduceKind::kMax;
}

/// Checks that `whole` has the size of one `part` per rank.
void check_parts(
    const char* collective,
    const at::Tensor& whole,
    const at::Tensor& part,
    int ranks) {
  check_tensor(whole, collective);
  check_tensor(part, collective);
  TESSERA_CHECK(
      whole.numel() == part.numel() * ranks &&
          whole.scalar_type() == part.scalar_type(),
      "{}: the whole tensor has {} elements of {}; it must be {} times (the number of ranks) the part, which has {} of {}",
      collective,
      whole.numel(),
      whole.scalar_type(),
      ranks,
      part.numel(),
      part.scalar_type());
}

std::vector<ByteSpan> equal_spans(int64_t bytes, int ranks) {
  std::vector<ByteSpan> spans;
  for (int r = 0; r < ranks; ++r) {
    spans.push_back({r * bytes, (r + 1) * bytes});
  }
  return spans;
}

int64_t bytes_in(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

/// One span per rank, of whole rows of the tensor's first dimension.
std::vector<ByteSpan> row_spans(
    const at::Tensor& tensor,
    const std::vector<int64_t>& rows,
    int ranks) {
  if (rows.empty()) {
    TESSERA_CHECK(
        tensor.numel() % ranks == 0,
        "all_to_all: the number of elements of a tensor of sizes {} is not divisible by {} ranks",
        tensor.sizes(),
        ranks);
    return equal_spans(bytes_in(tensor) / ranks, ranks);
  }
  int64_t total = 0;
  for (const int64_t count : rows) {
    TESSERA_CHECK(count >= 0, "all_to_all: a block has {} rows", count);
    total += count;
  }
  TESSERA_CHECK(
      static_cast<int>(rows.size()) == ranks && tensor.dim() > 0 &&
          total == tensor.size(0),
      "all_to_all: {} blocks with {} rows in total, for {} ranks and a tensor of sizes {}",
      rows.size(),
      total,
      ranks,
      tensor.sizes());
  const int64_t row = total == 0 ? 0 : bytes_in(tensor) / total;
  std::vector<ByteSpan> spans;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    spans.push_back({begin, begin + count * row});
    begin = spans.back().end;
  }
  return spans;
}

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
    : Backend(rank, size) {
  ShmRegion region = meet(*store, rank, size);
  ShmPeers peers(
      region, {rank, size, options.read_peers_directly, options.timeout});
  queue_ = std::make_shared<ShmQueue>(
      std::move(region), std::move(peers), rank, size);
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
  check_parts("all_gather", output, input, getSize());
  return push(
      queue_,
      std::make_unique<ShmGather>(
          queue_->port(),
          output,
          input,
          equal_spans(bytes_in(input), getSize())));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  check_parts("reduce_scatter", input, output, getSize());
  return push(
      queue_,
      std::make_unique<ShmReduce>(
          queue_->port(),
          output,
          input,
          equal_spans(bytes_in(output), getSize()),
          kind_of(options.reduceOp)));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce(
    std::vector<at::Tensor>& tensors,
    const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  const ReduceKind kind = kind_of(options.reduceOp);
  const ShmPort& port = queue_->port();
  if (ShmReduceWhole::fits(port, tensor)) {
    return push(queue_, std::make_unique<ShmReduceWhole>(port, tensor, kind));
  }
  // Each rank reduces its slice in place, then all gather the slices.
  const auto spans = even_spans(tensor.numel(), tensor.itemsize(), getSize());
  const ByteSpan& own = spans[static_cast<size_t>(getRank())];
  const at::Tensor part = tensor.view({-1}).narrow(
      0, own.begin / tensor.itemsize(), own.bytes() / tensor.itemsize());
  push(queue_, std::make_unique<ShmReduce>(port, part, tensor, spans, kind));
  return push(
      queue_,
      std::make_unique<ShmGather>(
          port, tensor, part, spans, /*shows_results=*/true));
}

c10::intrusive_ptr<c10d::Work> ShmBackend::broadcast(
    std::vector<at::Tensor>& tensors,
    const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
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
      std::make_unique<ShmReduceWhole>(
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
  check_tensor(output, "all_to_all");
  check_tensor(input, "all_to_all");
  TESSERA_CHECK(
      output.scalar_type() == input.scalar_type() &&
          output_splits.empty() == input_splits.empty(),
      "all_to_all from {} to {}, with {} and {} split sizes; both sides must have the same dtype, and either both or neither must have split sizes",
      input.scalar_type(),
      output.scalar_type(),
      input_splits.size(),
      output_splits.size());
  const ShmPort& port = queue_->port();
  ShmExchange::Blocks blocks{
      row_spans(output, output_splits, getSize()),
      row_spans(input, input_splits, getSize()),
      bytes_in(output) / getSize()};
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
