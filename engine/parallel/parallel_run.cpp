// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/parallel/parallel_run.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/runtime/core/option_texts.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// Sizes are often changed while the rest of a configuration stays: options
/// that then have no effect are reported, not rejected.
void warn_of_idle_options(
    const ParallelOptions& options,
    const ParallelMesh& mesh) {
  const ParallelOptions usual;
  const auto warn = [](const std::string& keys, const char* size) {
    log_warning(
        "{} has no effect because parallel.{} is 1; remove it, or raise that size.",
        keys,
        size);
  };
  if (mesh.size(ParallelGroup::kTensor) == 1) {
    if (options.sequence) {
      warn("parallel.sequence", "tensor");
    }
    if (options.overlap_pieces != usual.overlap_pieces) {
      warn("parallel.overlap_pieces", "tensor");
    }
  }
  if (mesh.size(ParallelGroup::kContext) == 1) {
    if (options.context_attention != usual.context_attention) {
      warn("parallel.context_attention", "context");
    }
    if (options.context_layout != usual.context_layout) {
      warn("parallel.context_layout", "context");
    }
  }
  if (mesh.size(ParallelGroup::kPipeline) == 1) {
    if (options.schedule != usual.schedule) {
      warn("parallel.schedule", "pipeline");
    }
    if (options.cut != usual.cut) {
      warn("parallel.cut", "pipeline");
    }
  }
}

} // namespace

void visit_fields(runtime::OptionFields& fields, ParallelOptions& options) {
  visit_fields(fields, options.sizes);
  fields.field(
      "sequence",
      options.sequence,
      "sequence parallelism over the tensor-parallel ranks");
  fields.field(
      "overlap_pieces",
      options.overlap_pieces,
      {.min = 1, .max = 1024},
      "number of pieces in which tensor-parallel ranks exchange activations, overlapping with matrix products");
  fields.choice(
      "context_attention",
      options.context_attention,
      {{"ulysses", ContextKind::kUlysses}, {"ring", ContextKind::kRing}},
      "attention over divided sequences ([sharding/tensor_parallel](../sharding/tensor_parallel/README.md))");
  fields.choice(
      "context_layout",
      options.context_layout,
      {{"contiguous", ContextLayout::kContiguous},
       {"zigzag", ContextLayout::kZigzag}},
      "tokens of each rank; `zigzag` balances causal attention");
  fields.choice(
      "schedule",
      options.schedule,
      pipeline_schedule_names(),
      "order of forwards and backwards ([pipeline](../pipeline/README.md))");
  fields.field(
      "chunks",
      options.chunks,
      {.min = 1, .max = 1024},
      "chunks per pipeline stage (`interleaved`)");
  fields.field(
      "piece_of_layer",
      options.piece_of_layer,
      {.min = 0, .max = 1 << 20},
      "explicit piece of each layer, `[0, 0, 1, ...]`, in place of `cut`");
  fields.choice(
      "cut",
      options.cut,
      {{"layers", pipeline::PipelineCut::kLayers},
       {"cost", pipeline::PipelineCut::kCost}},
      "equal numbers of layers per pipeline stage, or `cost`: equal time, by matrix products, where a language model's head counts with the last layer");
}

void check(const ParallelOptions& options) {
  runtime::check_fields("parallel", options);
  TESSERA_CHECK(
      options.piece_of_layer.empty() ||
          options.cut == pipeline::PipelineCut::kLayers,
      "parallel.cut is cost, but parallel.piece_of_layer already says where to cut; set only one of them.");
}

int sequence_multiple(const ParallelOptions& options) {
  const int context = options.sizes.context;
  const bool halves =
      context > 1 && options.context_layout == ContextLayout::kZigzag;
  return (options.sequence ? options.sizes.tensor : 1) * context *
         (halves ? 2 : 1);
}

namespace {

/// Before ranks wait for groups that others do not make.
const ParallelOptions& same_on_all_ranks(
    World& world,
    const ParallelOptions& options,
    int micro_batches) {
  if (world.size() == 1) {
    return options;
  }
  runtime::OptionTexts texts;
  for (const auto& [path, value] : runtime::option_texts(options)) {
    texts.emplace("parallel." + path, value);
  }
  texts["training.accumulate"] = std::to_string(micro_batches);
  const auto ranks = world.new_communicator("parallel options");
  const std::string self_text = nlohmann::json(texts).dump();
  if (runtime::are_equal(*ranks, self_text, "comparison of parallel options")) {
    return options;
  }
  std::vector<runtime::OptionTexts> all;
  for (const std::string& text : runtime::gather_texts(
           *ranks, self_text, "parallel options that differ")) {
    all.push_back(nlohmann::json::parse(text));
  }
  for (const auto& [path, value] : all.front()) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const auto other = all[rank].find(path);
      TESSERA_CHECK(
          other != all[rank].end() && other->second == value,
          "ParallelRun: {} is {} on rank 0 and {} on rank {}. Give all ranks the same.",
          path,
          value,
          other == all[rank].end() ? "not set" : other->second,
          rank);
    }
  }
  return options;
}

} // namespace

ParallelRun::ParallelRun(
    World& world,
    const ParallelOptions& options,
    int micro_batches)
    : options_(same_on_all_ranks(world, options, micro_batches)),
      rank_(world.rank()),
      groups_(
          world,
          ParallelMesh(options.sizes, world.size(), world.local_size()),
          world.device()) {
  check(options);
  if (mesh().size(ParallelGroup::kContext) > 1 &&
      options.context_attention == ContextKind::kRing) {
    context_ring_ = std::make_unique<runtime::RingChannels>(
        world,
        "context",
        mesh().ranks(ParallelGroup::kContext, rank_),
        world.device());
  }
  if (is_log_rank_zero()) {
    warn_of_idle_options(options, mesh());
  }
  const int stages = mesh().size(ParallelGroup::kPipeline);
  if (stages == 1) {
    TESSERA_CHECK(
        options.chunks == 1 && options.piece_of_layer.empty(),
        "parallel.chunks and parallel.piece_of_layer divide a model into pipeline stages, but parallel.pipeline is 1; raise it or remove them.");
    return;
  }
  TESSERA_CHECK(
      options.schedule != PipelineScheduleKind::kInterleaved ||
          options.chunks > 1,
      "parallel.schedule is interleaved, which needs several chunks per pipeline stage, but parallel.chunks is 1; set it to 2 or more, or use the schedule 1f1b.");
  const PipelineShape shape{stages, micro_batches, options.chunks};
  PipelineSchedule schedule = make_schedule(options.schedule, shape);
  stages_ = std::make_unique<runtime::RingChannels>(
      world,
      "stages",
      mesh().ranks(ParallelGroup::kPipeline, rank_),
      world.device());
  executor_ = std::make_unique<PipelineExecutor>(
      std::move(schedule),
      stages_.get(),
      PipelineOptions{.shapes_vary = options.shapes_vary});
}

BatchShare ParallelRun::batches() const {
  return {
      index(ParallelGroup::kBatches),
      mesh().size(ParallelGroup::kBatches),
      sequence_multiple(options_)};
}

bool ParallelRun::reports_loss() const {
  return index(ParallelGroup::kPipeline) + 1 ==
             mesh().size(ParallelGroup::kPipeline) &&
         index(ParallelGroup::kTensor) == 0 &&
         index(ParallelGroup::kContext) == 0;
}

std::optional<TensorParallel> ParallelRun::tensor() {
  if (mesh().size(ParallelGroup::kTensor) == 1) {
    return std::nullopt;
  }
  return TensorParallel{
      .group = &groups_[ParallelGroup::kTensor],
      .sequence = options_.sequence,
      .pieces = options_.overlap_pieces};
}

std::optional<ContextParallel> ParallelRun::context() {
  if (mesh().size(ParallelGroup::kContext) == 1) {
    return std::nullopt;
  }
  return ContextParallel{
      &groups_[ParallelGroup::kContext],
      options_.context_attention,
      options_.context_layout,
      context_ring_.get()};
}

pipeline::PipelinePosition ParallelRun::position() const {
  return {
      mesh().size(ParallelGroup::kPipeline),
      options_.chunks,
      index(ParallelGroup::kPipeline),
      options_.piece_of_layer,
      options_.cut};
}

} // namespace tessera
