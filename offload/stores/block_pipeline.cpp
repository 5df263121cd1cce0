// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/block_pipeline.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace tessera::offload {

namespace {

constexpr unsigned kThreads = 4;
// A block that needs more reads or writes than this fails.
constexpr int kMaxAttempts = 64;

uint64_t hash_of(const std::byte* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

/// The bytes of a contiguous tensor.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

} // namespace

class BlockPipeline::Transfer : public runtime::PendingTransfer::Work {
 public:
  Transfer(
      std::shared_ptr<FileExtent> file_extent,
      const at::Tensor& tensor,
      bool writes)
      : extent(std::move(file_extent)),
        bytes(as_bytes(tensor)),
        is_write(writes),
        stream(runtime::current_stream(tensor.device())),
        ended_(done.get_future().share()) {}

  void wait_issued() override {
    ended_.get();
  }
  void wait() override {
    ended_.get();
    if (last_copy) {
      last_copy->synchronize();
    }
  }

  bool is_done() const {
    return ended_.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }
  int64_t block_count() const {
    return (extent->bytes + kBlockBytes - 1) / kBlockBytes;
  }
  void fail(const std::string& message) {
    if (failure.empty()) {
      failure = message;
    }
    if (is_write) {
      extent->failure = failure;
    }
  }

  std::shared_ptr<FileExtent> extent;
  at::Tensor bytes; ///< [extent->bytes] uint8
  bool is_write;
  std::optional<c10::Stream> stream; ///< of a tensor on a device
  std::optional<c10::Event> last_copy; ///< to a device
  int64_t next_block = 0;
  int blocks_under_way = 0;
  std::string failure; ///< the first; empty: none
  std::promise<void> done;

 private:
  std::shared_future<void> ended_;
};

namespace {

/// Of a dry run: nothing is copied, but memory is in use for as long.
class DryTransfer : public runtime::PendingTransfer::Work {
 public:
  explicit DryTransfer(const at::Tensor& tensor) : tensor_(tensor) {}

  void wait_issued() override {}
  void wait() override {}

 private:
  at::Tensor tensor_;
};

} // namespace

BlockPipeline::BlockPipeline(
    ScratchFile& file,
    HostMemory& memory,
    const IoCalls& calls)
    : file_(file),
      calls_(calls),
      device_(memory.options().device),
      slots_(kDepth) {
  std::string why;
  queue_ = make_uring_queue(kDepth, calls, why);
  if (queue_ == nullptr) {
    log_info(
        "memory.nvme_path: io_uring cannot be used ({}); using threads with pread and pwrite instead.",
        why);
    queue_ = make_thread_queue(kThreads);
  }
  const at::Tensor buffer = memory.allocate(
      "staging buffers for file blocks",
      MemoryPurpose::kStaging,
      staging_bytes());
  for (int64_t i = 0; i < kDepth; ++i) {
    slots_[static_cast<size_t>(i)].buffer =
        buffer.narrow(0, i * kBlockBytes, kBlockBytes);
  }
  thread_ = std::thread([this] { run(); });
}

BlockPipeline::~BlockPipeline() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

runtime::PendingTransfer BlockPipeline::begin(
    std::shared_ptr<FileExtent> extent,
    const at::Tensor& tensor,
    bool is_write) {
  if (runtime::is_dry_memory(tensor.const_data_ptr())) {
    return runtime::PendingTransfer(std::make_shared<DryTransfer>(tensor));
  }
  auto transfer =
      std::make_shared<Transfer>(std::move(extent), tensor, is_write);
  if (runtime::SpanRecorder::current() != nullptr) {
    runtime::SpanRecorder::watch(
        runtime::TraceLane::kFiles,
        (is_write ? "write of " : "read of ") + transfer->extent->name,
        transfer->extent->bytes,
        [transfer] { return transfer->is_done(); });
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(transfer);
  }
  wake_.notify_one();
  return runtime::PendingTransfer(std::move(transfer));
}

void BlockPipeline::run() noexcept {
  const c10::NoGradGuard no_grad;
  // Else this thread's device would be the first one, and events that it frees
  // would take memory there, for every rank of the host.
  const c10::DeviceGuard on_device(device_);
  while (true) {
    while (under_way_ < kDepth && submit_next()) {
    }
    if (under_way_ > 0) {
      const IoQueue::Completion completion = queue_->wait();
      finish_block(slots_[completion.tag], completion.result);
      continue;
    }
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      return;
    }
  }
}

/// The transfer whose turn it is; null if there is none, or it must wait for an
/// earlier one of the same extent.
std::shared_ptr<BlockPipeline::Transfer> BlockPipeline::next_transfer() {
  if (current_ != nullptr) {
    return current_;
  }
  std::shared_ptr<Transfer> next;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty() || waiting_.front()->extent->under_way > 0) {
      return nullptr;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  try {
    file_.check_size();
    if (next->is_write) {
      next->extent->failure.clear(); // all of it is written anew
    }
    TESSERA_CHECK(next->extent->failure.empty(), "{}", next->extent->failure);
  } catch (const std::exception& error) {
    next->fail(error.what());
  }
  current_ = next;
  return next;
}

/// @return false if nothing more can be begun now.
bool BlockPipeline::submit_next() {
  const auto transfer = next_transfer();
  if (transfer == nullptr) {
    return false;
  }
  if (!transfer->failure.empty() ||
      transfer->next_block == transfer->block_count()) {
    current_ = nullptr;
    end_if_done(transfer);
    return true;
  }
  IoSlot& slot =
      *std::find_if(slots_.begin(), slots_.end(), [](const IoSlot& candidate) {
        return candidate.free;
      });
  slot.free = false;
  slot.transfer = transfer;
  slot.block = transfer->next_block++;
  ++transfer->blocks_under_way;
  ++transfer->extent->under_way;
  ++under_way_;
  try {
    start_block(slot);
  } catch (const std::exception& error) {
    transfer->fail(error.what());
    end_block(slot);
  }
  return true;
}

void BlockPipeline::start_block(IoSlot& slot) {
  Transfer& transfer = *slot.transfer;
  FileExtent& extent = *transfer.extent;
  const int64_t begin = slot.block * kBlockBytes;
  slot.payload = std::min(kBlockBytes, extent.bytes - begin);
  slot.attempts = 0;
  const int64_t io_bytes =
      runtime::round_up(slot.payload, ScratchFile::kAlignment);
  const at::Tensor part = transfer.bytes.narrow(0, begin, slot.payload);
  auto& checksum = extent.checksums[static_cast<size_t>(slot.block)];

  if (slot.delivered) {
    slot.delivered->synchronize();
    slot.delivered.reset();
  }
  slot.data =
      reinterpret_cast<std::byte*>(transfer.stream ? nullptr : part.data_ptr());
  const bool is_aligned =
      slot.data != nullptr && io_bytes == slot.payload &&
      reinterpret_cast<uintptr_t>(slot.data) % ScratchFile::kAlignment == 0;
  if (!is_aligned) {
    slot.data = static_cast<std::byte*>(slot.buffer.data_ptr());
  }
  if (!transfer.is_write && !checksum) {
    std::memset(slot.data, 0, static_cast<size_t>(slot.payload));
    deliver(slot);
    end_block(slot);
    return;
  }
  if (transfer.is_write) {
    if (!is_aligned) {
      // On the stream that made the tensor.
      const c10::OptionalStreamGuard guard(transfer.stream);
      runtime::begin_copy(slot.buffer.narrow(0, 0, slot.payload), part).wait();
      std::memset(
          slot.data + slot.payload,
          0,
          static_cast<size_t>(io_bytes - slot.payload));
    }
    checksum = hash_of(slot.data, slot.payload);
  }
  slot.operation = {
      transfer.is_write,
      file_.fd(),
      slot.data,
      io_bytes,
      extent.offset + begin};
  submit(slot);
}

void BlockPipeline::submit(const IoSlot& slot) {
  queue_->submit(slot.operation, static_cast<uint64_t>(&slot - slots_.data()));
}

std::string BlockPipeline::describe(
    const IoSlot& slot,
    const std::string& label) const {
  return formatted(
      "memory.nvme_path: {}{}' at offset {} of '{}' failed: {} The training state is no longer complete: resume from the last checkpoint.",
      slot.operation.is_write ? "writing '" : "reading '",
      slot.transfer->extent->name,
      slot.operation.offset,
      file_.path(),
      label);
}

void BlockPipeline::finish_block(IoSlot& slot, int64_t result) {
  IoOperation& operation = slot.operation;
  result = calls_.result_of(operation, result);
  Transfer& transfer = *slot.transfer;
  const auto again = [&] {
    if (++slot.attempts > kMaxAttempts) {
      return false;
    }
    try {
      submit(slot);
    } catch (const std::exception& error) {
      transfer.fail(error.what());
      end_block(slot);
    }
    return true;
  };
  if (result == -EINVAL && file_.is_direct()) {
    file_.use_buffers(EINVAL);
    if (again()) {
      return;
    }
  } else if ((result == -EINTR || result == -EAGAIN) && again()) {
    return;
  }
  if (result < 0) {
    const int code = static_cast<int>(-result);
    transfer.fail(describe(
        slot,
        runtime::detail::errno_text(code) + "; " +
            runtime::detail::errno_remedy(code) + "."));
  } else if (result < operation.bytes) {
    // Bytes that were moved are kept up to a boundary at which O_DIRECT can
    // continue.
    const int64_t kept =
        result / ScratchFile::kAlignment * ScratchFile::kAlignment;
    operation.data += kept;
    operation.offset += kept;
    operation.bytes -= kept;
    if (result > 0 && again()) {
      return;
    }
    transfer.fail(describe(
        slot,
        formatted(
            "only {} of {} bytes were transferred; was the file truncated?",
            result,
            operation.bytes + kept)));
  } else if (
      !transfer.is_write &&
      hash_of(slot.data, slot.payload) !=
          transfer.extent->checksums[static_cast<size_t>(slot.block)]) {
    transfer.fail(describe(
        slot,
        "the checksum differs from that of the data that was written there; check the disk, and that nothing else writes to it."));
  } else if (!transfer.is_write) {
    try {
      deliver(slot);
    } catch (const std::exception& error) {
      transfer.fail(error.what());
    }
  }
  end_block(slot);
}

/// Copies a block that was read to its place.
void BlockPipeline::deliver(IoSlot& slot) {
  Transfer& transfer = *slot.transfer;
  const auto* local = static_cast<std::byte*>(slot.buffer.data_ptr());
  if (slot.data != local) {
    return; // it was read in place
  }
  const at::Tensor from = slot.buffer.narrow(0, 0, slot.payload);
  const at::Tensor into =
      transfer.bytes.narrow(0, slot.block * kBlockBytes, slot.payload);
  const c10::OptionalStreamGuard guard(transfer.stream);
  into.copy_(from, /*non_blocking=*/true);
  if (transfer.stream) {
    slot.delivered.emplace(transfer.stream->device_type());
    slot.delivered->record(*transfer.stream);
    transfer.last_copy.emplace(transfer.stream->device_type());
    transfer.last_copy->record(*transfer.stream);
  }
}

void BlockPipeline::end_block(IoSlot& slot) {
  const auto transfer = std::exchange(slot.transfer, nullptr);
  slot.free = true;
  --under_way_;
  --transfer->extent->under_way;
  --transfer->blocks_under_way;
  end_if_done(transfer);
}

void BlockPipeline::end_if_done(const std::shared_ptr<Transfer>& transfer) {
  if (transfer == current_ || transfer->blocks_under_way > 0) {
    return; // more of its blocks are to be begun, or to come
  }
  if (transfer->failure.empty()) {
    transfer->done.set_value();
  } else {
    transfer->done.set_exception(
        std::make_exception_ptr(Error(transfer->failure)));
  }
}

} // namespace tessera::offload
