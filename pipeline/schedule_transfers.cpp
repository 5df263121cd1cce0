// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/schedule_transfers.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace tessera::pipeline {

namespace {

int time_of(PipelineOp op) {
  return op == PipelineOp::kBackward ? 2 : 1;
}

class TransferPlacement {
 public:
  explicit TransferPlacement(const PipelineSchedule& computations)
      : given_(computations),
        shape_(computations.shape),
        clocks_(computations.stages.size()),
        cursors_(computations.stages.size()),
        weights_left_(computations.stages.size()) {
    result_.shape = shape_;
    result_.trains = given_.trains;
    result_.stages.resize(given_.stages.size());
    for (std::size_t stage = 0; stage < given_.stages.size(); ++stage) {
      for (const PipelineInstruction& instruction : given_.stages[stage]) {
        if (completes_weights(instruction.op)) {
          ++weights_left_[stage][instruction.chunk];
        }
      }
    }
  }

  PipelineSchedule run() {
    while (const auto next = earliest()) {
      send_until(next->start);
      compute(next->stage, next->start);
    }
    for (std::size_t stage = 0; stage < given_.stages.size(); ++stage) {
      TESSERA_CHECK(
          cursors_[stage] == given_.stages[stage].size(),
          "the {} of pipeline stage {} never starts: what it needs comes later in the schedule, or not at all.",
          describe(given_.stages[stage][cursors_[stage]]),
          stage);
    }
    send_until(time_of_end());
    return std::move(result_);
  }

 private:
  struct Start {
    int start = 0;
    std::size_t stage = 0;
  };
  struct Transfer {
    int time = 0;
    int stage = 0;
    PipelineInstruction send;

    bool operator<(const Transfer& other) const {
      return std::tie(time, stage) < std::tie(other.time, other.stage);
    }
  };
  // Whether forward, piece, micro-batch.
  using Value = std::tuple<bool, int, int>;

  static bool completes_weights(PipelineOp op) {
    return op == PipelineOp::kBackward || op == PipelineOp::kBackwardWeight;
  }

  /// The time at which the data of an instruction is ready; nothing if that is
  /// not known yet.
  std::optional<int> ready(int stage, const PipelineInstruction& instruction)
      const {
    const int model_chunk = shape_.model_chunk(stage, instruction.chunk);
    const bool forward = instruction.op == PipelineOp::kForward;
    if (forward ? model_chunk == 0 : model_chunk == shape_.model_chunks() - 1) {
      return 0;
    }
    if (instruction.op == PipelineOp::kBackwardWeight) {
      return 0; // after the input's gradient in the same list
    }
    const auto found = ends_.find(
        {forward, model_chunk + (forward ? -1 : 1), instruction.micro_batch});
    if (found == ends_.end()) {
      return {};
    }
    return found->second;
  }

  /// The computation that can start first.
  std::optional<Start> earliest() const {
    std::optional<Start> best;
    for (std::size_t stage = 0; stage < given_.stages.size(); ++stage) {
      const auto& list = given_.stages[stage];
      if (cursors_[stage] == list.size()) {
        continue;
      }
      const auto there = ready(static_cast<int>(stage), list[cursors_[stage]]);
      if (there) {
        const int start = std::max(clocks_[stage], *there);
        if (!best || start < best->start) {
          best = Start{start, stage};
        }
      }
    }
    return best;
  }

  void compute(std::size_t stage, int start) {
    const PipelineInstruction& done = given_.stages[stage][cursors_[stage]++];
    auto& list = result_.stages[stage];
    const int end = start + time_of(done.op);
    clocks_[stage] = end;
    list.push_back(done);
    if (completes_weights(done.op) && --weights_left_[stage][done.chunk] == 0) {
      list.push_back({PipelineOp::kReduceGradients, 0, done.chunk});
    }
    if (done.op == PipelineOp::kBackwardWeight) {
      return;
    }
    const bool forward = done.op == PipelineOp::kForward;
    const int model_chunk =
        shape_.model_chunk(static_cast<int>(stage), done.chunk);
    ends_[{forward, model_chunk, done.micro_batch}] = end;
    const bool last =
        forward ? model_chunk == shape_.model_chunks() - 1 : model_chunk == 0;
    if (!last && shape_.has_transfers()) {
      const PipelineOp op =
          forward ? PipelineOp::kSendActivation : PipelineOp::kSendGradient;
      waiting_.insert(
          {end, static_cast<int>(stage), {op, done.micro_batch, done.chunk}});
    }
  }

  /// Puts both ends of transfers that are ready by `time` into their lists.
  void send_until(int time) {
    while (!waiting_.empty() && waiting_.begin()->time <= time) {
      const Transfer transfer = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      const TransferEnd end = other_end(shape_, transfer.stage, transfer.send);
      result_.stages[static_cast<std::size_t>(transfer.stage)].push_back(
          transfer.send);
      result_.stages[static_cast<std::size_t>(end.stage)].push_back(
          end.instruction);
    }
  }

  int time_of_end() const {
    return *std::max_element(clocks_.begin(), clocks_.end());
  }

  const PipelineSchedule& given_;
  const PipelineShape shape_;
  PipelineSchedule result_;
  std::vector<int> clocks_;
  std::vector<std::size_t> cursors_;
  std::vector<std::map<int, int>> weights_left_; ///< by stage and chunk
  std::map<Value, int> ends_;
  // A pipeline stage ends one computation at a time, so no two are equal.
  std::set<Transfer> waiting_;
};

} // namespace

PipelineSchedule with_transfers(const PipelineSchedule& computations) {
  return TransferPlacement(computations).run();
}

} // namespace tessera::pipeline
