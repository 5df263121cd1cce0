// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/host_memory.h"

#include "tessera/offload/stores/near_memory.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/memory/host_heap.h"
#include "tessera/runtime/memory/host_pinning.h"
#include "tessera/runtime/memory/populate_memory.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <cerrno>
#include <limits>

namespace tessera::offload {

HostMemory::HostMemory(const HostMemoryOptions& options, MemoryLedger& ledger)
    : options_(options),
      ledger_(ledger),
      used_(std::make_shared<std::atomic<int64_t>>(0)),
      pins_(!options.device.is_cpu()) {}

int64_t HostMemory::free_bytes() const {
  return options_.limit_bytes ? *options_.limit_bytes - *used_
                              : std::numeric_limits<int64_t>::max();
}

bool HostMemory::pin(void* data, int64_t bytes) {
  if (!pins_) {
    return false;
  }
  const runtime::HostPinning& pinning = runtime::host_pinning();
  std::string refusal = "the CUDA backend is not loaded";
  if (pinning.pin != nullptr) {
    const auto size = static_cast<size_t>(bytes);
    runtime::populate_memory(data, size, runtime::update_pool());
    refusal = pinning.pin(data, size);
  }
  if (!refusal.empty()) {
    log_warning(
        "host memory cannot be pinned ({}); copies between it and the device will be slower. Raise the limit of locked memory (ulimit -l) or lower memory.host_bytes.",
        refusal);
    pins_ = false;
  }
  return refusal.empty();
}

at::Tensor HostMemory::allocate(
    const std::string& name,
    MemoryPurpose purpose,
    int64_t bytes) {
  const int64_t size = rounded(bytes);
  TESSERA_CHECK(
      size <= free_bytes(),
      "host memory for {}: {} bytes are needed, but of memory.host_bytes ({}) only {} are left. Raise memory.host_bytes, set memory.nvme_path, or use more ranks.",
      name,
      size,
      options_.limit_bytes.value_or(0),
      free_bytes());
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (size == 0) {
    return at::from_blob(nullptr, {0}, options);
  }
  if (const auto heap = runtime::dry_allocation().heap) {
    auto block = std::make_shared<c10::DataPtr>(
        heap->allocate_uncounted(static_cast<size_t>(size)));
    *used_ += size;
    return at::from_blob(
        block->get(),
        {bytes},
        [size,
         block,
         used = used_,
         counted = ledger_.count(purpose, MemoryTier::kHost, size)](void*) {
          *used -= size;
        },
        options);
  }
  void* data = ::mmap(
      nullptr,
      static_cast<size_t>(size),
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  TESSERA_CHECK(
      data != MAP_FAILED,
      "host memory for {}: the system refused {} bytes: {}. Set memory.host_bytes to the free memory of the machine, and memory.nvme_path for the rest.",
      name,
      size,
      runtime::detail::errno_text(errno));
  runtime::prefer_huge_pages(data, static_cast<size_t>(size));
  prefer_near_memory(data, static_cast<size_t>(size), options_.device);
  const bool is_pinned = pin(data, size);
  *used_ += size;
  auto counted = ledger_.count(purpose, MemoryTier::kHost, size);
  return at::from_blob(
      data,
      {bytes},
      [size, is_pinned, used = used_, counted](void* mapped) {
        if (is_pinned) {
          runtime::host_pinning().unpin(mapped);
        }
        ::munmap(mapped, static_cast<size_t>(size));
        *used -= size;
      },
      options);
}

} // namespace tessera::offload
