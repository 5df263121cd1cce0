// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/profile/device_peak.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string_view>

namespace tessera::tools {

void visit_fields(runtime::OptionFields& fields, Rates& rates) {
  const auto rate = [&](const char* key, double& value, const char* meaning) {
    fields.field(key, value, {.min = 0, .open_min = true}, meaning);
  };
  rate(
      "flops_16bit",
      rates.flops_16bit,
      "operations/s of a device, matrix products of 16 bits");
  rate("flops_32bit", rates.flops_32bit, "the same of 32 bits");
  rate(
      "device_memory", rates.device_memory, "bytes/s of a device's own memory");
  rate(
      "in_node",
      rates.in_node,
      "bytes/s out of a device to others of its node (nccl-tests' bus bandwidth)");
  rate(
      "between_nodes",
      rates.between_nodes,
      "bytes/s out of a device to other nodes");
  rate("device_to_host", rates.device_to_host, "bytes/s of a device");
  rate("host_to_device", rates.host_to_device, "bytes/s of a device");
  rate(
      "host_update",
      rates.host_update,
      "bytes/s of a node in an optimizer's update on the CPUs");
}

namespace {

double half_of(std::string_view name, at::ScalarType dtype) {
  return 0.5 *
         runtime::known_peak_flops(name, dtype, /*uses_tf32=*/false).value();
}

} // namespace

Rates known_rates(const std::string& name) {
  // Half of the data sheets' peaks of products (runtime/profile/device_peak.h),
  // 80 % of memory, 70 % of links: what well-tuned training reaches. One
  // network port of 200 Gbit/s for a device of a server; PCIe 4 for the rest.
  static const std::map<std::string, Rates> known{
      {"a100",
       {.flops_16bit = half_of("A100", at::kBFloat16),
        .flops_32bit = half_of("A100", at::kFloat),
        .device_memory = 1.24e12,
        .in_node = 210e9,
        .between_nodes = 17e9,
        .device_to_host = 20e9,
        .host_to_device = 20e9,
        .host_update = 150e9}},
      {"h100",
       {.flops_16bit = half_of("H100", at::kBFloat16),
        .flops_32bit = half_of("H100", at::kFloat),
        .device_memory = 2.7e12,
        .in_node = 315e9,
        .between_nodes = 35e9,
        .device_to_host = 40e9,
        .host_to_device = 40e9,
        .host_update = 250e9}},
      {"rtx3090",
       {.flops_16bit = half_of("RTX 3090", at::kBFloat16),
        .flops_32bit = half_of("RTX 3090", at::kFloat),
        .device_memory = 0.75e12,
        .in_node = 12e9,
        .between_nodes = 1e9,
        .device_to_host = 20e9,
        .host_to_device = 20e9,
        .host_update = 35e9}},
      {"cpu",
       {.flops_16bit = 5e10,
        .flops_32bit = 5e10,
        .device_memory = 10e9,
        .in_node = 5e9,
        .between_nodes = 1e9,
        .device_to_host = 10e9,
        .host_to_device = 10e9,
        .host_update = 10e9}}};
  const auto found = known.find(name);
  if (found == known.end()) {
    std::string names;
    for (const auto& [one, rates] : known) {
      names += (names.empty() ? "" : ", ") + one;
    }
    TESSERA_FAIL("there are no rates of '{}'; known are {}", name, names);
  }
  return found->second;
}

namespace {

/// What shards are sent with. Between nodes, the bus bandwidth of a ring is
/// what leaves a node, of all its devices.
void read_comm(const nlohmann::json& comm, Rates& rates) {
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

} // namespace

Rates measured_rates(const nlohmann::json& bench, Rates rates) {
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

} // namespace tessera::tools
