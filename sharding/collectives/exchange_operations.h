// SPDX-License-Identifier: Apache-2.0
#pragma once
// Differentiable all-to-all operators; the gradient of each is the reverse
// exchange. See [Note: collectives and their gradients].

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// Exchanges parts of dimension `parts_dim` for parts of dimension `full_dim`:
/// the argument has a part of the former and all of the latter, the result a
/// part of the latter and all of the former. A rank sends (n - 1) / n of its
/// elements.
/// @throws tessera::Error when the sizes of the tensor do not match the splits.
at::Tensor all_to_all_parts(
    const at::Tensor& part,
    int64_t parts_dim,
    const DimSplit& parts,
    int64_t full_dim,
    const DimSplit& full,
    Communicator& group);

/// How many rows of a tensor go to and come from each rank in an all-to-all.
struct RowCounts {
  std::vector<int64_t> sent; ///< to each rank
  std::vector<int64_t> taken; ///< from each rank
};

/// Exchanges rows [sent rows, ...], ordered by destination rank, for rows
/// [taken rows, ...], ordered by source rank. Any count may be 0, also all
/// counts of a rank; all ranks take part in backward nevertheless if the
/// argument requires a gradient.
/// @throws tessera::Error when the number of rows is not the number of sent
///   rows.
at::Tensor all_to_all_rows(
    const at::Tensor& rows,
    const RowCounts& exchange,
    Communicator& group);

} // namespace tessera::sharding
