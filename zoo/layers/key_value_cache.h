// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keys and values of what a model has read.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace tessera::zoo {

/// Lets a model go on with texts without reading them again: of every attention
/// layer the keys and values of all tokens so far, of those heads that the rank
/// has. For one batch and one model, or one stage of it; without gradients.
class KeyValueCache {
 public:
  /// @param capacity tokens of a text that there is room for, its beginning
  ///     included.
  /// @throws tessera::Error unless it is 1 or more.
  explicit KeyValueCache(int64_t capacity);

  /// Tokens that were read before what is read now.
  int64_t length() const {
    return length_;
  }
  int64_t capacity() const {
    return capacity_;
  }

  /// To be called when a model has read `tokens` tokens, by all its layers.
  void advance(int64_t tokens) {
    length_ += tokens;
  }

  using KeysAndValues = std::pair<at::Tensor, at::Tensor>;

  /// Keeps those of the tokens that are read now behind the others.
  /// @param layer any address that is the layer's own.
  /// @param key, value [B, heads, new tokens, n].
  /// @return those of all tokens so far, [B, heads, length() + new tokens, n];
  ///     views of the cache.
  /// @throws tessera::Error when there is no room for them, or the batch is
  ///     another one.
  KeysAndValues extend(
      const void* layer,
      const at::Tensor& key,
      const at::Tensor& value);

  /// Those of an encoder's text, which stay as they are: null before keep().
  const KeysAndValues* kept(const void* layer) const;
  KeysAndValues keep(const void* layer, KeysAndValues whole);

  /// Rows of the batch are replaced by others of them: [B] int64.
  void reorder(const at::Tensor& rows);

  /// What an encoder made of the text that is answered; undefined until it was.
  at::Tensor memory;

 private:
  int64_t capacity_;
  int64_t length_ = 0;
  std::map<const void*, KeysAndValues> growing_; ///< [B, heads, capacity, n]
  std::map<const void*, KeysAndValues> kept_;
};

} // namespace tessera::zoo
