// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/plan/search/step_time.h"

#include "tessera/engine/plan/operator_times.h"
#include "tessera/pipeline/simulate_schedule.h"

#include <algorithm>
#include <string>

namespace tessera::engine {

namespace {

/// Adam on the host: reads master weight, two moments and gradient, and writes
/// the first three; float32.
constexpr double kUpdateBytes = 28;
/// Of its state, moments; in 16 bits also master weights.
constexpr double kMomentBytes = 8;
constexpr double kMasterBytes = 4;
/// An average of the weights, on the host too: reads weight and average, and
/// writes the latter; float32.
constexpr double kAverageUpdateBytes = 12;
constexpr double kAverageBytes = 4;

/// Of a pipeline's micro-batches, in numbers of its stages, as many as make the
/// wait that of a long step.
constexpr int64_t kSimulatedRounds = 4;

/// Computation on the device, in both directions.
struct ComputeTimes {
  double forward = 0;
  double backward = 0;
  double least = 0; ///< StepTime::least_compute

  double total() const {
    return forward + backward;
  }
};

ComputeTimes compute_times(
    const StepMemoryPlan& plan,
    bool in_16bit,
    const DeviceRates& rates) {
  ComputeTimes times;
  for (const OperatorWork& work : plan.operators) {
    if (work.place != WorkPlace::kDevice) {
      continue;
    }
    const double products = work.flops / flops_rate(work, in_16bit, rates);
    const double memory = work.bytes / rates.device_memory;
    (work.in_backward ? times.backward : times.forward) +=
        std::max(products, memory);
    times.least += work.flops > 0 ? products : memory;
  }
  return times;
}

/// Between host and device, both ways at the same time; not for updates.
double copy_seconds(const StepMemoryPlan& plan, const DeviceRates& rates) {
  double to_host = 0;
  double to_device = 0;
  for (const OperatorWork& work : plan.operators) {
    to_host += work.place == WorkPlace::kToHost ? work.bytes : 0;
    to_device += work.place == WorkPlace::kToDevice ? work.bytes : 0;
  }
  return std::max(
      to_host / rates.device_to_host, to_device / rates.host_to_device);
}

/// What the stages of a pipeline wait, whatever their number of micro-batches.
/// @param costs of a micro-batch, by stage.
double idle_seconds(
    const std::vector<pipeline::PieceCost>& costs,
    const EstimatedRun& run) {
  if (run.stages == 1) {
    return 0;
  }
  PipelineShape shape;
  shape.stages = run.stages;
  shape.chunks = run.chunks;
  // In whole rounds, as interleaving wants; the wait is at both ends.
  const int64_t rounds =
      std::clamp<int64_t>(run.accumulate / run.stages, 1, kSimulatedRounds);
  shape.micro_batches = static_cast<int>(
      rounds == kSimulatedRounds || run.chunks > 1 ? rounds * run.stages
                                                   : run.accumulate);
  std::vector<pipeline::PieceCost> pieces;
  for (int piece = 0; piece < shape.pieces(); ++piece) {
    pipeline::PieceCost cost =
        costs[static_cast<size_t>(shape.stage_of(piece))];
    cost.forward /= run.chunks;
    cost.backward_input /= run.chunks;
    cost.backward_weight /= run.chunks;
    pieces.push_back(cost);
  }
  const auto simulated =
      pipeline::simulate_schedule(make_schedule(run.schedule, shape), pieces);
  return simulated.makespan -
         *std::max_element(simulated.busy.begin(), simulated.busy.end());
}

struct CollectiveTimes {
  double shards = 0;
  double layers = 0;
};

CollectiveTimes collective_seconds(
    const StepMemoryPlan& plan,
    const Machine& machine) {
  CollectiveTimes times;
  for (const CollectiveWork& work : plan.collectives) {
    if (work.ranks < 2) {
      continue;
    }
    // Ranks that divide layers are neighbors; shards are over all the others.
    const bool is_of_shards = work.communicator.starts_with("engine ");
    const bool in_node = is_of_shards
                             ? machine.devices <= machine.devices_per_node
                             : work.ranks <= machine.devices_per_node;
    const double seconds =
        sent_bytes(work) /
        (in_node ? machine.rates.in_node : machine.rates.between_nodes);
    (is_of_shards ? times.shards : times.layers) += seconds;
  }
  return times;
}

/// Of state that rests on the host.
double update_seconds(
    const StepMemoryPlan& plan,
    const EstimatedRun& run,
    const Machine& machine) {
  const auto state = static_cast<double>(plan.planned[static_cast<size_t>(
      MemoryTier::kHost)][static_cast<size_t>(MemoryPurpose::kOptimizerState)]);
  if (state == 0 || machine.device == c10::kCPU) {
    return 0;
  }
  const double elements =
      state / (kMomentBytes + (run.in_16bit ? kMasterBytes : 0) +
               (run.averages_weights ? kAverageBytes : 0));
  const int sharing = std::min(machine.devices, machine.devices_per_node);
  const double update =
      elements *
      (kUpdateBytes + (run.averages_weights ? kAverageUpdateBytes : 0)) *
      sharing / machine.rates.host_update;
  // Gradients down and weights up, in 16 bits, while the CPUs update.
  const double moved = std::max(
      2 * elements / machine.rates.device_to_host,
      2 * elements / machine.rates.host_to_device);
  return std::max(update, moved);
}

} // namespace

double StepTime::total() const {
  return std::max({compute, shards, activations, copies}) + layers + idle +
         update;
}

double StepTime::total_with_more_rows() const {
  return least_compute + layers + update;
}

StepTime estimate_step(
    const std::vector<StepMemoryPlan>& plans,
    const EstimatedRun& run,
    const Machine& machine) {
  StepTime slowest;
  std::vector<pipeline::PieceCost> costs;
  for (const StepMemoryPlan& plan : plans) {
    const double times = static_cast<double>(run.accumulate) /
                         static_cast<double>(run.planned_accumulate);
    const CollectiveTimes sent = collective_seconds(plan, machine);
    const ComputeTimes computed =
        compute_times(plan, run.in_16bit, machine.rates);
    StepTime time;
    time.compute = times * computed.total();
    time.least_compute = times * computed.least;
    time.shards = times * sent.shards;
    time.layers = times * sent.layers;
    time.copies = times * copy_seconds(plan, machine.rates);
    if (run.host_activation_bytes > 0) {
      time.activations =
          static_cast<double>(run.accumulate) * run.host_activation_bytes *
          (1 / machine.rates.device_to_host + 1 / machine.rates.host_to_device);
    }
    time.update = update_seconds(plan, run, machine);
    if (time.total() > slowest.total()) {
      slowest = time;
    }
    // Collectives between layers are in both directions alike.
    const auto batches = static_cast<double>(run.planned_accumulate);
    const double half = computed.backward / 2;
    costs.push_back(
        {.forward = (computed.forward + sent.layers / 2) / batches,
         .backward_input = (half + sent.layers / 4) / batches,
         .backward_weight = (half + sent.layers / 4) / batches});
  }
  slowest.idle = idle_seconds(costs, run);
  return slowest;
}

} // namespace tessera::engine
