// SPDX-License-Identifier: Apache-2.0
#pragma once
// `tied_embedding()` computes an embedding whose weight is also the head's,
// with one dense gradient for both.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct TiedEmbedding {
  at::Tensor output; ///< [..., width]
  /// The weight, to be used by the head. Its gradient and the embedding's are
  /// added before they reach the parameter.
  at::Tensor head_weight; ///< [classes, width]
};

/// embedding(weight, ids) for a weight that the head uses too. Plain LibTorch
/// makes a dense gradient of the weight's size for each of the two uses and
/// adds them; here the embedding's rows are added to the head's gradient at
/// `ids`, and no other rows are touched.
///
/// ```
/// const auto [x, head_weight] = tied_embedding(wte->weight, ids);
/// loss = linear_cross_entropy(blocks(x), head_weight, targets);
/// ```
/// @param weight [classes, width], floating point; may be sharded.
/// @param ids int64, any shape.
/// @param padding_idx rows of this id get no gradient from the embedding; -1
///   for none.
/// @throws tessera::Error on other shapes or dtypes.
///
/// Has no second derivative.
TiedEmbedding tied_embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    int64_t padding_idx = -1);

} // namespace tessera
