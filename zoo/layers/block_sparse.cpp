// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/block_sparse.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/masks.h"

#include <torch/types.h>

#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

at::Tensor no_blocks(int64_t blocks, int64_t size) {
  TESSERA_CHECK(
      blocks >= 1 && size >= 1,
      "a layout of {} blocks of {} tokens; there must be a block of a token",
      blocks,
      size);
  return torch::zeros({1, blocks, blocks}, at::kBool);
}

void check_covers(const BlockLayout& layout, int64_t queries, int64_t keys) {
  const int64_t most_queries = layout.seen.size(1) * layout.size;
  const int64_t most_keys = layout.seen.size(2) * layout.size;
  TESSERA_CHECK(
      queries <= most_queries && keys <= most_keys,
      "the layout of blocks is for {} queries and {} keys at most, and there are {} and {}; make one of more blocks",
      most_queries,
      most_keys,
      queries,
      keys);
}

/// Pairs of a head and a query block that see the same number of key blocks.
struct EqualRows {
  std::vector<int64_t> heads; ///< [rows]
  std::vector<int64_t> queries; ///< [rows]
  std::vector<int64_t> keys; ///< [rows * seen], ascending within a row
};

/// Keyed by the number of blocks seen.
using RowsByCount = std::map<int64_t, EqualRows>;

RowsByCount rows_of(const BlockLayout& layout, int64_t heads) {
  const auto seen = layout.seen.accessor<bool, 3>();
  RowsByCount rows;
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t own = layout.seen.size(0) == 1 ? 0 : head;
    for (int64_t query = 0; query < layout.seen.size(1); ++query) {
      std::vector<int64_t> keys;
      for (int64_t key = 0; key < layout.seen.size(2); ++key) {
        if (seen[own][query][key]) {
          keys.push_back(key);
        }
      }
      EqualRows& equal = rows[static_cast<int64_t>(keys.size())];
      equal.heads.push_back(head);
      equal.queries.push_back(query);
      equal.keys.insert(equal.keys.end(), keys.begin(), keys.end());
    }
  }
  return rows;
}

at::Tensor indices(const std::vector<int64_t>& values, const at::Device& to) {
  return torch::tensor(values, at::kLong).to(to);
}

/// One call over the blocks of a layout.
class SparseCall {
 public:
  SparseCall(const AttentionCall& call, const BlockLayout& layout)
      : call_(call),
        size_(layout.size),
        heads_(call.query.size(1)),
        queries_(call.query.size(2)),
        keys_(call.key.size(2)),
        query_blocks_((queries_ + size_ - 1) / size_),
        key_blocks_((keys_ + size_ - 1) / size_),
        query_(blocks_of(call.query, query_blocks_)),
        key_(blocks_of(call.key, key_blocks_)),
        value_(blocks_of(call.value, key_blocks_)) {}

  at::Tensor run(const RowsByCount& rows, const AttentionFunction& function) {
    std::vector<at::Tensor> parts;
    std::vector<int64_t> places; // head * blocks + block, of each row of parts
    for (const auto& [seen, equal] : rows) {
      parts.push_back(attend(equal, seen, function));
      for (size_t i = 0; i < equal.heads.size(); ++i) {
        places.push_back(equal.heads[i] * query_blocks_ + equal.queries[i]);
      }
    }
    const at::Tensor order = indices(places, call_.query.device()).argsort();
    return at::cat(parts, 1)
        .index_select(1, order)
        .unflatten(1, {heads_, query_blocks_})
        .flatten(2, 3)
        .narrow(2, 0, queries_);
  }

 private:
  /// [B, h, S, n] -> [B, h, blocks, size, n].
  at::Tensor blocks_of(const at::Tensor& x, int64_t blocks) const {
    return at::constant_pad_nd(x, {0, 0, 0, blocks * size_ - x.size(2)})
        .unflatten(2, {blocks, size_});
  }

  at::Tensor attend(
      const EqualRows& rows,
      int64_t seen,
      const AttentionFunction& function) const {
    using at::indexing::Slice;
    const at::Device device = call_.query.device();
    const at::Tensor heads = indices(rows.heads, device);
    const at::Tensor queries = indices(rows.queries, device);
    const at::Tensor keys = indices(rows.keys, device).view({-1, seen});
    const int64_t shared = heads_ / call_.key.size(1);
    const at::Tensor kv_heads =
        heads.div(shared, "floor").unsqueeze(1).expand_as(keys);
    AttentionCall part = call_;
    part.query = query_.index({Slice(), heads, queries});
    part.key = key_.index({Slice(), kv_heads, keys}).flatten(2, 3);
    part.value = value_.index({Slice(), kv_heads, keys}).flatten(2, 3);
    part.mask = mask(heads, queries, keys);
    part.causal = false;
    return function(part);
  }

  /// The mask of these rows: broadcast to [B, rows, size, seen * size].
  at::Tensor mask(
      const at::Tensor& heads,
      const at::Tensor& queries,
      const at::Tensor& keys) const {
    const at::Tensor within = torch::arange(size_, keys.options());
    // [rows, size, 1] and [rows, 1, seen * size].
    const at::Tensor query_places =
        (queries.unsqueeze(1) * size_ + within).unsqueeze(2);
    const at::Tensor key_places =
        (keys.unsqueeze(2) * size_ + within).flatten(1).unsqueeze(1);
    at::Tensor allowed = key_places.lt(keys_);
    if (call_.causal) {
      allowed = allowed & key_places.le(query_places);
    }
    if (!call_.mask.defined()) {
      return with_safe_rows(allowed.unsqueeze(0));
    }
    at::Tensor given = call_.mask;
    while (given.dim() < 4) {
      given = given.unsqueeze(0);
    }
    const auto place = [](const at::Tensor& places, int64_t size) {
      return places.clamp_max(size - 1); // 0 where the mask is broadcast
    };
    given = given.index(
        {at::indexing::Slice(),
         place(heads, given.size(1)).view({-1, 1, 1}),
         place(query_places, given.size(2)),
         place(key_places, given.size(3))});
    if (given.scalar_type() == at::kBool) {
      return with_safe_rows(given & allowed.unsqueeze(0));
    }
    return given.masked_fill(
        ~with_safe_rows(allowed.unsqueeze(0)),
        -std::numeric_limits<double>::infinity());
  }

  const AttentionCall& call_;
  int64_t size_;
  int64_t heads_;
  int64_t queries_;
  int64_t keys_;
  int64_t query_blocks_;
  int64_t key_blocks_;
  at::Tensor query_, key_, value_;
};

} // namespace

BlockLayout big_bird_layout(
    int64_t blocks,
    int64_t size,
    const BigBirdOptions& options) {
  TESSERA_CHECK(
      options.window >= 1 && options.window % 2 == 1 && options.global >= 0 &&
          options.random >= 0,
      "a layout with windows of {} blocks, {} global and {} random ones; windows are odd, the others 0 or more",
      options.window,
      options.global,
      options.random);
  BlockLayout layout{size, no_blocks(blocks, size)};
  auto seen = layout.seen.accessor<bool, 3>()[0];
  std::mt19937_64 numbers(options.seed);
  for (int64_t query = 0; query < blocks; ++query) {
    std::vector<int64_t> others;
    for (int64_t key = 0; key < blocks; ++key) {
      seen[query][key] = std::abs(key - query) <= options.window / 2 ||
                         key < options.global || query < options.global;
      if (!seen[query][key]) {
        others.push_back(key);
      }
    }
    for (int64_t i = 0; i < options.random && !others.empty(); ++i) {
      const size_t at = numbers() % others.size();
      seen[query][others[at]] = true;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return layout;
}

BlockLayout fixed_layout(
    int64_t blocks,
    int64_t size,
    int64_t stride,
    int64_t summary,
    bool causal) {
  TESSERA_CHECK(
      summary >= 1 && summary <= stride,
      "a layout with stripes of {} blocks, of which all see {}; that must be from 1 to the stripe",
      stride,
      summary);
  BlockLayout layout{size, no_blocks(blocks, size)};
  auto seen = layout.seen.accessor<bool, 3>()[0];
  for (int64_t query = 0; query < blocks; ++query) {
    for (int64_t key = 0; key < (causal ? query + 1 : blocks); ++key) {
      seen[query][key] =
          key / stride == query / stride || key % stride >= stride - summary;
    }
  }
  return layout;
}

at::Tensor block_mask(
    const BlockLayout& layout,
    int64_t length,
    const at::Device& device) {
  check_covers(layout, length, length);
  return layout.seen.to(device)
      .repeat_interleave(layout.size, 1)
      .repeat_interleave(layout.size, 2)
      .narrow(1, 0, length)
      .narrow(2, 0, length)
      .unsqueeze(0);
}

AttentionFunction block_sparse_attention(
    const BlockLayout& layout,
    AttentionFunction function) {
  TESSERA_CHECK(
      layout.size >= 1 && layout.seen.defined() && layout.seen.dim() == 3 &&
          layout.seen.is_cpu() && layout.seen.scalar_type() == at::kBool &&
          layout.seen.any(2).all().item<bool>(),
      "block_sparse_attention: the layout must be bool [heads, blocks of queries, blocks of keys] on the CPU, with a block for every query");
  return [layout, function = std::move(function)](const AttentionCall& call) {
    TESSERA_CHECK(
        !call.drop_weights,
        "block-sparse attention has no dropout that is the same on any number of tensor-parallel ranks; set it to 0");
    const int64_t heads = call.query.size(1);
    TESSERA_CHECK(
        layout.seen.size(0) == 1 || layout.seen.size(0) == heads,
        "the layout of blocks is for {} heads, and there are {}",
        layout.seen.size(0),
        heads);
    check_covers(layout, call.query.size(2), call.key.size(2));
    const auto blocks = [&](const at::Tensor& x) {
      return (x.size(2) + layout.size - 1) / layout.size;
    };
    const BlockLayout own{
        layout.size,
        layout.seen.narrow(1, 0, blocks(call.query))
            .narrow(2, 0, blocks(call.key))};
    const RowsByCount rows = rows_of(own, heads);
    TESSERA_CHECK(
        !rows.contains(0),
        "block-sparse attention: of {} keys some queries see none by the layout",
        call.key.size(2));
    return SparseCall(call, own).run(rows, function);
  };
}

} // namespace tessera::zoo
