// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GatedRows` is the argument of the kernels of gated activations,
// `RotaryHeads` that of the kernel of rotary positions. Plain C++: CUDA sources
// include it.

#include "tessera/runtime/kernels/pack_shard.h"

#include <cstdint>

namespace tessera::runtime {

/// The function of the gate.
enum class GateFunction : int64_t {
  kSilu, ///< x sigmoid(x): SwiGLU
  kGelu, ///< x times the normal distribution function of x: GeGLU
  kTanhGelu, ///< its approximation by tanh (arXiv:1606.08415)
};

/// y = f(gate) up, or the gradients of both. All arrays are contiguous.
struct GatedRows {
  GateFunction function;
  ElementType type; ///< of all arrays; not kFloat64
  const void* gate; ///< [numel]
  const void* up;
  int64_t numel;
  void* y = nullptr; ///< forward only
  const void* gradient = nullptr; ///< backward only, with respect to y
  void* gradient_gate = nullptr; ///< backward only
  void* gradient_up = nullptr;
};

/// Some heads of all tokens; elements of a head are adjacent.
struct HeadRows {
  const void* x;
  void* y;
  int64_t heads;
  /// Elements from one to the next: batch, head, token.
  int64_t x_strides[3];
  int64_t y_strides[3];
};

/// (a, b) to (a cos - b sin, b cos + a sin) for the first 2 * half features of
/// each head, which come in pairs (i, i + half), or (2i, 2i + 1); copies the
/// other features.
struct RotaryHeads {
  ElementType type; ///< of all arrays; not kFloat64
  HeadRows rows[2]; ///< queries and keys
  const void* cosines; ///< [1 or batch, tokens, half], contiguous
  const void* sines;
  int64_t table_stride; ///< elements from one batch to the next; 0: one for all
  int64_t batch;
  int64_t tokens;
  int64_t half;
  int64_t features; ///< of a head
  bool adjacent; ///< pairs (2i, 2i + 1)
  bool inverse; ///< by the negative angle
};

} // namespace tessera::runtime
