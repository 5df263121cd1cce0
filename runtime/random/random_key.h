// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RandomKeyScope` makes random numbers depend on what is computed, not on
// which ranks compute it.
//
// [Note: random keys] A training step draws from LibTorch's default generators
// in the order in which a rank computes. With pipeline parallelism that order
// differs from that of a single rank: a pipeline stage does not know what
// earlier pipeline stages have drawn. So every micro-batch has a key, which
// seeds the generators, and every layer has a number, which reseeds them from
// the seed of the micro-batch. The random numbers of a layer are thus a
// function of (seed of the run, step, micro-batch, layer).
//
// The key is kept only in the seed of the generators, which is part of their
// state. So code that saves and restores that state, such as the recomputation
// of checkpointed blocks, also restores the key, even if the next micro-batches
// have begun in the meantime. 24 bits of the seed are a mark: layers do not
// reseed a generator without it, because it was not seeded from a key.

#include "tessera/runtime/random/generator_scope.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// Identifies the random numbers of one micro-batch.
struct RandomKey {
  uint64_t seed = 0; ///< of the run
  int64_t step = 0; ///< optimizer step
  /// Index among all micro-batches of the step, over all data-parallel ranks
  /// and accumulation; equal on all ranks that divide one model replica.
  int64_t micro_batch = 0;
};

/// While it is alive, the default generators of the CPU and of `device` are
/// seeded from the key; afterwards their previous state is restored. Use it
/// around the forward of a micro-batch, on every rank and pipeline stage. Takes
/// a few microseconds; does not synchronize. Not thread-safe: generators are
/// per process.
class RandomKeyScope {
 public:
  RandomKeyScope(const RandomKey& key, at::Device device);
  ~RandomKeyScope();
  RandomKeyScope(const RandomKeyScope&) = delete;
  RandomKeyScope& operator=(const RandomKeyScope&) = delete;

 private:
  std::optional<RandomKey> before_;
  runtime::GeneratorScope cpu_;
  runtime::GeneratorScope device_;
};

/// The key of the innermost RandomKeyScope that is alive; nothing outside of
/// all of them, also where a backward recomputes what was in one.
std::optional<RandomKey> current_random_key();

/// A number in [0, 1) that depends on the seed of the run, the step and
/// `number` alone: it is the same in all micro-batches and on all ranks.
double uniform_of_step(const RandomKey& key, int64_t number);

/// Inside a RandomKeyScope, seeds the generators from the key and `layer` while
/// it is alive. Outside of one, or without a number, it does nothing. Code that
/// draws random numbers outside of numbered layers must run first in the model
/// or have a number of its own.
class RandomLayerScope {
 public:
  /// @param layer number in the whole model, not in a pipeline stage.
  RandomLayerScope(std::optional<int64_t> layer, at::Device device);

 private:
  runtime::GeneratorScope cpu_;
  runtime::GeneratorScope device_;
};

} // namespace tessera
