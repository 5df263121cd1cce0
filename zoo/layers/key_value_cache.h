// SPDX-License-Identifier: Apache-2.0
#pragma once
// `KeyValueCache` holds the attention keys and values of the tokens processed
// so far.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace tessera::zoo {

/// Lets a model extend sequences without processing them again: keeps, for
/// every attention layer, the keys and values of all tokens so far, for the
/// heads on this rank, and inputs per token that masks and biases depend on.
/// For one batch and one model, or one pipeline stage of
/// it; without gradients.
class KeyValueCache {
 public:
  /// @param capacity maximum sequence length in tokens, prompt included.
  /// @throws tessera::Error unless it is 1 or more.
  explicit KeyValueCache(int64_t capacity);

  /// The number of tokens before those being processed now.
  int64_t length() const {
    return length_;
  }
  int64_t capacity() const {
    return capacity_;
  }

  /// Call it when all layers of a model have processed `tokens` tokens.
  void advance(int64_t tokens) {
    length_ += tokens;
  }

  /// Forgets the tokens after the first `length`, and makes room for another
  /// number of them.
  /// @throws tessera::Error if there are fewer, or more than `capacity`.
  void resize(int64_t length, int64_t capacity);

  using KeysAndValues = std::pair<at::Tensor, at::Tensor>;

  /// Appends the keys and values of the tokens being processed now.
  /// @param layer any address that is unique to the layer.
  /// @param key, value [B, heads, new tokens, n].
  /// @return those of all tokens so far, [B, heads, length() + new tokens, n];
  ///     views of the cache.
  /// @throws tessera::Error if the capacity is exceeded, or the batch has
  ///     changed.
  KeysAndValues extend(
      const void* layer,
      const at::Tensor& key,
      const at::Tensor& value);

  /// Appends an input per token, such as token_type_ids, of the tokens being
  /// processed now.
  /// @param tokens [B, new tokens], or undefined if the model is not given it.
  /// @return that of all tokens so far, [B, length() + new tokens], or
  ///     undefined; a view of the cache.
  /// @throws tessera::Error if it is given for some tokens only, or the
  ///     capacity is exceeded.
  at::Tensor extend_input(const std::string& name, const at::Tensor& tokens);

  /// The constant keys and values of an encoder's output; null before keep().
  const KeysAndValues* kept(const void* layer) const;
  KeysAndValues keep(const void* layer, KeysAndValues full);

  /// Replaces each row of the batch by the given row: [B] int64.
  void reorder(const at::Tensor& rows);

  /// The encoder's output; undefined until it has been computed.
  at::Tensor memory;

 private:
  int64_t capacity_;
  int64_t length_ = 0;
  std::map<const void*, KeysAndValues> growing_; ///< [B, heads, capacity, n]
  std::map<const void*, KeysAndValues> kept_;
  std::map<std::string, at::Tensor> inputs_; ///< [B, capacity]
};

} // namespace tessera::zoo
