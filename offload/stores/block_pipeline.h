// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BlockPipeline` moves tensors to and from the blocks of a file, many at a
// time, and verifies every byte that it reads.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/stores/io_queue.h"
#include "tessera/offload/stores/scratch_file.h"
#include "tessera/runtime/memory/pending_transfer.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tessera::offload {

/// A range of the file that holds one tensor. Only the pipeline's thread
/// accesses the members that are not constant.
struct FileExtent {
  std::string name;
  int64_t offset = 0;
  int64_t bytes = 0;
  /// The checksum of every block as last written; nothing: never written,
  /// zeros.
  std::vector<std::optional<uint64_t>> checksums;
  int under_way = 0; ///< blocks
  std::string failure; ///< why the contents are lost; empty: intact
};

/// [Note: checksums of blocks] This process keeps 8 bytes in memory for every
/// block of 256 KiB: the XXH3 of what was last written there. A block that
/// reads back differently (damaged, truncated and grown again, from an older
/// write) is an error. The cost is one pass over the bytes on the pipeline's
/// thread, which is faster than any disk.
///
/// A thread processes transfers in the order in which they were begun, with up
/// to kDepth blocks in flight. CPU tensors aligned to ScratchFile::kAlignment
/// are read and written in place; all others, and those on a device, block by
/// block through the pipeline's own memory.
class BlockPipeline {
 public:
  static constexpr int64_t kBlockBytes = int64_t{256} << 10;
  static constexpr int64_t kDepth = 16;

  /// All arguments must outlive the pipeline. If io_uring is forbidden, threads
  /// replace it, which is logged.
  BlockPipeline(ScratchFile& file, HostMemory& memory, const IoCalls& calls);
  /// Completes what was begun.
  ~BlockPipeline();
  BlockPipeline(const BlockPipeline&) = delete;
  BlockPipeline& operator=(const BlockPipeline&) = delete;

  /// Begins to move all of `tensor` (extent->bytes, contiguous).
  runtime::PendingTransfer begin(
      std::shared_ptr<FileExtent> extent,
      const at::Tensor& tensor,
      bool is_write);

  /// Bytes of its own memory.
  static constexpr int64_t staging_bytes() {
    return kBlockBytes * kDepth;
  }

 private:
  class Transfer;
  /// The state of a block in flight.
  struct IoSlot {
    std::shared_ptr<Transfer> transfer;
    at::Tensor buffer; ///< [kBlockBytes] uint8
    std::optional<c10::Event> delivered; ///< after the copy to a device
    int64_t block = 0;
    IoOperation operation; ///< for the bytes still missing
    std::byte* data = nullptr;
    int64_t payload = 0; ///< bytes of the tensor
    int attempts = 0;
    bool free = true;
  };

  void run() noexcept;
  bool submit_next();
  std::shared_ptr<Transfer> next_transfer();
  void start_block(IoSlot& slot);
  void submit(const IoSlot& slot);
  void finish_block(IoSlot& slot, int64_t result);
  void deliver(IoSlot& slot);
  void end_block(IoSlot& slot);
  void end_if_done(const std::shared_ptr<Transfer>& transfer);
  std::string describe(const IoSlot& slot, const std::string& label) const;

  ScratchFile& file_;
  const IoCalls& calls_;
  c10::Device device_;
  std::unique_ptr<IoQueue> queue_;
  std::vector<IoSlot> slots_;
  int under_way_ = 0;
  std::shared_ptr<Transfer> current_; ///< it has blocks that are not begun

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Transfer>> waiting_;
  bool ending_ = false;
  std::thread thread_;
};

} // namespace tessera::offload
