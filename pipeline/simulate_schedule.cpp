// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/simulate_schedule.h"

#include "tessera/pipeline/validate_schedule.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace tessera::pipeline {

namespace {

/// A transfer by its receiving end.
using Arrival = std::tuple<int, PipelineOp, int, int>;

Arrival arrival_of(int stage, const PipelineInstruction& receive) {
  return {stage, receive.op, receive.micro_batch, receive.chunk};
}

class Simulation {
 public:
  Simulation(
      const PipelineSchedule& schedule,
      const std::vector<ModelChunkCost>& costs)
      : schedule_(schedule),
        shape_(schedule.shape),
        costs_(costs),
        next_(schedule.stages.size()),
        clocks_(schedule.stages.size()),
        busy_(schedule.stages.size()) {}

  SimulatedPipeline run() {
    // A valid schedule always has a pipeline stage that can proceed.
    for (std::size_t left = instructions(); left > 0;) {
      for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
        while (advance(stage)) {
          --left;
        }
      }
    }
    SimulatedPipeline result;
    result.busy = busy_;
    result.makespan = *std::max_element(clocks_.begin(), clocks_.end());
    const double busy = std::accumulate(busy_.begin(), busy_.end(), 0.0);
    const double all = result.makespan * shape_.stages;
    result.bubble_fraction = all > 0 ? 1 - busy / all : 0;
    return result;
  }

 private:
  std::size_t instructions() const {
    std::size_t count = 0;
    for (const auto& list : schedule_.stages) {
      count += list.size();
    }
    return count;
  }

  /// Executes the next instruction of a pipeline stage, unless its input is not
  /// on the way yet.
  bool advance(std::size_t stage) {
    const auto& list = schedule_.stages[stage];
    if (next_[stage] == list.size()) {
      return false;
    }
    const PipelineInstruction& now = list[next_[stage]];
    if (is_transfer(now.op)) {
      issue(static_cast<int>(stage), now);
    } else if (now.op != PipelineOp::kReduceGradients) {
      const auto start = ready(static_cast<int>(stage), now);
      if (!start) {
        return false;
      }
      const double time = time_of(static_cast<int>(stage), now);
      clocks_[stage] = std::max(clocks_[stage], *start) + time;
      busy_[stage] += time;
    }
    ++next_[stage];
    return true;
  }

  void issue(int stage, const PipelineInstruction& transfer) {
    const double now = clocks_[static_cast<std::size_t>(stage)];
    const TransferEnd other = other_end(shape_, stage, transfer);
    const bool sends = is_send(transfer.op);
    const Arrival arrival = sends ? arrival_of(other.stage, other.instruction)
                                  : arrival_of(stage, transfer);
    const auto [found, first] = issued_.try_emplace(arrival, now);
    if (first) {
      return;
    }
    const int from = sends ? stage : other.stage;
    const int to = sends ? other.stage : stage;
    double& link_free = links_[{from, to}];
    const double start = std::max({now, found->second, link_free});
    const int model_chunk = std::min(
        shape_.model_chunk(stage, transfer.chunk),
        shape_.model_chunk(other.stage, other.instruction.chunk));
    link_free = start + cost_of(model_chunk).transfer;
    arrivals_[arrival] = link_free;
  }

  /// The time at which all inputs of a computation have arrived.
  std::optional<double> ready(int stage, const PipelineInstruction& now) const {
    const int model_chunk = shape_.model_chunk(stage, now.chunk);
    const bool forward = now.op == PipelineOp::kForward;
    if (now.op == PipelineOp::kBackwardWeight || !shape_.has_transfers() ||
        model_chunk == (forward ? 0 : shape_.model_chunks() - 1)) {
      return 0; // comes from this stage
    }
    const PipelineOp receive =
        forward ? PipelineOp::kReceiveActivation : PipelineOp::kReceiveGradient;
    const auto found = arrivals_.find(
        arrival_of(stage, {receive, now.micro_batch, now.chunk}));
    if (found == arrivals_.end()) {
      return {};
    }
    return found->second;
  }

  double time_of(int stage, const PipelineInstruction& now) const {
    const ModelChunkCost& cost = cost_of(shape_.model_chunk(stage, now.chunk));
    switch (now.op) {
      case PipelineOp::kForward:
        return cost.forward;
      case PipelineOp::kBackwardInput:
        return cost.backward_input;
      case PipelineOp::kBackwardWeight:
        return cost.backward_weight;
      default:
        return cost.backward_input + cost.backward_weight;
    }
  }

  const ModelChunkCost& cost_of(int model_chunk) const {
    return costs_[static_cast<std::size_t>(model_chunk)];
  }

  const PipelineSchedule& schedule_;
  const PipelineShape shape_;
  const std::vector<ModelChunkCost>& costs_;
  std::vector<std::size_t> next_;
  std::vector<double> clocks_;
  std::vector<double> busy_;
  std::map<Arrival, double> issued_; ///< by the first of the two ends
  std::map<Arrival, double> arrivals_;
  std::map<std::pair<int, int>, double> links_; ///< when each is free again
};

} // namespace

SimulatedPipeline simulate_schedule(
    const PipelineSchedule& schedule,
    const std::vector<ModelChunkCost>& costs) {
  const ScheduleFacts facts = validate_schedule(schedule);
  TESSERA_CHECK(
      costs.size() == static_cast<std::size_t>(schedule.shape.model_chunks()),
      "simulate_schedule: {} costs for the {} pieces of the model; give one for each.",
      costs.size(),
      schedule.shape.model_chunks());
  for (const ModelChunkCost& cost : costs) {
    TESSERA_CHECK(
        cost.forward >= 0 && cost.backward_input >= 0 &&
            cost.backward_weight >= 0 && cost.transfer >= 0,
        "simulate_schedule: piece {} has a time that is negative or not a number.",
        &cost - costs.data());
  }
  SimulatedPipeline result = Simulation(schedule, costs).run();
  result.peak_stored = facts.peak_stored;
  return result;
}

} // namespace tessera::pipeline
