// SPDX-License-Identifier: Apache-2.0
// CPM-3 as in ModelCenter: CPM-1 with trained prompts in front of every
// sequence and an attention bias for each pair of segments.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/models/cpm_like.h"
#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

constexpr int64_t kMostPromptRows = int64_t{1} << 28;
constexpr int64_t kMostSegments = 1 << 12; // with a row for each pair

CpmConfig cpm3_config(const ConfigFields& fields) {
  CpmConfig config = cpm_config(
      fields,
      {.buckets = {.buckets = 512, .max_distance = 2048},
       .length_scale = true,
       .attn_scale = true,
       .is_tied = true});
  const int64_t prompts = fields.size({"prompt_types"}, 32);
  config.prompt_tokens = fields.size({"prompt_length"}, 64);
  TESSERA_CHECK(
      prompts <= kMostPromptRows / config.prompt_tokens,
      "{}: 'prompt_types' is {} and 'prompt_length' {}; their product must be at most 2^28",
      fields.origin(),
      prompts,
      config.prompt_tokens);
  config.prompt_rows = prompts * config.prompt_tokens;
  config.layers.segments = fields.size({"segment_types"}, 34);
  TESSERA_CHECK(
      config.layers.segments <= kMostSegments,
      "{}: 'segment_types' is {}; it must be at most {}",
      fields.origin(),
      config.layers.segments,
      kMostSegments);
  config.distances_in_segments =
      fields.get<bool>({"absolute_inner_segment"}, true);
  return config;
}

} // namespace

ModelFamily cpm3_family() {
  return cpm_family("cpm3", "CPM3", cpm3_config);
}

} // namespace tessera::zoo
