// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random numbers that depend on what is computed, not on which ranks compute
// it.
//
// [Note: random keys] A training step draws from LibTorch's default generators
// in the order in which a rank computes. Under pipelining that order differs
// from one rank's: a stage knows nothing of what the stages before it have
// drawn. So every micro-batch has a key, which seeds the generators, and every
// layer has a number, which seeds them anew from the micro-batch's seed,
// wherever they stand. What a layer draws then is a function of (seed of the
// run, step, micro-batch, layer).
//
// The key is kept nowhere but in the seed of the generators, which is part of
// their state. So whoever keeps and restores that state, as the recomputation
// of checkpointed blocks does, has the key with it, even when the next
// micro-batches have begun meanwhile. 24 bits of the seed are a mark: a
// generator without it was seeded by somebody else, and layers leave it alone.

#include "tessera/sharding/parallel/generator_scope.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// Of the numbers drawn in one micro-batch.
struct RandomKey {
  uint64_t seed = 0; ///< of the run
  int64_t step = 0; ///< of the optimizer
  /// Among all micro-batches of the step, over all data-parallel ranks and
  /// accumulation: ranks that divide a model have the same one.
  int64_t micro_batch = 0;
};

/// While it lives, the default generators of the CPU and of `device` are those
/// of the key; afterwards as before. Put it around the forward of a
/// micro-batch, on every rank and pipeline stage. Takes some microseconds; does
/// not synchronise. Not thread-safe: generators belong to the process.
class RandomKeyScope {
 public:
  RandomKeyScope(const RandomKey& key, at::Device device);

 private:
  GeneratorScope cpu_;
  GeneratorScope device_;
};

/// Inside of a RandomKeyScope: while it lives, the generators are those of the
/// key and of `layer`. Outside of one, or without a number, nothing happens.
/// What draws in a model outside of numbered layers is to come first in it, or
/// to have a number of its own.
class RandomLayerScope {
 public:
  /// @param layer counted over the whole model, not over a pipeline stage.
  RandomLayerScope(std::optional<int64_t> layer, at::Device device);

 private:
  GeneratorScope cpu_;
  GeneratorScope device_;
};

} // namespace tessera
