// SPDX-License-Identifier: Apache-2.0
#include "support/ipc/ipc_backend.h"

#include "tessera/runtime/comm/shm_bytes.h"
#include "tessera/runtime/comm/shm_meeting.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

namespace tessera::runtime::ipc {

namespace {

using Clock = std::chrono::steady_clock;

// Begins of rows in a slot: as aligned as the device's own allocations.
constexpr int64_t kRowAlignment = 256;
constexpr std::chrono::seconds kTestLimit{30};

class IpcWork : public c10d::Work {
 public:
  IpcWork(std::shared_ptr<IpcQueue> queue, uint64_t end_turn, bool blocks_host)
      : queue_(std::move(queue)),
        end_turn_(end_turn),
        blocks_host_(blocks_host) {}

  bool isCompleted() override {
    return queue_->is_over(end_turn_);
  }

  bool isSuccess() const override {
    return queue_->is_over(end_turn_) && !queue_->failure_of(end_turn_);
  }

  std::exception_ptr exception() const override {
    return queue_->failure_of(end_turn_);
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (blocks_host_) {
      const auto deadline = timeout == kNoTimeout ? Clock::time_point::max()
                                                  : Clock::now() + timeout;
      TESSERA_CHECK(
          queue_->wait(end_turn_, deadline),
          "the collective is incomplete after {} ms",
          timeout.count());
    } else if (!queue_->failure_of(end_turn_)) {
      queue_->follow(end_turn_);
    }
    if (const auto failure = queue_->failure_of(end_turn_)) {
      std::rethrow_exception(failure);
    }
    return true;
  }

  void abort() override {
    queue_->abort("the collective was aborted");
  }

 private:
  std::shared_ptr<IpcQueue> queue_;
  uint64_t end_turn_;
  bool blocks_host_;
};

/// The part of a span that goes into a row in one turn.
ByteSpan part(const ByteSpan& full, int64_t row_bytes, uint64_t chunk) {
  const int64_t begin =
      std::min(full.begin + static_cast<int64_t>(chunk) * row_bytes, full.end);
  return {begin, std::min(begin + row_bytes, full.end)};
}

uint64_t chunks_of(int64_t longest_bytes, int64_t row_bytes) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, (longest_bytes + row_bytes - 1) / row_bytes));
}

ShmMessage message_of(
    CollectiveKind kind,
    const at::Tensor& tensor,
    int64_t bytes) {
  return {kind, static_cast<int32_t>(tensor.scalar_type()), bytes, 0};
}

} // namespace

IpcBackend::IpcBackend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const IpcOptions& options,
    std::unique_ptr<StreamDriver> driver)
    : Backend(rank, size),
      queue_(std::make_shared<IpcQueue>(
          *store,
          rank,
          size,
          options,
          std::move(driver))),
      args_("a shared device", queue_->driver().device(), size) {
  const c10::Device device = queue_->driver().device();
  setBoundDeviceId(device.has_index() ? device : c10::Device(device.type(), 0));
  all_succeed(*store, "tested", rank, size, [this] { test_gather(); });
}

IpcBackend::~IpcBackend() = default;

void IpcBackend::abort() {
  queue_->abort("the communicator is gone");
}

c10::intrusive_ptr<c10d::Work> IpcBackend::issue(
    const IpcPlan& plan,
    bool blocks_host) {
  return c10::make_intrusive<IpcWork>(queue_, queue_->issue(plan), blocks_host);
}

IpcPlan IpcBackend::gather(
    const at::Tensor& out,
    const at::Tensor& local,
    std::vector<ByteSpan> spans) const {
  const int64_t row = queue_->slot_bytes();
  StreamDriver& driver = queue_->driver();
  const auto self = static_cast<size_t>(getRank());
  IpcPlan plan;
  plan.message = message_of(CollectiveKind::kGather, out, bytes_in(out));
  plan.chunks = chunks_of(longest_bytes(spans), row);
  if (longest_bytes(spans) > 0) {
    // The root of a broadcast does not wait for who reads it.
    plan.reads = [=](int peer, uint64_t chunk) {
      return part(spans[static_cast<size_t>(peer)], row, chunk).bytes() > 0;
    };
  }
  plan.publish = [=, &driver](
                     IpcPlan::Stream stream, std::byte* slot, uint64_t chunk) {
    const ByteSpan span = part({0, spans[self].bytes()}, row, chunk);
    driver.copy(stream, slot, bytes_of(local) + span.begin, span.bytes());
  };
  plan.consume = [=, &driver](
                     IpcPlan::Stream stream,
                     const IpcPlan::Slots& slots,
                     uint64_t chunk) {
    for (size_t r = 0; r < slots.size(); ++r) {
      const ByteSpan span = part(spans[r], row, chunk);
      std::byte* to = bytes_of(out) + span.begin;
      const std::byte* from =
          r == self ? bytes_of(local) + span.begin - spans[r].begin : slots[r];
      if (to != from) {
        driver.copy(stream, to, from, span.bytes());
      }
    }
  };
  return plan;
}

decltype(IpcPlan::publish) IpcBackend::publish_blocks(
    const at::Tensor& in,
    std::vector<ByteSpan> blocks,
    int64_t row) const {
  return [in,
          row,
          blocks = std::move(blocks),
          this_rank = getRank(),
          &driver = queue_->driver()](
             IpcPlan::Stream stream, std::byte* slot, uint64_t chunk) {
    for (int r = 0; r < static_cast<int>(blocks.size()); ++r) {
      if (r != this_rank) {
        const ByteSpan span = part(blocks[static_cast<size_t>(r)], row, chunk);
        driver.copy(
            stream, slot + r * row, bytes_of(in) + span.begin, span.bytes());
      }
    }
  };
}

IpcPlan IpcBackend::reduce(
    const at::Tensor& out,
    const at::Tensor& in,
    std::vector<ByteSpan> spans,
    ReduceKind kind) const {
  const int64_t row =
      queue_->slot_bytes() / getSize() / kRowAlignment * kRowAlignment;
  StreamDriver& driver = queue_->driver();
  const auto self = static_cast<size_t>(getRank());
  IpcPlan plan;
  plan.message = message_of(
      kind == ReduceKind::kSum ? CollectiveKind::kSum : CollectiveKind::kMax,
      in,
      bytes_in(in));
  plan.chunks = chunks_of(longest_bytes(spans), row);
  plan.publish = publish_blocks(in, spans, row);
  plan.consume =
      [=, &driver](
          IpcPlan::Stream stream, const IpcPlan::Slots& slots, uint64_t chunk) {
        const ByteSpan span = part(spans[self], row, chunk);
        std::vector<const std::byte*> terms;
        for (size_t r = 0; r < slots.size(); ++r) {
          terms.push_back(
              r == self ? bytes_of(in) + span.begin
                        : slots[r] + static_cast<int64_t>(self) * row);
        }
        driver.reduce(
            stream,
            terms,
            bytes_of(out) + span.begin - spans[self].begin,
            span.bytes() / static_cast<int64_t>(in.itemsize()),
            in.scalar_type(),
            kind);
      };
  return plan;
}

IpcPlan IpcBackend::reduce_full(const at::Tensor& tensor, ReduceKind kind)
    const {
  const int64_t row = queue_->slot_bytes();
  StreamDriver& driver = queue_->driver();
  const auto self = static_cast<size_t>(getRank());
  const ByteSpan full{0, bytes_in(tensor)};
  IpcPlan plan;
  plan.message = message_of(
      kind == ReduceKind::kSum ? CollectiveKind::kSumFull
                               : CollectiveKind::kMaxFull,
      tensor,
      full.bytes());
  plan.chunks = chunks_of(full.bytes(), row);
  plan.publish = [=, &driver](
                     IpcPlan::Stream stream, std::byte* slot, uint64_t chunk) {
    const ByteSpan span = part(full, row, chunk);
    driver.copy(stream, slot, bytes_of(tensor) + span.begin, span.bytes());
  };
  plan.consume =
      [=, &driver](
          IpcPlan::Stream stream, const IpcPlan::Slots& slots, uint64_t chunk) {
        const ByteSpan span = part(full, row, chunk);
        std::byte* const out = bytes_of(tensor) + span.begin;
        std::vector<const std::byte*> terms(slots.begin(), slots.end());
        terms[self] = out;
        driver.reduce(
            stream,
            terms,
            out,
            span.bytes() / static_cast<int64_t>(tensor.itemsize()),
            tensor.scalar_type(),
            kind);
      };
  return plan;
}

IpcPlan IpcBackend::exchange(
    const at::Tensor& out,
    const at::Tensor& in,
    CollectiveArgs::Blocks blocks,
    int64_t longest_bytes) const {
  const int64_t row =
      queue_->slot_bytes() / getSize() / kRowAlignment * kRowAlignment;
  StreamDriver& driver = queue_->driver();
  const auto self = static_cast<size_t>(getRank());
  IpcPlan plan;
  // Blocks differ in length between ranks; the longest does not.
  plan.message = message_of(CollectiveKind::kExchange, out, longest_bytes);
  plan.chunks = chunks_of(longest_bytes, row);
  plan.publish = publish_blocks(in, blocks.in, row);
  plan.consume =
      [=, &driver](
          IpcPlan::Stream stream, const IpcPlan::Slots& slots, uint64_t chunk) {
        for (size_t r = 0; r < slots.size(); ++r) {
          const ByteSpan span = part(blocks.out[r], row, chunk);
          const std::byte* from =
              r == self ? bytes_of(in) + part(blocks.in[r], row, chunk).begin
                        : slots[r] + static_cast<int64_t>(self) * row;
          driver.copy(stream, bytes_of(out) + span.begin, from, span.bytes());
        }
      };
  return plan;
}

c10::intrusive_ptr<c10d::Work> IpcBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& /*options*/) {
  args_.check_parts("all_gather", output, input);
  return issue(gather(output, input, args_.equal_spans(bytes_in(input))));
}

c10::intrusive_ptr<c10d::Work> IpcBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  args_.check_parts("reduce_scatter", input, output);
  return issue(reduce(
      output,
      input,
      args_.equal_spans(bytes_in(output)),
      args_.kind_of(options.reduceOp)));
}

c10::intrusive_ptr<c10d::Work> IpcBackend::allreduce(
    std::vector<at::Tensor>& tensors,
    const c10d::AllreduceOptions& options) {
  return issue(reduce_full(
      args_.only(tensors, "all_reduce"), args_.kind_of(options.reduceOp)));
}

c10::intrusive_ptr<c10d::Work> IpcBackend::broadcast(
    std::vector<at::Tensor>& tensors,
    const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = args_.only(tensors, "broadcast");
  std::vector<ByteSpan> spans(static_cast<size_t>(getSize()));
  spans.at(static_cast<size_t>(options.rootRank)) = {0, bytes_in(tensor)};
  return issue(gather(tensor, tensor, std::move(spans)));
}

std::vector<std::vector<int64_t>> IpcBackend::exchange_lengths(
    const std::vector<ByteSpan>& blocks) {
  std::vector<int64_t> sent;
  for (const ByteSpan& block : blocks) {
    sent.push_back(block.bytes());
  }
  return queue_->exchange_all(sent);
}

int64_t IpcBackend::longest_of(
    const std::vector<std::vector<int64_t>>& sent,
    const std::vector<ByteSpan>& taken) const {
  int64_t longest_bytes = 0;
  for (size_t r = 0; r < sent.size(); ++r) {
    longest_bytes = std::max(longest_bytes, *std::ranges::max_element(sent[r]));
    const int64_t to_this = sent[r][static_cast<size_t>(getRank())];
    TESSERA_CHECK(
        to_this == taken[r].bytes(),
        "the ranks disagree about an all-to-all: rank {} sends {} bytes to rank {}, which expects {}",
        r,
        to_this,
        getRank(),
        taken[r].bytes());
  }
  return longest_bytes;
}

c10::intrusive_ptr<c10d::Work> IpcBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& /*options*/) {
  auto blocks = args_.blocks(output, input, output_splits, input_splits);
  int64_t longest_bytes = bytes_in(output) / getSize();
  if (!output_splits.empty()) {
    const auto sent = exchange_lengths(blocks.in);
    if (sent.empty()) {
      return issue({}); // which fails
    }
    longest_bytes = longest_of(sent, blocks.out);
  }
  return issue(exchange(output, input, std::move(blocks), longest_bytes));
}

c10::intrusive_ptr<c10d::Work> IpcBackend::barrier(
    const c10d::BarrierOptions& /*options*/) {
  const at::Tensor nothing =
      at::empty({0}, at::TensorOptions(queue_->driver().device()));
  return issue(
      gather(
          nothing,
          nothing,
          std::vector<ByteSpan>(static_cast<size_t>(getSize()))),
      /*blocks_host=*/true);
}

void IpcBackend::test_gather() {
  // More turns than there are slots, the last of them short.
  const int64_t numel =
      IpcQueue::kSlots * queue_->slot_bytes() / int64_t{sizeof(int32_t)} + 3;
  const auto options =
      at::TensorOptions(queue_->driver().device()).dtype(at::kInt);
  const at::Tensor local = at::full({numel}, getRank() + 1, options);
  const at::Tensor all = at::full({getSize(), numel}, -1, options);
  const uint64_t end =
      queue_->issue(gather(all, local, args_.equal_spans(bytes_in(local))));
  if (!queue_->wait(end, Clock::now() + kTestLimit)) {
    queue_->abort("a first exchange of data does not end");
  }
  if (const auto failure = queue_->failure_of(end)) {
    std::rethrow_exception(failure);
  }
  const at::Tensor found = all.cpu();
  for (int r = 0; r < getSize(); ++r) {
    TESSERA_CHECK(
        found[r].eq(r + 1).all().item<bool>(),
        "a first exchange of data has brought other bytes than rank {} has sent",
        r);
  }
}

} // namespace tessera::runtime::ipc
