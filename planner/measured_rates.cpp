// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/measured_rates.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

namespace tessera::planner {

namespace {

/// What shards are sent with. Between nodes, the bus bandwidth of a ring is
/// what leaves a node, of all its devices.
void read_comm(const nlohmann::json& comm, DeviceRates& rates) {
  std::map<std::string, double> best;
  for (const auto& result : comm.at("results")) {
    double& bandwidth = best[result.at("collective").get<std::string>()];
    bandwidth = std::max(bandwidth, result.at("busbw").get<double>());
  }
  double slowest = 0;
  for (const char* collective : {"all_gather", "reduce_scatter"}) {
    if (const double bandwidth = best[collective]; bandwidth > 0) {
      slowest = slowest == 0 ? bandwidth : std::min(slowest, bandwidth);
    }
  }
  const int nodes = comm.at("nodes").get<int>();
  if (slowest > 0 && nodes == 1) {
    rates.in_node = slowest;
  } else if (slowest > 0) {
    rates.between_nodes = slowest * nodes / comm.at("ranks").get<int>();
  }
}

/// Of training steps on the CPU.
MeasuredSteps read_steps(const nlohmann::json& training) {
  MeasuredSteps steps{
      .kernels = training.at("kernels").get<double>(),
      .others = training.at("others").get<double>()};
  for (const auto& row : training.at("operators")) {
    const auto dtype = row.at("dtype").get<std::string>();
    steps.operators.push_back(
        {.name = row.at("name").get<std::string>(),
         .in_backward = row.at("backward").get<bool>(),
         .is_rounded = row.value("rounded", false), // files of before have none
         .dtype = dtype == c10::toString(c10::ScalarType::BFloat16)
                      ? c10::ScalarType::BFloat16
                      : c10::ScalarType::Float,
         .work = row.at("work").get<double>(),
         .seconds = row.at("seconds").get<double>()});
  }
  return steps;
}

} // namespace

DeviceRates measured_rates(
    const nlohmann::json& bench,
    c10::DeviceType device,
    DeviceRates rates) {
  if (const auto nodes = bench.find("numa_nodes"); nodes != bench.end()) {
    double update = 0;
    for (const auto& node : *nodes) {
      double best = 0;
      for (const auto& row : node.at("bandwidth")) {
        best = std::max(best, row.at("update").get<double>());
      }
      update += best;
    }
    rates.host_update = update > 0 ? update : rates.host_update;
  }
  if (const auto cpu = bench.find("cpu_operators");
      cpu != bench.end() && device == c10::kCPU) {
    rates.flops_32bit = cpu->at("products_32bit").get<double>();
    rates.flops_16bit = cpu->at("products_16bit").get<double>();
    rates.attention_16bit = cpu->at("attention_16bit").get<double>();
    // Not on processors that cannot, nor in files of before.
    rates.flops_rounded = cpu->value("products_rounded", rates.flops_rounded);
    rates.device_memory = cpu->at("elementwise").get<double>();
  }
  if (const auto training = bench.find("training");
      training != bench.end() && device == c10::kCPU) {
    const MeasuredSteps steps = read_steps(*training);
    rates.device_memory = steps.others;
    rates.operators = std::make_shared<OperatorRates>(steps);
  }
  if (const auto disk = bench.find("disk");
      disk != bench.end() && !disk->is_null()) {
    rates.nvme = std::min(
        disk->at("read").get<double>(), disk->at("write").get<double>());
  }
  if (const auto devices = bench.find("devices"); devices != bench.end()) {
    for (const auto& device : *devices) {
      rates.host_to_device = std::min(
          rates.host_to_device, device.at("host_to_device").get<double>());
      rates.device_to_host = std::min(
          rates.device_to_host, device.at("device_to_host").get<double>());
    }
  }
  if (const auto comm = bench.find("comm"); comm != bench.end()) {
    read_comm(*comm, rates);
  }
  return rates;
}

} // namespace tessera::planner
