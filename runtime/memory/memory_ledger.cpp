// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/memory_ledger.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/host_heap.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

namespace tessera {

const char* name_of(MemoryTier tier) {
  switch (tier) {
    case MemoryTier::kDevice:
      return "device";
    case MemoryTier::kHost:
      return "host";
    case MemoryTier::kNvme:
      return "nvme";
  }
  return "unknown";
}

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
    case MemoryPurpose::kStaging:
      return "staging";
    case MemoryPurpose::kActivations:
      return "activations";
    case MemoryPurpose::kSnapshot:
      return "snapshot";
    case MemoryPurpose::kLibraries:
      return "CUDA, libraries";
  }
  return "unknown";
}

int64_t total_bytes(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

namespace {

/// Appends a row per purpose and one for the sum, with a column for each of
/// `columns`.
void append_rows(std::string& table, const std::vector<MemoryBytes>& columns) {
  const auto add_row = [&](const char* name, const auto& bytes_of) {
    char text[64];
    std::snprintf(text, sizeof(text), "\n  %-16s", name);
    table += text;
    for (const MemoryBytes& column : columns) {
      std::snprintf(
          text,
          sizeof(text),
          " %16s",
          runtime::size_text(bytes_of(column)).c_str());
      table += text;
    }
  };
  for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
    // Purposes that only some runs have get no row in the others.
    const auto purpose = static_cast<MemoryPurpose>(i);
    const bool is_used =
        std::any_of(columns.begin(), columns.end(), [i](const auto& column) {
          return column[i] != 0;
        });
    if (is_used || purpose < MemoryPurpose::kStaging) {
      add_row(name_of(purpose), [i](const auto& column) { return column[i]; });
    }
  }
  add_row("total", [](const auto& column) { return total_bytes(column); });
}

} // namespace

std::string memory_table(const std::string& title, const MemoryBytes& bytes) {
  std::string table = title;
  append_rows(table, {bytes});
  return table;
}

std::string memory_table(const std::string& title, const TierBytes& bytes) {
  const auto is_used = [](const MemoryBytes& column) {
    return total_bytes(column) != 0;
  };
  if (std::none_of(bytes.begin() + 1, bytes.end(), is_used)) {
    return memory_table(title, bytes.front());
  }
  std::string table = title + "\n" + std::string(18, ' ');
  for (size_t t = 0; t < kMemoryTierCount; ++t) {
    char text[32];
    std::snprintf(
        text, sizeof(text), " %16s", name_of(static_cast<MemoryTier>(t)));
    table += text;
  }
  append_rows(table, {bytes.begin(), bytes.end()});
  return table;
}

MemoryLedger::MemoryLedger() : counters_(std::make_shared<Counters>()) {}

at::Tensor MemoryLedger::allocate(
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype,
    at::Device device,
    MemoryTier tier) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  // As long as the memory exists: who watches the allocator asks the ledger
  // whose it is.
  std::shared_ptr<void> counted = count(purpose, tier, bytes);
  const at::Tensor owner = [&] {
    try {
      return at::empty({numel}, options);
    } catch (c10::Error& error) {
      error.add_context(formatted(
          "{} of {} on the {}",
          runtime::size_text(bytes),
          name_of(purpose),
          name_of(tier)));
      throw;
    }
  }();
  if (device.is_cpu() && bytes > 0) {
    runtime::prefer_huge_pages(owner.mutable_data_ptr(), owner.nbytes());
  }
  // The deleter holds the counters, so that a buffer may outlive the ledger.
  return at::from_blob(
      owner.data_ptr(),
      {numel},
      [counted = std::move(counted), owner](void*) {}, // owner goes first
      options,
      // An empty tensor has no address to find its device by.
      owner.device());
}

std::shared_ptr<void> MemoryLedger::count(
    MemoryPurpose purpose,
    MemoryTier tier,
    int64_t bytes) {
  auto& live =
      counters_->live[static_cast<size_t>(tier)][static_cast<size_t>(purpose)];
  live += bytes;
  return {
      nullptr, [counters = counters_, &live, bytes](void*) { live -= bytes; }};
}

at::Tensor MemoryLedger::allocate_zeros(
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype,
    at::Device device,
    MemoryTier tier) {
  return allocate(purpose, numel, dtype, device, tier).zero_();
}

MemoryBytes MemoryLedger::live_bytes(MemoryTier tier) const {
  MemoryBytes bytes{};
  for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
    bytes[i] = counters_->live[static_cast<size_t>(tier)][i];
  }
  return bytes;
}

} // namespace tessera
