// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which layouts of the zoo, and which of its models, are trained on a device:
// ranks that divide layers, sequences, contexts and experts against one rank.

#include "zoo/layout_comparison.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace tessera::zoo::device_layouts {

/// Those of up to four ranks, but the ones that only differ in sizes.
inline std::vector<Layout> layouts() {
  constexpr const char* kChosen[] = {
      "tensor2",
      "pipeline2",
      "pipeline4_gpipe",
      "pipeline2_interleaved",
      "pipeline2_shard2_zb",
      "tensor2_shard2_sequence",
      "tensor2_pipeline2_sequence",
      "context2",
      "context2_ring",
      "expert2",
      "expert2_tensor2_sequence",
      "tensor2_pipeline2_state_on_host",
      "tensor2_pipeline2_float16"};
  std::vector<Layout> chosen;
  for (const Layout& layout : pairs()) {
    if (std::find(std::begin(kChosen), std::end(kChosen), layout.name) !=
        std::end(kChosen)) {
      chosen.push_back(layout);
    }
  }
  EXPECT_EQ(chosen.size(), std::size(kChosen));
  return chosen;
}

/// The simplest of those with the same operators.
inline bool is_chosen(const Subject& subject) {
  return std::string(subject.name) == "gpt" || subject.has_experts;
}

} // namespace tessera::zoo::device_layouts
