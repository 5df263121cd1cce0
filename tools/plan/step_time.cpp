// SPDX-License-Identifier: Apache-2.0
#include "plan/step_time.h"

#include "tessera/engine/plan/operator_times.h"

#include <algorithm>
#include <string>

namespace tessera::tools {

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

double compute_seconds(
    const StepMemoryPlan& plan,
    bool in_16bit,
    const DeviceRates& rates) {
  double seconds = 0;
  for (const OperatorWork& work : plan.operators) {
    seconds += std::max(
        work.flops / engine::flops_rate(work, in_16bit, rates),
        work.bytes / rates.device_memory);
  }
  return seconds;
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
        engine::sent_bytes(work) /
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
  return std::max({compute, shards, activations}) + layers + idle + update;
}

StepTime estimate_step(
    const std::vector<StepMemoryPlan>& plans,
    const EstimatedRun& run,
    const Machine& machine) {
  StepTime slowest;
  for (const StepMemoryPlan& plan : plans) {
    const double times = static_cast<double>(run.accumulate) /
                         static_cast<double>(run.planned_accumulate);
    const CollectiveTimes sent = collective_seconds(plan, machine);
    StepTime time;
    time.compute = times * compute_seconds(plan, run.in_16bit, machine.rates);
    time.shards = times * sent.shards;
    time.layers = times * sent.layers;
    if (run.host_activation_bytes > 0) {
      time.activations =
          static_cast<double>(run.accumulate) * run.host_activation_bytes *
          (1 / machine.rates.device_to_host + 1 / machine.rates.host_to_device);
    }
    time.idle = (time.compute + time.layers) *
                static_cast<double>(run.stages - 1) /
                static_cast<double>(run.accumulate);
    time.update = update_seconds(plan, run, machine);
    if (time.total() > slowest.total()) {
      slowest = time;
    }
  }
  return slowest;
}

} // namespace tessera::tools
