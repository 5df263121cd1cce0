// SPDX-License-Identifier: Apache-2.0
#pragma once
// All-to-alls as operators that autograd knows: each is the other way round in
// backward. See [Note: collectives and their gradients].

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Parts of dimension `whole_dim` in place of parts of `parts_dim`: the
/// argument has a part of the second and all of the first, the result a part of
/// the first and all of the second. A rank sends (n - 1) / n of its elements.
/// @throws tessera::Error when the tensor is not as long as the splits say.
at::Tensor all_to_all_parts(
    const at::Tensor& part,
    int64_t parts_dim,
    const DimSplit& parts,
    int64_t whole_dim,
    const DimSplit& whole,
    Communicator& group);

/// How many rows of a tensor go where in an all-to-all.
struct RowCounts {
  std::vector<int64_t> sent; ///< to each rank
  std::vector<int64_t> taken; ///< from each rank
};

/// Rows [sent rows, ...], those for the first rank first, to rows [taken rows,
/// ...], those from the first rank first. Any number of rows may be 0, on ranks
/// too; all ranks take part in backward nevertheless, if the argument requires
/// a gradient.
/// @throws tessera::Error when the tensor has other than the sent rows.
at::Tensor all_to_all_rows(
    const at::Tensor& rows,
    const RowCounts& exchange,
    Communicator& group);

} // namespace tessera
