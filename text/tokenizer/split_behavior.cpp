// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/split_behavior.h"

#include <algorithm>
#include <string>

namespace tessera::text {

namespace {

/// Calls visit(range, whether it is a match) for matches and what is between.
template <typename Visit>
void for_each_piece(
    size_t size,
    const std::vector<ByteRange>& matches,
    bool is_inverted,
    const Visit& visit) {
  uint32_t end = 0;
  for (const ByteRange& match : matches) {
    if (match.begin > end) {
      visit(ByteRange{end, match.begin}, is_inverted);
    }
    visit(match, !is_inverted);
    end = match.end;
  }
  if (end < size) {
    visit(ByteRange{end, static_cast<uint32_t>(size)}, is_inverted);
  }
}

} // namespace

void append_parts(
    size_t size,
    const std::vector<ByteRange>& matches,
    SplitBehavior behavior,
    bool is_inverted,
    std::vector<ByteRange>& parts) {
  const size_t first = parts.size();
  bool was_match = false;
  const auto extend_or_add = [&](ByteRange piece, bool extends) {
    if (extends && parts.size() > first) {
      parts.back().end = piece.end;
    } else {
      parts.push_back(piece);
    }
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for_each_piece(
          size, matches, is_inverted, [&](ByteRange piece, bool is_match) {
            if (!is_match) {
              parts.push_back(piece);
            }
          });
      return;
    case SplitBehavior::kIsolated:
      for_each_piece(size, matches, is_inverted, [&](ByteRange piece, bool) {
        parts.push_back(piece);
      });
      return;
    case SplitBehavior::kMergedWithPrevious:
      for_each_piece(
          size, matches, is_inverted, [&](ByteRange piece, bool is_match) {
            extend_or_add(piece, is_match && !was_match);
            was_match = is_match;
          });
      return;
    case SplitBehavior::kContiguous:
      for_each_piece(
          size, matches, is_inverted, [&](ByteRange piece, bool is_match) {
            extend_or_add(piece, is_match == was_match);
            was_match = is_match;
          });
      return;
    case SplitBehavior::kMergedWithNext: {
      // A match begins the piece after it unless that is a match which has
      // been merged with the one after it: from the end, every other one.
      struct Piece {
        ByteRange range;
        bool is_match;
      };
      std::vector<Piece> pieces;
      pieces.reserve(matches.size() * 2 + 1);
      for_each_piece(
          size, matches, is_inverted, [&](ByteRange piece, bool is_match) {
            pieces.push_back({piece, is_match});
          });
      for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
        if (piece->is_match && !was_match && parts.size() > first) {
          parts.back().begin = piece->range.begin;
        } else {
          parts.push_back(piece->range);
        }
        was_match = piece->is_match;
      }
      std::reverse(parts.begin() + first, parts.end());
      return;
    }
  }
}

SplitBehavior read_split_behavior(const runtime::JsonValue& value) {
  static constexpr std::pair<const char*, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  const std::string name = value.as<std::string>();
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
  }
  value.fail(
      "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

} // namespace tessera::text
