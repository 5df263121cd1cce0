// SPDX-License-Identifier: Apache-2.0
#pragma once
// `predict_step()` says how long the operators of a planned step take at least,
// each at the rate of what bounds it: a roofline.

#include "tessera/planner/device_rates.h"
#include "tessera/planner/step_plan.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::planner {

/// What an operator's time is at least.
enum class OperatorBound {
  kProducts, ///< floating-point operations
  kMemory, ///< bytes of the device's memory
  kHostMemory, ///< bytes of the host's, in updates on the CPUs
  kToHost, ///< bytes of copies
  kToDevice,
  kLinks, ///< bytes sent to other ranks
};

/// All calls of an operator in forward or backward, of all modules.
struct OperatorTime {
  std::string name; ///< "aten::mm"; of collectives "all_gather, engine shards"
  bool in_backward = false;
  int64_t calls = 0;
  double flops = 0; ///< as computed: without what a causal mask hides
  double bytes = 0;
  double seconds = 0;
  OperatorBound bound = OperatorBound::kMemory;
};

struct StepPrediction {
  std::string device; ///< as given
  DeviceRates rates;
  std::vector<OperatorTime> operators; ///< the longest first
  /// Sums of `operators`, by what works at the same time.
  double device_s = 0;
  double links_s = 0;
  double to_host_s = 0;
  double to_device_s = 0;
  double host_s = 0;
  /// FLOPs of the model: without what is computed again, with all scores of
  /// attention.
  double model_flops = 0;
  /// The data sheet's rate of products of the type that most are of.
  std::optional<double> peak_flops;

  /// The step if all of these overlap perfectly.
  double seconds() const;
  /// The step if nothing overlaps.
  double seconds_in_turn() const;
  /// Model FLOPs utilization of seconds(); nothing without a peak.
  std::optional<double> mfu() const;
};

/// Operations/s of an operator's products: rates.attention_16bit,
/// .flops_16bit, .flops_rounded or .flops_32bit.
double flops_rate(
    const OperatorWork& work,
    bool in_16bit,
    const DeviceRates& rates);

/// Seconds of an operator on the device: as measured (rates.operators), else
/// its operations at the flops_rate() of their type or its bytes at
/// rates.device_memory, whichever takes longer.
/// @param flops of them, those that are computed.
double operator_seconds(
    const OperatorWork& work,
    double flops,
    bool in_16bit,
    const DeviceRates& rates);

/// Seconds of one of the engine's kernels on the device.
double kernel_seconds(const OperatorWork& work, const DeviceRates& rates);

/// Products at the flops_rate() of their type, all other operators and kernels
/// at the rate of the memory that they use, collectives at rates.in_node. What
/// is called many times takes no longer than that: launches, gaps and waits are
/// not in it.
/// @param plan of a run on kCUDA (PlannedJob::device), so that its operators
/// are
///   those of CUDA.
/// @param device a name of known_rates().
StepPrediction predict_step(
    const StepMemoryPlan& plan,
    const std::string& device,
    const DeviceRates& rates);

/// Bytes that a rank sends, of the best known algorithms; see nccl-tests'
/// PERFORMANCE.md.
double sent_bytes(const CollectiveWork& work);

/// The operators in lines of 80 columns, and their sums.
std::string prediction_table(const StepPrediction& prediction);

/// Seconds, FLOPs, bytes and rates; operators in the order of the table.
nlohmann::ordered_json prediction_json(const StepPrediction& prediction);

} // namespace tessera::planner
