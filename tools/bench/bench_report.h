// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BenchFindings` holds the results of `tessera bench`, which can be printed as
// JSON and as text.

#include "bench/cpu_operators.h"
#include "bench/device_copy.h"
#include "bench/disk.h"
#include "bench/host_memory.h"
#include "bench/prediction.h"
#include "tessera/planner/operator_rates.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace tessera::tools {

struct BenchFindings {
  std::vector<NumaNodeBandwidth> nodes;
  std::string disk_folder;
  std::optional<DiskBandwidth> disk;
  std::vector<DeviceBandwidth> devices;
  CpuOperatorRates cpu_operators;
  /// Of training steps on the CPU, if they were measured.
  std::optional<planner::MeasuredSteps> training;
  BytesPerParameter bytes;
  std::vector<double> parameter_counts;
  double seconds = 0; ///< duration of the measurements
};

/// The bandwidths that predictions are based on: all NUMA nodes together, each
/// at its best number of threads; the slowest device; the disk.
Bandwidths bandwidths_of(const BenchFindings& findings);

/// Rates in bytes and operations per second, times in seconds.
nlohmann::ordered_json to_json(const BenchFindings& findings);

/// Tables for a terminal, in GB/s (10^9) and ms.
std::string to_text(const BenchFindings& findings);

} // namespace tessera::tools
