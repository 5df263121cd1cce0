// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/memory_ledger.h"

#include "tessera/runtime/memory/host_heap.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <numeric>

namespace tessera {

const char* name_of(MemoryPurpose purpose) {
  switch (purpose) {
    case MemoryPurpose::kParameters:
      return "parameters";
    case MemoryPurpose::kGradients:
      return "gradients";
    case MemoryPurpose::kOptimizerState:
      return "optimizer state";
    case MemoryPurpose::kGatherSlots:
      return "gather slots";
    case MemoryPurpose::kReduceSlots:
      return "reduce slots";
  }
  return "unknown";
}

int64_t total_bytes(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

std::string memory_table(const std::string& title, const MemoryBytes& bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  std::string table = title;
  const auto add_row = [&table](const char* name, int64_t count) {
    char row[80];
    std::snprintf(
        row,
        sizeof(row),
        "\n  %-16s %12.2f MiB",
        name,
        static_cast<double>(count) / kMiB);
    table += row;
  };
  for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
    add_row(name_of(static_cast<MemoryPurpose>(i)), bytes[i]);
  }
  add_row("total", total_bytes(bytes));
  return table;
}

MemoryLedger::MemoryLedger() : counters_(std::make_shared<Counters>()) {}

at::Tensor MemoryLedger::allocate(
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype,
    at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor owner = at::empty({numel}, options);
  const auto bytes = static_cast<int64_t>(owner.nbytes());
  if (device.is_cpu() && bytes > 0) {
    prefer_huge_pages(owner.mutable_data_ptr(), owner.nbytes());
  }
  auto& live = counters_->live[static_cast<size_t>(purpose)];
  live += bytes;
  // The deleter holds the counters, so that a buffer may outlive the ledger.
  return at::from_blob(
      owner.data_ptr(),
      {numel},
      [owner, counters = counters_, &live, bytes](void*) { live -= bytes; },
      options);
}

at::Tensor MemoryLedger::allocate_zeros(
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype,
    at::Device device) {
  return allocate(purpose, numel, dtype, device).zero_();
}

MemoryBytes MemoryLedger::live_bytes() const {
  MemoryBytes bytes{};
  for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
    bytes[i] = counters_->live[i];
  }
  return bytes;
}

} // namespace tessera
