// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/nvme_store.h"

#include "tessera/offload/stores/shard_checks.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/tensor_bytes.h"

#include <utility>

namespace tessera::offload {

namespace {

class NvmeShard : public runtime::StoredShard {
 public:
  NvmeShard(
      BlockPipeline& pipeline,
      std::shared_ptr<FileExtent> extent,
      int64_t numel,
      at::ScalarType dtype,
      std::shared_ptr<void> counted)
      : pipeline_(pipeline),
        extent_(std::move(extent)),
        numel_(numel),
        dtype_(dtype),
        counted_(std::move(counted)) {}

  MemoryTier tier() const override {
    return MemoryTier::kNvme;
  }
  int64_t numel() const override {
    return numel_;
  }
  at::ScalarType dtype() const override {
    return dtype_;
  }
  int64_t bytes() const override {
    return ScratchFile::rounded(extent_->bytes);
  }
  at::Tensor in_place() override {
    return {};
  }
  runtime::PendingTransfer read(const at::Tensor& into) override {
    check_shard_transfer(extent_->name, *this, into);
    return pipeline_.begin(extent_, into, /*is_write=*/false);
  }
  runtime::PendingTransfer write(const at::Tensor& from) override {
    check_shard_transfer(extent_->name, *this, from);
    return pipeline_.begin(extent_, from, /*is_write=*/true);
  }

 private:
  BlockPipeline& pipeline_;
  std::shared_ptr<FileExtent> extent_;
  int64_t numel_;
  at::ScalarType dtype_;
  std::shared_ptr<void> counted_;
};

} // namespace

NvmeStore::NvmeStore(
    const NvmeOptions& options,
    HostMemory& memory,
    MemoryLedger& ledger,
    const IoCalls& calls)
    : options_(options),
      ledger_(ledger),
      file_(options.folder, calls),
      pipeline_(file_, memory, calls) {}

std::unique_ptr<runtime::StoredShard> NvmeStore::reserve(
    const std::string& name,
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype) {
  const int64_t needed = ScratchFile::rounded(runtime::bytes_of(numel, dtype));
  TESSERA_CHECK(
      !options_.limit_bytes || file_.bytes() + needed <= *options_.limit_bytes,
      "memory.nvme_bytes: '{}' needs {} bytes, but of the limit ({}) only {} are left. Raise memory.nvme_bytes or use more ranks.",
      name,
      needed,
      options_.limit_bytes.value_or(0),
      options_.limit_bytes.value_or(0) - file_.bytes());
  auto extent = std::make_shared<FileExtent>();
  extent->name = name;
  extent->bytes = runtime::bytes_of(numel, dtype);
  extent->offset = file_.extend(name, extent->bytes);
  extent->checksums.resize(static_cast<size_t>(
      (extent->bytes + BlockPipeline::kBlockBytes - 1) /
      BlockPipeline::kBlockBytes));
  return std::make_unique<NvmeShard>(
      pipeline_,
      std::move(extent),
      numel,
      dtype,
      ledger_.count(purpose, MemoryTier::kNvme, needed));
}

} // namespace tessera::offload
