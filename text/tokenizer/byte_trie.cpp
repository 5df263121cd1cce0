// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/byte_trie.h"

#include <algorithm>
#include <cstddef>

namespace tessera::text {

/// Places the children of one node after another.
struct ByteTrie::Builder {
  /// Places that are tried for the children of a node before new ones are
  /// appended; nodes with one child, the most, fill the gaps.
  static constexpr size_t kTries = 64;

  std::vector<Node>& nodes;
  size_t first_free = 1;
  std::vector<unsigned char> bytes; ///< of the children, in order

  bool is_free(size_t index) const {
    return index >= nodes.size() || (index > 0 && nodes[index].parent == kNone);
  }

  uint32_t find_base() {
    while (!is_free(first_free)) {
      ++first_free;
    }
    const size_t from = std::max<size_t>(first_free, bytes[0]);
    const size_t to = std::min(from + kTries, nodes.size());
    for (size_t index = from; index < to; ++index) {
      const size_t base = index - bytes[0];
      if (std::all_of(bytes.begin(), bytes.end(), [&](unsigned char byte) {
            return is_free(base + byte);
          })) {
        return static_cast<uint32_t>(base);
      }
    }
    return static_cast<uint32_t>(
        std::max<size_t>(nodes.size(), bytes[0]) - bytes[0]);
  }

  void place_children(uint32_t node) {
    const uint32_t base = find_base();
    if (base + bytes.back() >= nodes.size()) {
      nodes.resize(base + bytes.back() + 1);
    }
    nodes[node].base = base;
    for (const unsigned char byte : bytes) {
      nodes[base + byte].parent = node;
    }
  }
};

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, uint32_t>> strings)
    : nodes_(1) {
  std::sort(strings.begin(), strings.end());
  // A node whose children are not placed yet: strings [begin, end) have `depth`
  // bytes in common.
  struct Open {
    uint32_t node = 0;
    size_t begin = 0;
    size_t end = 0;
    size_t depth = 0;
  };
  std::vector<Open> stack = {{0, 0, strings.size(), 0}};
  Builder builder{.nodes = nodes_, .bytes = {}};
  while (!stack.empty()) {
    Open open = stack.back();
    stack.pop_back();
    if (open.begin < open.end &&
        strings[open.begin].first.size() == open.depth) {
      nodes_[open.node].value = strings[open.begin].second;
      ++open.begin;
    }
    if (open.begin == open.end) {
      continue;
    }
    const auto byte_of = [&](size_t i) {
      return static_cast<unsigned char>(strings[i].first[open.depth]);
    };
    builder.bytes.clear();
    for (size_t i = open.begin; i < open.end; ++i) {
      if (builder.bytes.empty() || builder.bytes.back() != byte_of(i)) {
        builder.bytes.push_back(byte_of(i));
      }
    }
    builder.place_children(open.node);
    const uint32_t base = nodes_[open.node].base;
    for (size_t i = open.begin; i < open.end;) {
      const unsigned char byte = byte_of(i);
      size_t end = i + 1;
      while (end < open.end && byte_of(end) == byte) {
        ++end;
      }
      stack.push_back({base + byte, i, end, open.depth + 1});
      i = end;
    }
  }
  nodes_.resize(nodes_.size() + 256);
}

} // namespace tessera::text
