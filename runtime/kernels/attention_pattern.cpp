// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/attention_pattern.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

namespace tessera::runtime {

namespace {

/// [1, end - begin] int32.
at::Tensor places(int64_t begin, int64_t end, const at::Device& device) {
  return at::arange(begin, end, at::TensorOptions(device).dtype(at::kInt))
      .unsqueeze(0);
}

at::Tensor positions_of_queries(const AttentionPattern& pattern) {
  return places(
      pattern.keys - pattern.queries, pattern.keys, pattern.first.device());
}

/// x [1 or B, 1 or S] at the tokens [B, kept]; unchanged if all are equal.
at::Tensor gathered(const at::Tensor& x, const at::Tensor& tokens) {
  const at::Tensor rows = x.expand({tokens.size(0), -1});
  return x.size(1) == 1 ? rows : rows.gather(1, tokens);
}

/// x [1 or B, 1 or S], of some of the places.
at::Tensor neighbors(const at::Tensor& x, int64_t first, int64_t count) {
  return x.size(1) == 1 ? x : x.narrow(1, first, count);
}

} // namespace

AttentionPattern AttentionPattern::full(
    int64_t queries,
    int64_t keys,
    const at::Device& device) {
  AttentionPattern pattern;
  const auto options = at::TensorOptions(device).dtype(at::kInt);
  pattern.first = at::zeros({1, 1}, options);
  pattern.end = at::full({1, 1}, keys, options);
  pattern.queries = queries;
  pattern.keys = keys;
  return pattern;
}

AttentionPattern AttentionPattern::causal(
    int64_t queries,
    int64_t keys,
    const at::Device& device) {
  AttentionPattern pattern = full(queries, keys, device);
  pattern.end = places(keys - queries + 1, keys + 1, device);
  pattern.is_causal = true;
  pattern.share = 1 - 0.5 * static_cast<double>(queries) /
                          static_cast<double>(std::max<int64_t>(1, keys));
  return pattern;
}

AttentionPattern AttentionPattern::with_prefix(
    const at::Tensor& lengths) const {
  TESSERA_CHECK(
      lengths.dim() == 1,
      "the prefix lengths are {}; they must be [batch]",
      lengths.sizes());
  AttentionPattern changed = *this;
  const at::Tensor prefix = lengths.to(at::kInt).unsqueeze(1).clamp(0, keys);
  changed.end = at::maximum(end, prefix);
  changed.is_causal = false;
  changed.share = 1;
  return changed;
}

AttentionPattern AttentionPattern::within_window(int64_t window) const {
  TESSERA_CHECK(
      window >= 1, "an attention window is {}; it must be 1 or more", window);
  AttentionPattern changed = *this;
  if (window >= keys) {
    return changed;
  }
  const at::Tensor positions = positions_of_queries(*this);
  changed.first = at::maximum(first, positions - (window - 1));
  changed.end = at::minimum(end, positions + window);
  changed.share = std::min(
      share,
      static_cast<double>(is_causal ? window : 2 * window - 1) /
          static_cast<double>(keys));
  return changed;
}

AttentionPattern AttentionPattern::within_documents(
    const at::Tensor& ids) const {
  TESSERA_CHECK(
      ids.dim() == 2 && ids.size(1) == keys,
      "document_ids are {}; they must be [batch, {}]",
      ids.sizes(),
      keys);
  AttentionPattern changed = *this;
  if (keys == 0) {
    return changed;
  }
  const at::Tensor is_new =
      ids.narrow(1, 1, keys - 1).ne(ids.narrow(1, 0, keys - 1));
  const at::Tensor positions = places(0, keys, ids.device());
  // Of each token the last beginning up to it, and the first end after it.
  const at::Tensor begins = std::get<0>(
      at::cummax(positions * at::constant_pad_nd(is_new, {1, 0}, true), 1));
  const at::Tensor ends =
      std::get<0>(at::cummin(
                      at::where(
                          at::constant_pad_nd(is_new, {0, 1}, true),
                          positions + 1,
                          keys)
                          .to(at::kInt)
                          .flip(1),
                      1))
          .flip(1);
  const auto of_queries = [&](const at::Tensor& x) {
    return x.narrow(1, keys - queries, queries);
  };
  changed.first = at::maximum(first, of_queries(begins));
  changed.end = at::minimum(end, of_queries(ends));
  return changed;
}

AttentionPattern AttentionPattern::without_padding(
    const at::Tensor& attention_mask) const {
  AttentionPattern changed = *this;
  if (!attention_mask.defined()) {
    return changed;
  }
  TESSERA_CHECK(
      attention_mask.dim() == 2 && attention_mask.size(1) == keys,
      "the attention mask is {}; it must be [batch, {}]",
      attention_mask.sizes(),
      keys);
  const at::Tensor is_token = attention_mask.ne(0);
  changed.seen = seen.defined() ? seen & is_token : is_token;
  return changed;
}

AttentionPattern AttentionPattern::with_global(
    const at::Tensor& is_global) const {
  TESSERA_CHECK(
      is_global.dim() == 2 && is_global.size(1) == keys,
      "the global tokens are {}; they must be [batch, {}]",
      is_global.sizes(),
      keys);
  AttentionPattern changed = *this;
  const at::Tensor global = is_global.ne(0);
  const at::Tensor of_queries = global.narrow(1, keys - queries, queries);
  changed.first = first.masked_fill(of_queries, 0);
  changed.end = end.masked_fill(of_queries, keys);
  changed.global_keys = global_keys.defined() ? global_keys | global : global;
  changed.is_causal = false;
  changed.share = 1;
  return changed;
}

AttentionPattern AttentionPattern::at_tokens(const at::Tensor& tokens) const {
  AttentionPattern some = *this;
  // Of an interval of tokens, those that are kept are neighbors, too.
  const auto kept_before = [&](const at::Tensor& bound) {
    return at::searchsorted(
        tokens,
        gathered(bound, tokens).to(tokens.scalar_type()).contiguous(),
        true);
  };
  some.first = kept_before(first);
  some.end = kept_before(end);
  if (seen.defined()) {
    some.seen = gathered(seen, tokens);
  }
  if (global_keys.defined()) {
    some.global_keys = gathered(global_keys, tokens);
  }
  some.queries = some.keys = tokens.size(1);
  return some;
}

AttentionPattern AttentionPattern::narrowed(
    int64_t first_query,
    int64_t query_count,
    int64_t first_key,
    int64_t key_count) const {
  AttentionPattern some = *this;
  const auto bound = [&](const at::Tensor& x) {
    return (neighbors(x, first_query, query_count) - first_key)
        .clamp(0, key_count);
  };
  some.first = bound(first);
  some.end = bound(end);
  if (seen.defined()) {
    some.seen = neighbors(seen, first_key, key_count);
  }
  if (global_keys.defined()) {
    some.global_keys = neighbors(global_keys, first_key, key_count);
  }
  some.is_causal = false;
  some.share = 1;
  some.queries = query_count;
  some.keys = key_count;
  return some;
}

at::Tensor AttentionPattern::visible() const {
  const at::Tensor positions = places(0, keys, first.device()).unsqueeze(1);
  at::Tensor mask =
      (first.unsqueeze(2) <= positions) & (positions < end.unsqueeze(2));
  if (global_keys.defined()) {
    mask = mask | global_keys.unsqueeze(1);
  }
  if (seen.defined()) {
    mask = mask & seen.unsqueeze(1);
  }
  return mask.unsqueeze(1);
}

at::Tensor AttentionPattern::dense() const {
  return with_safe_rows(visible());
}

at::Tensor with_safe_rows(const at::Tensor& mask) {
  return mask.defined() ? mask | ~mask.any(-1, /*keepdim=*/true) : mask;
}

} // namespace tessera::runtime
