// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Recomputation` says which parts of a model keep little for backward, and
// compute it again there.

#include <cstdint>

namespace tessera::zoo {

/// What Model::recompute() takes. The numbers do not depend on it.
struct Recomputation {
  /// The first layers of the whole model keep their inputs only.
  int64_t layers = 0;
  /// Attention of the other layers keeps queries, keys and values only; see
  /// recomputed_attend().
  bool attention = false;
  /// Each tensor-parallel rank keeps its part of the inputs of `layers`, and
  /// they are gathered in backward (ZeRO-R, arXiv:1910.02054, 6.1). No effect
  /// under sequence parallelism, which has them divided already.
  bool divide_inputs = false;
};

} // namespace tessera::zoo
