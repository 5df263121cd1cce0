// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/recomputed_parts.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"

namespace tessera::planner {

namespace {

/// What names the parts of `recomputed`, with `separator` between them.
struct PartNames {
  const char* operators;
  const char* attention;
  std::string layers;
  const char* separator;
  const char* nothing;
};

std::string text_of(const RecomputedParts& recomputed, const PartNames& names) {
  std::string text;
  const auto add = [&](bool is_there, const std::string& name) {
    if (is_there) {
      text += (text.empty() ? "" : names.separator) + name;
    }
  };
  add(recomputed.operators, names.operators);
  add(recomputed.attention, names.attention);
  add(recomputed.layers > 0, names.layers);
  return text.empty() ? names.nothing : text;
}

} // namespace

RecomputedParts RecomputedParts::with_layers(int64_t count) const {
  RecomputedParts parts = *this;
  parts.layers = count;
  return parts;
}

std::vector<std::string> RecomputedParts::overrides() const {
  return {
      formatted("model.checkpoint_layers={}", layers),
      formatted("model.checkpoint_attention={}", attention),
      formatted("model.divide_checkpoints={}", divided_inputs),
      formatted("recompute_operators={}", operators)};
}

std::string RecomputedParts::column() const {
  return text_of(
      *this,
      {.operators = "op",
       .attention = "at",
       .layers = formatted("{}{}", layers, divided_inputs ? "/t" : ""),
       .separator = "+",
       .nothing = "-"});
}

std::string RecomputedParts::text() const {
  return text_of(
      *this,
      {.operators = "cheap operators",
       .attention = "attention",
       .layers = runtime::count_text(layers, "layer") +
                 (divided_inputs ? " with divided inputs" : ""),
       .separator = ", ",
       .nothing = "nothing"});
}

} // namespace tessera::planner
