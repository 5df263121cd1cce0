// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes of memory as Python sees them: dicts by tier and purpose.

#include "tessera/runtime/memory/memory_ledger.h"

#include <cstdint>
#include <map>
#include <string>

namespace tessera::python {

using NamedBytes = std::map<std::string, int64_t>;

/// Bytes by purpose, without those that are 0.
inline NamedBytes bytes_by_purpose(const MemoryBytes& bytes) {
  NamedBytes result;
  for (size_t purpose = 0; purpose < kMemoryPurposeCount; ++purpose) {
    if (bytes[purpose] != 0) {
      result[name_of(static_cast<MemoryPurpose>(purpose))] = bytes[purpose];
    }
  }
  return result;
}

/// Bytes by tier and purpose, without those that are 0.
/// @param bytes_of a function of a MemoryTier.
template <typename BytesOf>
std::map<std::string, NamedBytes> bytes_by_tier(const BytesOf& bytes_of) {
  std::map<std::string, NamedBytes> result;
  for (size_t i = 0; i < kMemoryTierCount; ++i) {
    const auto tier = static_cast<MemoryTier>(i);
    NamedBytes bytes = bytes_by_purpose(bytes_of(tier));
    if (!bytes.empty()) {
      result[name_of(tier)] = std::move(bytes);
    }
  }
  return result;
}

} // namespace tessera::python
