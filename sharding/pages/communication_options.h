// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CommunicationOptions` say in how many bits ranks send shards and gradients.

#include <cstdint>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// How values are sent. All but kNone send blocks of elements with a float32
/// scale each, which maps the block's largest magnitude to the largest code.
enum class Compression {
  kNone, ///< as they are
  kInt8,
  kInt4,
  kFp8, ///< e4m3
};

/// Quantized communication (ZeRO++, arXiv:2306.10209), for groups of float32,
/// bfloat16 or float16 that are divided over ranks; others are sent as they
/// are. A module is left out by ModuleOptions::full_precision. Shards, master
/// weights and optimizer state stay exact.
struct CommunicationOptions {
  /// Of shards, when a group is unsharded (qwZ). Operators see the rounded
  /// weights, whose bits are the same on all ranks. Engine::gather(),
  /// checkpoints and exports read the exact ones.
  Compression gather = Compression::kNone;
  /// Of gradients (qgZ): each rank sends every other one its part of them, and
  /// the receiver adds up in float32. With ShardingOptions::shard_ranks, the
  /// sum over the replicas is sent so too.
  Compression reduce = Compression::kNone;
  /// Elements with one scale; a power of two.
  int64_t block_elements = 256;
};

void visit_fields(runtime::OptionFields& fields, CommunicationOptions& options);

/// @throws tessera::Error naming the option, its value and the values allowed.
void check(const CommunicationOptions& options);

} // namespace tessera
