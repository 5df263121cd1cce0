// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

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

Rates known_rates(const std::string& name) {
  // Half of the data sheets' peaks of products, 80 % of memory, 70 % of links:
  // what well-tuned training reaches. One network port of 200 Gbit/s for a
  // device of a server; PCIe 4 for the rest.
  static const std::map<std::string, Rates> known{
      {"a100",
       {.flops_16bit = 156e12,
        .flops_32bit = 9.7e12,
        .device_memory = 1.24e12,
        .in_node = 210e9,
        .between_nodes = 17e9,
        .device_to_host = 20e9,
        .host_to_device = 20e9,
        .host_update = 150e9}},
      {"h100",
       {.flops_16bit = 495e12,
        .flops_32bit = 33e12,
        .device_memory = 2.7e12,
        .in_node = 315e9,
        .between_nodes = 35e9,
        .device_to_host = 40e9,
        .host_to_device = 40e9,
        .host_update = 250e9}},
      {"rtx3090",
       {.flops_16bit = 35e12,
        .flops_32bit = 17e12,
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
  return rates;
}

} // namespace tessera::tools
