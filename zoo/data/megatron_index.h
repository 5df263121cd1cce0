// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MegatronIndex` is the .idx file beside a .bin file of tokens, as
// Megatron-LM's IndexedDataset has it.

#include "tessera/zoo/data/token_file.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace tessera::zoo {

/// Little-endian: "MMIDIDX\0\0", uint64 version 1, uint8 code of the token
/// type, uint64 number of sequences, uint64 number of documents + 1; then per
/// sequence an int32 length, per sequence an int64 position in bytes, and the
/// int64 number of each document's first sequence, with their end.
struct MegatronIndex {
  TokenType type = TokenType::kUint16;
  /// Where documents begin, in tokens, and the end: one more than documents.
  std::vector<int64_t> begins;
};

/// Whether the file begins as an index does.
bool is_megatron_index(const std::filesystem::path& path);

/// @throws tessera::Error naming file, place, value and remedy if the file is
///     truncated, of another version, has a type that is none of token ids, or
///     says of sequences and documents what cannot be.
MegatronIndex read_megatron_index(const std::filesystem::path& path);

/// Writes the index of documents of one sequence each, one after the other.
/// @throws tessera::Error if it cannot be written.
void write_megatron_index(
    const std::filesystem::path& path,
    TokenType type,
    std::span<const int32_t> lengths);

} // namespace tessera::zoo
