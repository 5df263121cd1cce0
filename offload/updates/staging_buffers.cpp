// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/staging_buffers.h"

#include "tessera/runtime/memory/tensor_bytes.h"

#include <algorithm>
#include <utility>

namespace tessera::offload {

namespace {

constexpr const char* kName = "optimizer state that is being updated";

} // namespace

int64_t StagingBuffers::Buffer::bytes_for(int64_t numel, at::ScalarType dtype) {
  return HostMemory::rounded(runtime::bytes_of(numel, dtype));
}

at::Tensor StagingBuffers::Buffer::place(int64_t numel, at::ScalarType dtype) {
  const int64_t bytes = runtime::bytes_of(numel, dtype);
  const at::Tensor region = memory_.narrow(0, used_, bytes).view(dtype);
  used_ += bytes_for(numel, dtype);
  return region;
}

void StagingBuffers::need(int64_t bytes) {
  buffer_bytes_ = std::max(buffer_bytes_, HostMemory::rounded(bytes));
  users_ += bytes > 0 ? 1 : 0;
}

int64_t StagingBuffers::bytes() const {
  return std::min(users_, kBuffers) * buffer_bytes_;
}

void StagingBuffers::allocate(HostMemory& memory) {
  memory_ = &memory;
  for (int64_t i = 0; i < std::min(users_, kBuffers); ++i) {
    auto buffer = std::make_shared<Buffer>();
    buffer->memory_ =
        memory.allocate(kName, MemoryPurpose::kStaging, buffer_bytes_);
    idle_.push_back(std::move(buffer));
  }
}

std::shared_ptr<StagingBuffers::Buffer> StagingBuffers::take(int64_t bytes) {
  std::shared_ptr<Buffer> buffer;
  if (idle_.empty()) {
    buffer = std::make_shared<Buffer>();
    buffer->memory_ = memory_->allocate(kName, MemoryPurpose::kStaging, bytes);
    buffer->is_extra_ = true;
    return buffer;
  }
  buffer = std::move(idle_.front());
  idle_.pop_front();
  runtime::wait_all(buffer->leaving_);
  buffer->used_ = 0;
  return buffer;
}

void StagingBuffers::give_back(
    std::shared_ptr<Buffer> buffer,
    std::vector<runtime::PendingTransfer> leaving) {
  buffer->leaving_ = std::move(leaving);
  if (!buffer->is_extra_) {
    idle_.push_back(std::move(buffer));
  }
}

} // namespace tessera::offload
