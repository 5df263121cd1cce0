// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AttentionPattern` states which keys each query of an attention sees.
//
// [Note: attention patterns] Each query sees an interval of keys, and besides
// the global keys; of both, only keys that are not padding. Causal attention,
// documents, windows and prefixes are intervals, so that a pattern has numbers
// for tokens in place of a mask for pairs of tokens, and a kernel can skip the
// pairs that do not see each other. A query that sees no key has a result
// without meaning, but a finite one.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::runtime {

struct AttentionPattern {
  /// int32 [1 or B, 1 or Q]: query i sees keys first[i] .. end[i] - 1.
  /// Undefined: no pattern.
  at::Tensor first;
  at::Tensor end;
  at::Tensor seen; ///< bool [1 or B, K]: false at padding; undefined: all true
  /// bool [1 or B, K]: keys that all queries see; undefined: none
  at::Tensor global_keys;
  int64_t queries = 0; ///< Q
  int64_t keys = 0; ///< K
  bool is_causal = false; ///< certainly no query sees a later token
  /// An upper bound of the share of pairs that see each other, for estimates.
  double share = 1;

  bool defined() const {
    return first.defined();
  }

  /// All queries see all keys.
  static AttentionPattern full(
      int64_t queries,
      int64_t keys,
      const at::Device& device);

  /// The queries are those of the last tokens and see keys up to their own.
  static AttentionPattern causal(
      int64_t queries,
      int64_t keys,
      const at::Device& device);

  // Each of the following returns a changed pattern. Those that are about
  // positions are for queries that are the last ones of the tokens.

  /// A query also sees the first keys, lengths [B] of them, of those before
  /// its own last one and after it.
  AttentionPattern with_prefix(const at::Tensor& lengths) const;

  /// Queries see no key that is `window` or more positions away.
  /// @throws tessera::Error if window < 1.
  AttentionPattern within_window(int64_t window) const;

  /// Queries see no key of another document: ids [B, K], a document being
  /// neighbors with equal numbers.
  AttentionPattern within_documents(const at::Tensor& ids) const;

  /// Nothing sees padding: attention_mask [B, K], 0 at padding; undefined:
  /// none.
  /// @throws tessera::Error if attention_mask is not [B, K].
  AttentionPattern without_padding(const at::Tensor& attention_mask) const;

  /// Global tokens see all keys and are seen by all queries.
  /// @param is_global [B, K], nonzero at global tokens.
  AttentionPattern with_global(const at::Tensor& is_global) const;

  /// The pattern of some of the tokens: K is Q.
  /// @param tokens int64 [B, kept], ascending.
  AttentionPattern at_tokens(const at::Tensor& tokens) const;

  /// The pattern of some of the queries and keys, which are neighbors. It is
  /// not `is_causal`, which is about positions of all.
  AttentionPattern narrowed(
      int64_t first_query,
      int64_t query_count,
      int64_t first_key,
      int64_t key_count) const;

  /// bool [1 or B, 1, 1 or Q, K], true where a query sees a key.
  at::Tensor visible() const;

  /// visible(), with_safe_rows().
  at::Tensor dense() const;
};

/// Lets a query that sees no key see all keys: a softmax over nothing is NaN,
/// and kernels differ in how they treat it. Its result is meaningless anyway.
/// @param mask bool [..., Q, K], or undefined.
at::Tensor with_safe_rows(const at::Tensor& mask);

template <typename Visit>
void visit_tensors_of(AttentionPattern& pattern, Visit&& visit) {
  visit(pattern.first);
  visit(pattern.end);
  visit(pattern.seen);
  visit(pattern.global_keys);
}

} // namespace tessera::runtime
