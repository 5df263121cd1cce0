// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/collective_args.h"

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

void CollectiveArgs::check(const at::Tensor& tensor, const char* collective)
    const {
  TESSERA_CHECK(
      tensor.device().type() == device_.type() && tensor.is_contiguous(),
      "{} over {} takes contiguous tensors on {}, but got one of shape {} and strides {} on {}",
      collective,
      transport_,
      device_,
      tensor.sizes(),
      tensor.strides(),
      tensor.device());
}

const at::Tensor& CollectiveArgs::only(
    const std::vector<at::Tensor>& tensors,
    const char* collective) const {
  TESSERA_CHECK(
      tensors.size() == 1,
      "{} over {} takes one tensor, but got {}",
      collective,
      transport_,
      tensors.size());
  check(tensors[0], collective);
  return tensors[0];
}

ReduceKind CollectiveArgs::kind_of(const c10d::ReduceOp& op) const {
  if (op == c10d::ReduceOp::SUM) {
    return ReduceKind::kSum;
  }
  TESSERA_CHECK(
      op == c10d::ReduceOp::MAX,
      "reductions over {} are sums and maxima only; set TESSERA_TRANSPORT=gloo for others",
      transport_);
  return ReduceKind::kMax;
}

void CollectiveArgs::check_parts(
    const char* collective,
    const at::Tensor& full,
    const at::Tensor& part) const {
  check(full, collective);
  check(part, collective);
  TESSERA_CHECK(
      full.numel() == part.numel() * ranks_ &&
          full.scalar_type() == part.scalar_type(),
      "{}: the whole tensor has {} elements of {}; it must be {} times (the number of ranks) the part, which has {} of {}",
      collective,
      full.numel(),
      full.scalar_type(),
      ranks_,
      part.numel(),
      part.scalar_type());
}

std::vector<ByteSpan> CollectiveArgs::equal_spans(int64_t bytes) const {
  std::vector<ByteSpan> spans;
  for (int r = 0; r < ranks_; ++r) {
    spans.push_back({r * bytes, (r + 1) * bytes});
  }
  return spans;
}

std::vector<ByteSpan> CollectiveArgs::row_spans(
    const at::Tensor& tensor,
    const std::vector<int64_t>& rows) const {
  if (rows.empty()) {
    TESSERA_CHECK(
        tensor.numel() % ranks_ == 0,
        "all_to_all: the number of elements of a tensor of sizes {} is not divisible by {} ranks",
        tensor.sizes(),
        ranks_);
    return equal_spans(bytes_in(tensor) / ranks_);
  }
  int64_t total = 0;
  for (const int64_t count : rows) {
    TESSERA_CHECK(count >= 0, "all_to_all: a block has {} rows", count);
    total += count;
  }
  TESSERA_CHECK(
      static_cast<int>(rows.size()) == ranks_ && tensor.dim() > 0 &&
          total == tensor.size(0),
      "all_to_all: {} blocks with {} rows in total, for {} ranks and a tensor of sizes {}",
      rows.size(),
      total,
      ranks_,
      tensor.sizes());
  const int64_t row = total == 0 ? 0 : bytes_in(tensor) / total;
  std::vector<ByteSpan> spans;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    spans.push_back({begin, begin + count * row});
    begin = spans.back().end;
  }
  return spans;
}

CollectiveArgs::Blocks CollectiveArgs::blocks(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::vector<int64_t>& output_splits,
    const std::vector<int64_t>& input_splits) const {
  check(output, "all_to_all");
  check(input, "all_to_all");
  TESSERA_CHECK(
      output.scalar_type() == input.scalar_type() &&
          output_splits.empty() == input_splits.empty(),
      "all_to_all from {} to {}, with {} and {} split sizes; both sides must have the same dtype, and either both or neither must have split sizes",
      input.scalar_type(),
      output.scalar_type(),
      input_splits.size(),
      output_splits.size());
  return {row_spans(output, output_splits), row_spans(input, input_splits)};
}

} // namespace tessera::runtime
