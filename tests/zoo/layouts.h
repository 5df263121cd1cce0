// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layouts of ranks, with what goes together with them.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo {

struct Layout {
  std::string name;
  ParallelOptions parallel;
  int zero_stage = 3;
  int recomputed = 0; ///< layers; if any, also parts of the others
  std::optional<MemoryTier> placement = std::nullopt;
  std::optional<at::ScalarType> compute =
      {}; ///< lower precision, on one rank too
  int batches = 4; ///< of a step, over all ranks
  at::Device device = at::kCPU; ///< where ranks compute
  /// Device memory for nothing but shards and slots: the rest is on the host.
  bool has_budget = false;
};

inline int ranks_of(const ParallelSizes& sizes) {
  return sizes.data * sizes.shard * sizes.tensor * sizes.pipeline *
         sizes.context;
}

inline std::string name_of(const Layout& layout) {
  const ParallelOptions& parallel = layout.parallel;
  std::string name = "tensor" + std::to_string(parallel.sizes.tensor) +
                     "_pipeline" + std::to_string(parallel.sizes.pipeline) +
                     "_shard" + std::to_string(parallel.sizes.shard) +
                     "_context" + std::to_string(parallel.sizes.context) +
                     "_expert" + std::to_string(parallel.sizes.expert);
  name += parallel.sequence ? "_sequence" : "";
  for (const auto& [schedule, kind] : pipeline_schedule_names()) {
    if (kind == parallel.schedule && parallel.sizes.pipeline > 1) {
      name += "_" + schedule;
    }
  }
  std::replace(name.begin(), name.end(), '-', '_');
  name += "_zero" + std::to_string(layout.zero_stage);
  name += layout.recomputed > 0 ? "_recomputed" : "";
  name += layout.placement == MemoryTier::kHost ? "_host" : "";
  name += layout.has_budget ? "_budget" : "";
  return layout.compute ? name + "_" + toString(*layout.compute) : name;
}

/// Every option with every other one in some layout.
inline std::vector<Layout> pairs() {
  return {
      Layout{"tensor2", {{.shard = 1, .tensor = 2}}, 3, 2},
      Layout{"tensor4_sequence", {{.shard = 1, .tensor = 4}, true}},
      Layout{"pipeline2", {{.shard = 1, .pipeline = 2}}, 3, 3},
      Layout{
          "pipeline4_gpipe",
          {.sizes = {.shard = 1, .pipeline = 4},
           .schedule = PipelineScheduleKind::kGPipe},
          1},
      Layout{
          "pipeline2_interleaved",
          {.sizes = {.shard = 1, .pipeline = 2},
           .schedule = PipelineScheduleKind::kInterleaved,
           .chunks = 2}},
      Layout{
          "pipeline2_shard2_zb",
          {.sizes = {.shard = 2, .pipeline = 2},
           .schedule = PipelineScheduleKind::kZeroBubble}},
      Layout{
          "tensor2_shard2_sequence", {{.shard = 2, .tensor = 2}, true}, 2, 1},
      Layout{
          "tensor2_pipeline2_sequence",
          {{.shard = 1, .tensor = 2, .pipeline = 2}, true},
          3,
          5},
      Layout{
          "tensor2_pipeline2_shard2",
          {{.shard = 2, .tensor = 2, .pipeline = 2}},
          3},
      Layout{
          "tensor2_pipeline2_data2_sequence",
          {{.data = 2, .shard = 1, .tensor = 2, .pipeline = 2}, true},
          1,
          2},
      Layout{"context2", {{.shard = 1, .context = 2}}},
      Layout{
          "context2_ring",
          {.sizes = {.shard = 1, .context = 2},
           .context_attention = ContextKind::kRing,
           .context_layout = ContextLayout::kZigzag}},
      Layout{
          "tensor2_pipeline2_sequence_zb",
          {.sizes = {.shard = 1, .tensor = 2, .pipeline = 2},
           .sequence = true,
           .schedule = PipelineScheduleKind::kZeroBubble}},
      Layout{
          "pipeline2_of_3_batches",
          {.sizes = {.shard = 1, .pipeline = 2}},
          3,
          0,
          std::nullopt,
          {},
          /*batches=*/3},
      Layout{
          "tensor2_shard3",
          {{.shard = 3, .tensor = 2}, true},
          3,
          2,
          std::nullopt,
          {},
          /*batches=*/3},
      Layout{"expert2", {{.shard = 2, .expert = 2}}},
      Layout{
          "expert2_data2_shard2", {{.data = 2, .shard = 2, .expert = 2}}, 2, 2},
      Layout{
          "expert2_tensor2_shard2",
          {{.shard = 2, .tensor = 2, .expert = 2}},
          3,
          0,
          MemoryTier::kHost},
      Layout{
          "expert2_tensor2_sequence",
          {{.shard = 2, .tensor = 2, .expert = 2}, true},
          3,
          2},
      Layout{
          "expert2_pipeline2_shard2",
          {{.shard = 2, .pipeline = 2, .expert = 2}},
          3,
          3},
      Layout{
          "expert2_data2_shard2_float16",
          {{.data = 2, .shard = 2, .expert = 2}},
          3,
          0,
          std::nullopt,
          at::kHalf},
      Layout{
          .name = "expert2_shard4_budget",
          .parallel = {{.shard = 4, .expert = 2}},
          .has_budget = true},
      Layout{
          .name = "tensor2_pipeline2_shard2_budget",
          .parallel = {{.shard = 2, .tensor = 2, .pipeline = 2}},
          .recomputed = 2,
          .has_budget = true},
      Layout{
          "expert2_bfloat16",
          {{.shard = 2, .expert = 2}},
          2,
          2,
          std::nullopt,
          at::kBFloat16},
      Layout{
          "expert2_pipeline2_context2",
          {.sizes = {.shard = 1, .pipeline = 2, .context = 2, .expert = 2},
           .schedule = PipelineScheduleKind::kZeroBubble}},
      Layout{
          "pipeline2_context2_shard2",
          {{.shard = 2, .pipeline = 2, .context = 2}},
          3,
          2},
      Layout{
          "tensor2_pipeline2_state_on_host",
          {.sizes = {.shard = 1, .tensor = 2, .pipeline = 2},
           .cut = pipeline::PipelineCut::kCost},
          3,
          2,
          MemoryTier::kHost},
      Layout{
          "tensor2_pipeline2_bfloat16",
          {{.shard = 1, .tensor = 2, .pipeline = 2}, true},
          3,
          2,
          std::nullopt,
          at::kBFloat16},
      Layout{
          "tensor2_pipeline2_float16",
          {{.shard = 1, .tensor = 2, .pipeline = 2}},
          2,
          0,
          std::nullopt,
          at::kHalf}};
}

/// All sizes on up to 8 ranks, with all schedules, ZeRO stages, recomputation,
/// state on the host and types.
inline std::vector<Layout> product() {
  std::vector<ParallelOptions> all;
  for (const int tensor : {1, 2, 4}) {
    for (const int pipeline : {1, 2, 4}) {
      for (const int shard : {1, 2}) {
        for (const bool sequence : {false, true}) {
          for (const auto& [name, kind] : pipeline_schedule_names()) {
            const bool is_cut = kind == PipelineScheduleKind::kInterleaved;
            if (tensor * pipeline * shard > 8 || (sequence && tensor == 1) ||
                (pipeline == 1 && kind != PipelineScheduleKind::kGPipe) ||
                (is_cut && pipeline * 2 > 4)) {
              continue; // 4 layers make 4 pieces
            }
            ParallelOptions options;
            options.sizes = {
                .shard = shard, .tensor = tensor, .pipeline = pipeline};
            options.sequence = sequence;
            options.schedule = kind;
            options.chunks = is_cut ? 2 : 1;
            all.push_back(options);
          }
        }
      }
    }
  }
  std::vector<Layout> layouts;
  for (const ParallelOptions& options : all) {
    for (const int stage : {1, 2, 3}) {
      for (const int recomputed : {0, 5}) {
        for (const auto placement :
             {std::optional<MemoryTier>(), std::optional(MemoryTier::kHost)}) {
          for (const auto compute :
               {std::optional<at::ScalarType>(),
                std::optional(at::kBFloat16),
                std::optional(at::kHalf)}) {
            Layout layout{"", options, stage, recomputed, placement, compute};
            layout.name = name_of(layout);
            layouts.push_back(layout);
          }
        }
      }
    }
  }
  // Divided sequences and experts of decoders.
  for (ParallelOptions options : all) {
    for (const auto& [context, expert] :
         {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
      options.sizes.context = context;
      options.sizes.expert = expert;
      const bool divides = options.sizes.shard * context % expert == 0;
      if (!divides || ranks_of(options.sizes) > 8) {
        continue;
      }
      for (const int recomputed : {0, 5}) {
        Layout layout{"", options, 3, recomputed};
        layout.name = name_of(layout);
        layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

/// With TESSERA_SOAK set, product().
inline std::vector<Layout> layouts() {
  return std::getenv("TESSERA_SOAK") != nullptr ? product() : pairs();
}

} // namespace tessera::zoo
