// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ByteTrie` finds the strings of a set with which a text begins.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

/// A double array (Aoe, 1989): the child of a node for a byte is the node at
/// the place `base + byte`, if that one says so.
class ByteTrie {
 public:
  /// Strings that are not empty, each once, with values below 2^31.
  explicit ByteTrie(std::vector<std::pair<std::string_view, uint32_t>> strings);

  /// Calls visit(length, value) for each string with which `text` begins, the
  /// shortest first.
  template <typename Visit>
  void for_each_prefix(std::string_view text, const Visit& visit) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t child =
          nodes_[node].base + static_cast<unsigned char>(text[i]);
      if (nodes_[child].parent != node) {
        return;
      }
      node = child;
      if (nodes_[node].value != kNone) {
        visit(i + 1, nodes_[node].value);
      }
    }
  }

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  struct Node {
    uint32_t base = 0;
    uint32_t parent = kNone; ///< kNone: the place is free
    uint32_t value = kNone;
  };
  struct Builder;

  /// With 256 free ones at the end, so that every base + byte is in range.
  std::vector<Node> nodes_;
};

} // namespace tessera::text
