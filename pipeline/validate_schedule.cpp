// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/validate_schedule.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace tessera::pipeline {

namespace {

using List = std::vector<PipelineInstruction>;

/// Follows the list of one pipeline stage and tracks what has been done in it.
class StageCheck {
 public:
  StageCheck(const PipelineSchedule& schedule, int stage)
      : shape_(schedule.shape),
        trains_(schedule.trains),
        list_(schedule.stages[static_cast<std::size_t>(stage)]),
        stage_(stage) {}

  /// @return the most activations stored at a time.
  int run() {
    for (position_ = 0; position_ < list_.size(); ++position_) {
      follow(list_[position_]);
    }
    check_complete();
    return peak_;
  }

 private:
  using Op = PipelineOp;

  bool did(Op op, int micro_batch, int chunk) const {
    return done_.count({static_cast<int>(op), {micro_batch, chunk}}) > 0;
  }

  /// The gradient of the chunk's input exists.
  bool has_input_gradient(int micro_batch, int chunk) const {
    return did(Op::kBackward, micro_batch, chunk) ||
           did(Op::kBackwardInput, micro_batch, chunk);
  }

  bool has_weight_gradient(int micro_batch, int chunk) const {
    return did(Op::kBackward, micro_batch, chunk) ||
           did(Op::kBackwardWeight, micro_batch, chunk);
  }

  void require(bool condition, const char* problem) const {
    TESSERA_CHECK(
        condition,
        "the pipeline schedule is wrong: stage {}, instruction {} ({}): {}.",
        stage_,
        position_,
        describe(list_[position_]),
        problem);
  }

  void follow(const PipelineInstruction& now) {
    const auto [op, i, chunk] = now;
    require(
        i >= 0 && i < shape_.micro_batches && chunk >= 0 &&
            chunk < shape_.chunks,
        "there is no such micro-batch or chunk");
    require(!did(op, i, chunk), "it was already done");
    require(
        trains_ || op == Op::kForward || op == Op::kSendActivation ||
            op == Op::kReceiveActivation,
        "a schedule that does not train has forwards only");
    if (is_transfer(op)) {
      other_end(shape_, stage_, now); // throws when there is none
    }
    switch (op) {
      case Op::kForward:
        require(input_is_there(i, chunk), "its input is not there yet");
        stored_ += trains_ ? 1 : 0;
        peak_ = std::max(peak_, stored_);
        break;
      case Op::kBackward:
      case Op::kBackwardInput:
        require(did(Op::kForward, i, chunk), "its forward has not run yet");
        require(
            !has_input_gradient(i, chunk),
            "the gradient of the input was already computed");
        require(gradient_is_there(i, chunk), "its gradient is not there yet");
        break;
      case Op::kBackwardWeight:
        require(
            did(Op::kBackwardInput, i, chunk),
            "the gradient of the input has to be computed first, by itself");
        break;
      case Op::kSendActivation:
        require(did(Op::kForward, i, chunk), "its forward has not run yet");
        break;
      case Op::kSendGradient:
        require(has_input_gradient(i, chunk), "its backward has not run yet");
        break;
      case Op::kReduceGradients:
        require(i == 0, "a reduction has no micro-batch");
        require(weights_are_complete(chunk), "a gradient is still missing");
        break;
      case Op::kReceiveActivation:
      case Op::kReceiveGradient:
        break;
    }
    done_.insert({static_cast<int>(op), {i, chunk}});
    if (op == Op::kBackward || op == Op::kBackwardWeight) {
      --stored_;
    }
  }

  bool input_is_there(int i, int chunk) const {
    if (shape_.model_chunk(stage_, chunk) == 0) {
      return true;
    }
    return shape_.has_transfers() ? did(Op::kReceiveActivation, i, chunk)
                                  : did(Op::kForward, i, chunk - 1);
  }

  bool gradient_is_there(int i, int chunk) const {
    if (shape_.model_chunk(stage_, chunk) == shape_.model_chunks() - 1) {
      return true;
    }
    return shape_.has_transfers() ? did(Op::kReceiveGradient, i, chunk)
                                  : has_input_gradient(i, chunk + 1);
  }

  bool weights_are_complete(int chunk) const {
    for (int i = 0; i < shape_.micro_batches; ++i) {
      if (!has_weight_gradient(i, chunk)) {
        return false;
      }
    }
    return true;
  }

  void check_complete() const {
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      const int model_chunk = shape_.model_chunk(stage_, chunk);
      for (int i = 0; i < shape_.micro_batches; ++i) {
        expect(did(Op::kForward, i, chunk), {Op::kForward, i, chunk});
        expect(
            !trains_ || has_weight_gradient(i, chunk),
            {Op::kBackward, i, chunk});
        if (trains_ && shape_.has_transfers() && model_chunk > 0) {
          expect(
              did(Op::kSendGradient, i, chunk), {Op::kSendGradient, i, chunk});
        }
        if (shape_.has_transfers() && model_chunk < shape_.model_chunks() - 1) {
          expect(
              did(Op::kSendActivation, i, chunk),
              {Op::kSendActivation, i, chunk});
        }
      }
      expect(
          !trains_ || did(Op::kReduceGradients, 0, chunk),
          {Op::kReduceGradients, 0, chunk});
    }
  }

  void expect(bool found, const PipelineInstruction& wanted) const {
    TESSERA_CHECK(
        found,
        "the pipeline schedule is wrong: stage {} has no {}.",
        stage_,
        describe(wanted));
  }

  const PipelineShape shape_;
  const bool trains_;
  const List& list_;
  const int stage_;
  std::size_t position_ = 0;
  std::set<std::pair<int, std::pair<int, int>>> done_;
  int stored_ = 0;
  int peak_ = 0;
};

/// The position of an instruction.
struct SchedulePosition {
  int stage = 0;
  std::size_t index = 0;

  bool operator<(const SchedulePosition& other) const {
    return std::pair(stage, index) < std::pair(other.stage, other.index);
  }
};

const PipelineInstruction& at(
    const PipelineSchedule& schedule,
    const SchedulePosition& position) {
  return schedule
      .stages[static_cast<std::size_t>(position.stage)][position.index];
}

/// Matches the k-th send from one pipeline stage to another with the k-th
/// receive. Their numbers are equal: StageCheck has found one for every value
/// that crosses a border.
std::map<SchedulePosition, SchedulePosition> match_transfers(
    const PipelineSchedule& schedule) {
  // By the two pipeline stages, sender first.
  std::map<std::pair<int, int>, std::vector<SchedulePosition>> sends;
  std::map<std::pair<int, int>, std::vector<SchedulePosition>> receives;
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    const List& list = schedule.stages[static_cast<std::size_t>(stage)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_transfer(list[i].op)) {
        continue;
      }
      const int other = other_end(schedule.shape, stage, list[i]).stage;
      if (is_send(list[i].op)) {
        sends[{stage, other}].push_back({stage, i});
      } else {
        receives[{other, stage}].push_back({stage, i});
      }
    }
  }
  std::map<SchedulePosition, SchedulePosition> partners;
  for (const auto& [ends, sent] : sends) {
    const auto& received = receives[ends];
    for (std::size_t k = 0; k < sent.size(); ++k) {
      const TransferEnd expected =
          other_end(schedule.shape, ends.first, at(schedule, sent[k]));
      TESSERA_CHECK(
          at(schedule, received[k]) == expected.instruction,
          "the pipeline schedule is wrong: transfer {} from stage {} to stage {} is a {}, but the other side has a {}. What is sent first must be received first.",
          k,
          ends.first,
          ends.second,
          describe(at(schedule, sent[k])),
          describe(at(schedule, received[k])));
      partners[sent[k]] = received[k];
      partners[received[k]] = sent[k];
    }
  }
  return partners;
}

/// Executes a schedule in which a send is done when it is received.
class Rendezvous {
 public:
  explicit Rendezvous(const PipelineSchedule& schedule)
      : schedule_(schedule),
        partners_(match_transfers(schedule)),
        done_(schedule.stages.size()) {}

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < schedule_.shape.stages; ++stage) {
        while (advance(stage)) {
          moved = true;
        }
      }
    }
    std::string stuck;
    for (int stage = 0; stage < schedule_.shape.stages; ++stage) {
      if (done(stage) < list(stage).size()) {
        stuck += formatted(
            " Stage {}: {}.", stage, describe(first_unmatched(stage)));
      }
    }
    TESSERA_CHECK(
        stuck.empty(),
        "the pipeline schedule deadlocks. What each stage waits for:{}",
        stuck);
  }

 private:
  const List& list(int stage) const {
    return schedule_.stages[static_cast<std::size_t>(stage)];
  }
  std::size_t done(int stage) const {
    return done_[static_cast<std::size_t>(stage)];
  }

  /// How much of its list a pipeline stage has done or begun, including all of
  /// its current batch of transfers.
  std::size_t issued(int stage) const {
    std::size_t index = done(stage);
    while (index < list(stage).size() && is_transfer(list(stage)[index].op)) {
      ++index;
    }
    return index;
  }

  bool is_met(const SchedulePosition& position) const {
    const SchedulePosition& partner = partners_.at(position);
    return partner.index < issued(partner.stage);
  }

  bool advance(int stage) {
    const std::size_t begin = done(stage);
    const std::size_t end = issued(stage);
    for (std::size_t i = begin; i < end; ++i) {
      if (!is_met({stage, i})) {
        return false;
      }
    }
    const bool computes = begin == end && begin < list(stage).size();
    done_[static_cast<std::size_t>(stage)] = computes ? begin + 1 : end;
    return computes || end > begin;
  }

  const PipelineInstruction& first_unmatched(int stage) const {
    std::size_t index = done(stage);
    while (is_met({stage, index})) {
      ++index;
    }
    return list(stage)[index];
  }

  const PipelineSchedule& schedule_;
  std::map<SchedulePosition, SchedulePosition> partners_;
  std::vector<std::size_t> done_;
};

} // namespace

ScheduleFacts validate_schedule(const PipelineSchedule& schedule) {
  TESSERA_CHECK(
      schedule.shape.stages >= 1 &&
          schedule.stages.size() ==
              static_cast<std::size_t>(schedule.shape.stages),
      "the pipeline schedule is wrong: it has {} lists of instructions for {} stages.",
      schedule.stages.size(),
      schedule.shape.stages);
  ScheduleFacts facts;
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    facts.peak_stored.push_back(StageCheck(schedule, stage).run());
  }
  Rendezvous(schedule).run();
  return facts;
}

} // namespace tessera::pipeline
