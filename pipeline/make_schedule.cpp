// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/make_schedule.h"

#include "tessera/pipeline/schedule_transfers.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>

namespace tessera {

namespace {

using List = std::vector<PipelineInstruction>;

List gpipe_list(const PipelineShape& shape) {
  List list;
  for (int i = 0; i < shape.micro_batches; ++i) {
    list.push_back({PipelineOp::kForward, i, 0});
  }
  for (int i = 0; i < shape.micro_batches; ++i) {
    list.push_back({PipelineOp::kBackward, i, 0});
  }
  return list;
}

/// `warm_up` forwards, then forward and backward in turns, then the remaining
/// backwards.
/// @param forwards, backwards in the order in which they run; equally many.
List alternate(const List& forwards, const List& backwards, int warm_up) {
  const auto total = static_cast<int>(forwards.size());
  List list(forwards.begin(), forwards.begin() + std::min(warm_up, total));
  for (int i = 0; i < total; ++i) {
    if (warm_up + i < total) {
      list.push_back(forwards[static_cast<std::size_t>(warm_up + i)]);
    }
    list.push_back(backwards[static_cast<std::size_t>(i)]);
  }
  return list;
}

/// Forwards in runs of `run` micro-batches, each through all chunks.
List forward_list(const PipelineShape& shape, int run) {
  List list;
  for (int first = 0; first < shape.micro_batches; first += run) {
    const int end = std::min(first + run, shape.micro_batches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int i = first; i < end; ++i) {
        list.push_back({PipelineOp::kForward, i, chunk});
      }
    }
  }
  return list;
}

/// With one chunk this is 1F1B. Runs of p micro-batches pass through all chunks
/// of a pipeline stage before the next p.
List interleaved_list(const PipelineShape& shape, int warm_up) {
  const List forwards =
      forward_list(shape, shape.chunks == 1 ? 1 : shape.stages);
  // The same order, from the last chunk to the first.
  List backwards = forwards;
  for (PipelineInstruction& instruction : backwards) {
    instruction.op = PipelineOp::kBackward;
    instruction.chunk = shape.chunks - 1 - instruction.chunk;
  }
  return alternate(forwards, backwards, warm_up);
}

/// 1F1B in which pipeline stage s computes the gradients of its weights s
/// micro-batches late: late pipeline stages, which would store less, thus get
/// forwards sooner, and early ones do not wait for gradients that are not
/// needed yet.
List zero_bubble_list(const PipelineShape& shape, int stage) {
  const int warm_up = shape.stages - stage;
  List list;
  for (int i = 0; i < std::min(warm_up, shape.micro_batches); ++i) {
    list.push_back({PipelineOp::kForward, i, 0});
  }
  for (int i = 0; i < shape.micro_batches; ++i) {
    list.push_back({PipelineOp::kBackwardInput, i, 0});
    if (i >= stage) {
      list.push_back({PipelineOp::kBackwardWeight, i - stage, 0});
    }
    if (i + warm_up < shape.micro_batches) {
      list.push_back({PipelineOp::kForward, i + warm_up, 0});
    }
  }
  for (int i = std::max(0, shape.micro_batches - stage);
       i < shape.micro_batches;
       ++i) {
    list.push_back({PipelineOp::kBackwardWeight, i, 0});
  }
  return list;
}

List make_list(
    PipelineScheduleKind kind,
    const PipelineShape& shape,
    int stage) {
  const int behind = shape.stages - 1 - stage;
  switch (kind) {
    case PipelineScheduleKind::kGPipe:
      return gpipe_list(shape);
    case PipelineScheduleKind::kOneForwardOneBackward:
      return interleaved_list(shape, behind);
    case PipelineScheduleKind::kInterleaved:
      return interleaved_list(
          shape,
          shape.chunks == 1 ? behind
                            : 2 * behind + (shape.chunks - 1) * shape.stages);
    case PipelineScheduleKind::kZeroBubble:
      return zero_bubble_list(shape, stage);
  }
  TESSERA_FAIL(
      "make_schedule: there is no schedule {}", static_cast<int>(kind));
}

const std::string& name_of(PipelineScheduleKind kind) {
  const auto& names = pipeline_schedule_names();
  return std::find_if(
             names.begin(),
             names.end(),
             [&](const auto& entry) { return entry.second == kind; })
      ->first;
}

void check_size(const char* label, int value) {
  TESSERA_CHECK(
      value >= 1, "a pipeline needs 1 or more {}, but got {}.", label, value);
}

void check_sizes(const PipelineShape& shape) {
  check_size("stages", shape.stages);
  check_size("micro-batches", shape.micro_batches);
  check_size("chunks per stage", shape.chunks);
}

void check_shape(PipelineScheduleKind kind, const PipelineShape& shape) {
  check_sizes(shape);
  const bool interleaved = kind == PipelineScheduleKind::kInterleaved;
  TESSERA_CHECK(
      interleaved || shape.chunks == 1,
      "the schedule {} has one chunk per pipeline stage, but got {}; only interleaved supports more.",
      name_of(kind),
      shape.chunks);
  const int below = shape.micro_batches / shape.stages * shape.stages;
  TESSERA_CHECK(
      shape.chunks == 1 || shape.micro_batches % shape.stages == 0,
      "interleaved passes micro-batches through its chunks in runs of {}, the number of pipeline stages, which does not divide the {} micro-batches; use {}{}, or the schedule 1f1b.",
      shape.stages,
      shape.micro_batches,
      below > 0 ? std::to_string(below) + " or " : "",
      below + shape.stages);
}

} // namespace

const std::vector<std::pair<std::string, PipelineScheduleKind>>&
pipeline_schedule_names() {
  static const std::vector<std::pair<std::string, PipelineScheduleKind>> names{
      {"gpipe", PipelineScheduleKind::kGPipe},
      {"1f1b", PipelineScheduleKind::kOneForwardOneBackward},
      {"interleaved", PipelineScheduleKind::kInterleaved},
      {"zb-h1", PipelineScheduleKind::kZeroBubble},
  };
  return names;
}

PipelineSchedule make_schedule(
    PipelineScheduleKind kind,
    const PipelineShape& shape) {
  check_shape(kind, shape);
  PipelineSchedule computations{shape, {}};
  for (int stage = 0; stage < shape.stages; ++stage) {
    computations.stages.push_back(make_list(kind, shape, stage));
  }
  return pipeline::with_transfers(computations);
}

PipelineSchedule make_forward_schedule(const PipelineShape& shape) {
  check_sizes(shape);
  PipelineSchedule computations{shape, {}, /*trains=*/false};
  for (int stage = 0; stage < shape.stages; ++stage) {
    computations.stages.push_back(forward_list(shape, shape.stages));
  }
  return pipeline::with_transfers(computations);
}

} // namespace tessera
