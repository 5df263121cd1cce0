// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/exchange_operations.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/check_length.h"
#include "tessera/sharding/collectives/linear_function.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/accumulate.h>

#include <numeric>
#include <string>

namespace tessera::sharding {

namespace {

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

std::string name_of(const Communicator& group) {
  return "all-to-all in the group '" + group.name() + "'";
}

at::Tensor parts_exchanged(
    const at::Tensor& part,
    int64_t parts_dim,
    const DimSplit& parts,
    int64_t full_dim,
    const DimSplit& full,
    Communicator& group) {
  const int local = group.rank();
  const auto sizes_from = [&](int rank) {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[static_cast<size_t>(full_dim)] = full.length(local);
    sizes[static_cast<size_t>(parts_dim)] = parts.length(rank);
    return sizes;
  };
  AllToAllBlocks blocks;
  std::vector<at::Tensor> sent;
  for (int rank = 0; rank < group.size(); ++rank) {
    sent.push_back(
        part.narrow(full_dim, full.begin(rank), full.length(rank)).flatten());
    blocks.sent.push_back(sent.back().numel());
    blocks.taken.push_back(c10::multiply_integers(sizes_from(rank)));
  }
  const at::Tensor input = at::cat(sent);
  const at::Tensor output = at::empty(
      {std::accumulate(blocks.taken.begin(), blocks.taken.end(), int64_t{0})},
      part.options());
  const std::string label = name_of(group);
  if (parts.is_even() && full.is_even()) {
    group.all_to_all(output, input, label).wait();
  } else {
    group.all_to_all(output, input, blocks, label).wait();
  }
  std::vector<at::Tensor> taken = output.split(blocks.taken);
  for (int rank = 0; rank < group.size(); ++rank) {
    at::Tensor& block = taken[static_cast<size_t>(rank)];
    block = block.view(sizes_from(rank));
  }
  return at::cat(taken, parts_dim);
}

at::Tensor rows_exchanged(
    const at::Tensor& rows,
    const RowCounts& exchange,
    Communicator& group) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = 1;
  const int64_t width = c10::multiply_integers(sizes);
  sizes[0] = sum_of(exchange.taken);
  const at::Tensor result = at::empty(sizes, rows.options());
  AllToAllBlocks blocks{exchange.taken, exchange.sent};
  for (auto* lengths : {&blocks.taken, &blocks.sent}) {
    for (int64_t& length : *lengths) {
      length *= width;
    }
  }
  group.all_to_all(result, rows.contiguous(), blocks, name_of(group)).wait();
  return result;
}

} // namespace

at::Tensor all_to_all_parts(
    const at::Tensor& part,
    int64_t parts_dim,
    const DimSplit& parts,
    int64_t full_dim,
    const DimSplit& full,
    Communicator& group) {
  check_length(
      part, parts_dim, parts.length(group.rank()), "all_to_all_parts", group);
  check_length(part, full_dim, full.size(), "all_to_all_parts", group);
  if (group.size() == 1) {
    return part;
  }
  const int64_t from = c10::maybe_wrap_dim(parts_dim, part.dim());
  const int64_t to = c10::maybe_wrap_dim(full_dim, part.dim());
  return apply_linear(
      part,
      [&group, from, parts, to, full](const at::Tensor& tensor) {
        return parts_exchanged(tensor, from, parts, to, full, group);
      },
      [&group, from, parts, to, full](const at::Tensor& gradient) {
        return parts_exchanged(gradient, to, full, from, parts, group);
      });
}

at::Tensor all_to_all_rows(
    const at::Tensor& rows,
    const RowCounts& exchange,
    Communicator& group) {
  const int64_t sent = sum_of(exchange.sent);
  TESSERA_CHECK(
      rows.dim() >= 1 && rows.size(0) == sent,
      "all_to_all_rows: a tensor of sizes {}, but {} rows to send",
      rows.sizes(),
      sent);
  if (group.size() == 1) {
    return rows;
  }
  return apply_linear(
      rows,
      [&group, exchange](const at::Tensor& tensor) {
        return rows_exchanged(tensor, exchange, group);
      },
      [&group, back = RowCounts{exchange.taken, exchange.sent}](
          const at::Tensor& gradient) {
        return rows_exchanged(gradient, back, group);
      });
}

} // namespace tessera::sharding
