// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/step_time.h"

#include "tessera/pipeline/simulate_schedule.h"
#include "tessera/planner/operator_times.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>

namespace tessera::planner {

namespace {

/// Of a pipeline's micro-batches, in numbers of its stages, as many as make the
/// wait that of a long step.
constexpr int64_t kSimulatedRounds = 4;

/// Computation on the device, in both directions and once in a step.
struct ComputeTimes {
  double forward = 0;
  double backward = 0;
  double least = 0; ///< of both, StepTime::least_compute
  double update = 0; ///< the optimizer, and what it needs
};

ComputeTimes compute_times(
    const StepMemoryPlan& plan,
    bool in_16bit,
    bool updates_in_backward,
    const DeviceRates& rates) {
  ComputeTimes times;
  for (const OperatorWork& work : plan.operators) {
    if (work.place != WorkPlace::kDevice) {
      continue;
    }
    const double seconds = operator_seconds(work, work.flops, in_16bit, rates);
    (work.in_backward ? times.backward : times.forward) += seconds;
    times.least +=
        work.flops > 0
            ? std::min(seconds, work.flops / flops_rate(work, in_16bit, rates))
            : seconds;
  }
  for (const OperatorWork& work : plan.kernels) {
    if (work.place == WorkPlace::kDevice) {
      const double seconds = kernel_seconds(work, rates);
      const bool is_of_step = !work.in_backward || updates_in_backward;
      (is_of_step ? times.update : times.backward) += seconds;
      times.least += is_of_step ? 0 : seconds;
    }
  }
  return times;
}

/// What takes at least one of these, or, where nothing overlaps, all.
double together(bool overlaps, std::initializer_list<double> seconds) {
  return overlaps ? std::max(seconds)
                  : std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

/// Of activations, which go to the host in forward and come back in backward.
double activation_seconds(
    const StepMemoryPlan& plan,
    const DeviceRates& rates) {
  const CopiedBytes& copied = plan.activation_copies;
  return static_cast<double>(copied.to_host) / rates.device_to_host +
         static_cast<double>(copied.to_device) / rates.host_to_device;
}

/// Between host and device, both ways at the same time; not for updates, and
/// not of activations.
double copy_seconds(
    const StepMemoryPlan& plan,
    bool overlaps,
    const DeviceRates& rates) {
  auto to_host = -static_cast<double>(plan.activation_copies.to_host);
  auto to_device = -static_cast<double>(plan.activation_copies.to_device);
  for (const OperatorWork& work : plan.operators) {
    to_host += work.place == WorkPlace::kToHost ? work.bytes : 0;
    to_device += work.place == WorkPlace::kToDevice ? work.bytes : 0;
  }
  return together(
      overlaps,
      {to_host / rates.device_to_host, to_device / rates.host_to_device});
}

/// What the stages of a pipeline wait, whatever their number of micro-batches.
/// @param costs of a micro-batch, by stage.
double idle_seconds(
    const std::vector<pipeline::ModelChunkCost>& costs,
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
  std::vector<pipeline::ModelChunkCost> model_chunks;
  for (int model_chunk = 0; model_chunk < shape.model_chunks(); ++model_chunk) {
    pipeline::ModelChunkCost cost =
        costs[static_cast<size_t>(shape.stage_of(model_chunk))];
    cost.forward /= run.chunks;
    cost.backward_input /= run.chunks;
    cost.backward_weight /= run.chunks;
    model_chunks.push_back(cost);
  }
  const auto simulated = pipeline::simulate_schedule(
      make_schedule(run.schedule, shape), model_chunks);
  return simulated.makespan -
         *std::max_element(simulated.busy.begin(), simulated.busy.end());
}

struct CollectiveTimes {
  double shards = 0;
  double layers = 0;
};

/// Bytes/s out of a rank. Of ranks on several nodes those of a node send side
/// by side, each by its own link to other nodes.
double link_rate(const CollectiveWork& work, const Machine& machine) {
  const auto node_of = [&machine](int rank) {
    return rank / machine.devices_per_node;
  };
  auto beside = static_cast<double>(
      std::count_if(work.members.begin(), work.members.end(), [&](int rank) {
        return node_of(rank) == node_of(work.members.front());
      }));
  if (work.members.empty()) {
    beside = std::min(work.ranks, machine.devices_per_node);
  }
  if (beside == work.ranks) {
    return machine.rates.in_node;
  }
  if (work.kind == "send" || work.kind == "broadcast") { // one after another
    return machine.rates.between_nodes;
  }
  return std::min(machine.rates.in_node, machine.rates.between_nodes * beside);
}

CollectiveTimes collective_seconds(
    const StepMemoryPlan& plan,
    const Machine& machine) {
  CollectiveTimes times;
  for (const CollectiveWork& work : plan.collectives) {
    if (work.ranks < 2) {
      continue;
    }
    const bool is_of_shards = work.communicator.starts_with("engine ");
    const double seconds = sent_bytes(work) / link_rate(work, machine);
    (is_of_shards ? times.shards : times.layers) += seconds;
  }
  return times;
}

/// What a rank has on disks, in bytes.
double nvme_bytes(const StepMemoryPlan& plan, MemoryPurpose purpose) {
  return static_cast<double>(plan.planned[static_cast<size_t>(
      MemoryTier::kNvme)][static_cast<size_t>(purpose)]);
}

/// Of weights and gradients on disks: weights are read in both directions of a
/// micro-batch and written once, gradients read and written.
/// @param batches micro-batches.
double disk_seconds(
    const StepMemoryPlan& plan,
    double batches,
    const Machine& machine) {
  const double bytes =
      nvme_bytes(plan, MemoryPurpose::kParameters) * (2 * batches + 1) +
      nvme_bytes(plan, MemoryPurpose::kGradients) * 2 * batches;
  return bytes * machine.ranks_of_node() / machine.rates.nvme;
}

/// Updates of state in host memory: the CPUs of a node, gradients down, weights
/// up and disks have a lane each, and work at the same time.
/// @param times of what was planned in backward.
double host_update_seconds(
    const StepMemoryPlan& plan,
    double times,
    bool overlaps,
    const Machine& machine) {
  double host = 0;
  double to_host = 0;
  double to_device = 0;
  const auto add = [&](const OperatorWork& work, bool is_kernel) {
    // What is outside of backward is done once, by step().
    const double bytes = work.bytes * (work.in_backward ? times : 1);
    host += work.place == WorkPlace::kHost ? bytes : 0;
    if (is_kernel) { // copy_seconds() has the others
      to_host += work.place == WorkPlace::kToHost ? bytes : 0;
      to_device += work.place == WorkPlace::kToDevice ? bytes : 0;
    }
  };
  for (const OperatorWork& work : plan.operators) {
    add(work, /*is_kernel=*/false);
  }
  for (const OperatorWork& work : plan.kernels) {
    add(work, /*is_kernel=*/true);
  }
  return together(
      overlaps,
      {host * machine.ranks_of_node() / machine.rates.host_update,
       to_host / machine.rates.device_to_host,
       to_device / machine.rates.host_to_device,
       // State is read and written.
       2 * nvme_bytes(plan, MemoryPurpose::kOptimizerState) *
           machine.ranks_of_node() / machine.rates.nvme});
}

/// What of updates the device waits for: with UpdateOverlap::kWait they run
/// beside the next forward, which takes groups in the order of their updates,
/// and with kSpeculate also beside the backward that makes their gradients.
/// @param forward, backward of one micro-batch.
double exposed_update_seconds(
    double update,
    UpdateOverlap overlap,
    double forward,
    double backward) {
  switch (overlap) {
    case UpdateOverlap::kOff:
      return update;
    case UpdateOverlap::kAutomatic:
    case UpdateOverlap::kWait:
      return std::max(0.0, update - forward);
    case UpdateOverlap::kSpeculate:
      return std::max(0.0, update - forward - backward);
  }
  return update;
}

} // namespace

double StepTime::total() const {
  return together(overlaps, {compute, shards, activations, copies}) + layers +
         idle + update;
}

double StepTime::exposed(double StepTime::*part) const {
  return overlaps ? std::max(this->*part - compute, 0.0) : this->*part;
}

double StepTime::total_with_more_rows() const {
  return least_compute + layers + update;
}

StepTime estimate_step(
    const std::vector<StepMemoryPlan>& plans,
    const EstimatedRun& run,
    const Machine& machine) {
  StepTime slowest;
  std::vector<pipeline::ModelChunkCost> costs;
  for (const StepMemoryPlan& plan : plans) {
    const double times = static_cast<double>(run.accumulate) /
                         static_cast<double>(run.planned_accumulate);
    const CollectiveTimes sent = collective_seconds(plan, machine);
    const ComputeTimes computed = compute_times(
        plan, run.in_16bit, run.updates_in_backward, machine.rates);
    StepTime time;
    time.overlaps = machine.device != c10::kCPU;
    time.compute =
        times * (computed.forward + computed.backward) + computed.update;
    time.least_compute = times * computed.least + computed.update;
    time.device_update = computed.update;
    time.shards = times * sent.shards;
    time.layers = times * sent.layers;
    time.copies = std::max(
        times * copy_seconds(plan, time.overlaps, machine.rates),
        disk_seconds(plan, static_cast<double>(run.accumulate), machine));
    time.activations = times * activation_seconds(plan, machine.rates);
    const auto batches = static_cast<double>(run.planned_accumulate);
    time.update = exposed_update_seconds(
        // Updates in backward are those of a step, not of each micro-batch.
        host_update_seconds(
            plan,
            run.updates_in_backward || run.overlap == UpdateOverlap::kSpeculate
                ? 1
                : times,
            time.overlaps,
            machine),
        !time.overlaps            ? UpdateOverlap::kOff
        : run.updates_in_backward ? UpdateOverlap::kSpeculate
                                  : run.overlap,
        computed.forward / batches,
        computed.backward / batches);
    if (time.total() > slowest.total()) {
      slowest = time;
    }
    // Collectives between layers are in both directions alike.
    const double half = computed.backward / 2;
    costs.push_back(
        {.forward = (computed.forward + sent.layers / 2) / batches,
         .backward_input = (half + sent.layers / 4) / batches,
         .backward_weight = (half + sent.layers / 4) / batches});
  }
  slowest.idle = idle_seconds(costs, run);
  return slowest;
}

std::vector<double> timeline_seconds(
    const StepMemoryPlan& plan,
    bool in_16bit,
    const DeviceRates& rates) {
  const auto of_calls = [&](const std::vector<OperatorWork>& rows,
                            bool are_kernels) {
    std::vector<double> seconds;
    for (const OperatorWork& work : rows) {
      const double all =
          are_kernels ? kernel_seconds(work, rates)
                      : operator_seconds(work, work.flops, in_16bit, rates);
      seconds.push_back(
          work.place == WorkPlace::kDevice
              ? all / static_cast<double>(work.calls)
              : 0);
    }
    return seconds;
  };
  const std::vector<double> operators = of_calls(plan.operators, false);
  const std::vector<double> kernels = of_calls(plan.kernels, true);
  std::vector<double> seconds;
  double passed = 0;
  size_t next = 0;
  for (const MemoryMoment& moment : plan.timeline) {
    for (; next < std::min(moment.calls, plan.calls.size()); ++next) {
      const WorkCall& call = plan.calls[next];
      passed += (call.is_kernel ? kernels : operators)[call.row];
    }
    seconds.push_back(passed);
  }
  return seconds;
}

} // namespace tessera::planner
