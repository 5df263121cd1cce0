// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/device_rates.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/profile/device_peak.h"

#include <map>
#include <utility>

namespace tessera::planner {

void visit_fields(runtime::OptionFields& fields, DeviceRates& rates) {
  const auto rate = [&](const char* key, double& value, const char* meaning) {
    fields.field(key, value, {.min = 0, .open_min = true}, meaning);
  };
  rate(
      "flops_16bit",
      rates.flops_16bit,
      "operations/s of a device, matrix products of 16 bits");
  rate("flops_32bit", rates.flops_32bit, "the same of 32 bits");
  rate(
      "flops_rounded",
      rates.flops_rounded,
      "the same of 32 bits on the CPU with factors rounded to bfloat16 (cpu_matmul)");
  rate(
      "attention_16bit",
      rates.attention_16bit,
      "operations/s of a device, fused attention of 16 bits");
  rate(
      "device_memory", rates.device_memory, "bytes/s of a device's own memory");
  rate(
      "in_node",
      rates.in_node,
      "bytes/s out of a device to others of its node (nccl-tests' bus bandwidth)");
  rate(
      "between_nodes",
      rates.between_nodes,
      "bytes/s out of a device to other nodes, by its own link beside those of the node's other devices");
  rate("device_to_host", rates.device_to_host, "bytes/s of a device");
  rate("host_to_device", rates.host_to_device, "bytes/s of a device");
  rate(
      "host_update",
      rates.host_update,
      "bytes/s of a node in an optimizer's update on the CPUs");
  rate(
      "nvme",
      rates.nvme,
      "bytes/s of a node's NVMe disks, in either direction");
}

std::optional<std::string> assumed_rate(const DeviceRates& rates) {
  if (!rates.rounds_products || rates.flops_rounded > 0) {
    return std::nullopt;
  }
  return "products with factors rounded to bfloat16 (cpu_matmul) take as long as others of 32 bits: their rate is not known. `tessera bench --json` measures it on a processor with AVX512-BF16 (--bandwidths); or give --rate flops_rounded=NUMBER";
}

namespace {

/// What no data sheet of the device says: 70 % of its links, one network port
/// of 200 Gbit/s for a device of a server, PCIe 4 but for Hopper (5) and V100
/// and RTX 2080 Ti (3), and the memory of usual hosts.
struct KnownDevice {
  const char* data_sheet; ///< empty: the rates are all in `others`
  DeviceRates others;
};

const std::map<std::string, KnownDevice>& known_devices() {
  const DeviceRates hopper{
      .in_node = 315e9,
      .between_nodes = 35e9,
      .device_to_host = 40e9,
      .host_to_device = 40e9,
      .host_update = 250e9};
  // GeForce cards in a desktop computer, without NVLink.
  const DeviceRates desktop{
      .in_node = 12e9,
      .between_nodes = 1e9,
      .device_to_host = 20e9,
      .host_to_device = 20e9,
      .host_update = 35e9};
  static const std::map<std::string, KnownDevice> known{
      {"a100",
       {"A100",
        {.in_node = 210e9,
         .between_nodes = 17e9,
         .device_to_host = 20e9,
         .host_to_device = 20e9,
         .host_update = 150e9}}},
      {"h100", {"H100", hopper}},
      {"h200", {"H200", hopper}},
      {"v100",
       {"V100",
        {.in_node = 105e9,
         .between_nodes = 8e9,
         .device_to_host = 10e9,
         .host_to_device = 10e9,
         .host_update = 100e9}}},
      {"rtx3090", {"RTX 3090", desktop}},
      {"rtx4090", {"RTX 4090", desktop}},
      {"rtx2080ti",
       {"RTX 2080 Ti",
        {.in_node = 8e9,
         .between_nodes = 1e9,
         .device_to_host = 10e9,
         .host_to_device = 10e9,
         .host_update = 30e9}}},
      {"cpu",
       {"",
        {.flops_16bit = 5e10,
         .flops_32bit = 5e10,
         .attention_16bit = 5e10,
         .device_memory = 10e9,
         .in_node = 5e9,
         .between_nodes = 1e9,
         .device_to_host = 10e9,
         .host_to_device = 10e9,
         .host_update = 10e9}}}};
  return known;
}

const KnownDevice& known_device(const std::string& name) {
  const auto& known = known_devices();
  const auto found = known.find(name);
  if (found == known.end()) {
    std::string names;
    for (const auto& [one, rates] : known) {
      names += (names.empty() ? "" : ", ") + one;
    }
    TESSERA_FAIL(
        "there are no rates of '{}'; known are {}. Plan for the one that is most like it; `tessera plan` replaces its rates by --rate KEY=NUMBER",
        name,
        names);
  }
  return found->second;
}

/// Of a data sheet, by RateUse. For kernels: what is reported of H100, 680 of
/// 989 TFLOP/s in products of training's shapes, and 3.0 of 3.35 TB/s in
/// copies. Attention: cuDNN's kernels, which LibTorch prefers there, reach 410
/// to 520 TFLOP/s with 1024 to 4096 tokens and heads of 128 features, forward
/// under a causal mask and backward (arXiv:2407.08608, figures 5 and 6).
struct Fractions {
  double flops;
  double attention;
  double memory;
};

Fractions fractions_of(RateUse use) {
  return use == RateUse::kSteps ? Fractions{0.5, 0.5, 0.8}
                                : Fractions{0.6875, 0.45, 0.9};
}

} // namespace

DeviceRates known_rates(const std::string& name, RateUse use) {
  const KnownDevice& device = known_device(name);
  DeviceRates rates = device.others;
  const std::string sheet = device.data_sheet;
  if (!sheet.empty()) {
    const auto [flops, attention, memory] = fractions_of(use);
    const double peak_16bit = peak_flops(name, at::kHalf).value();
    rates.flops_16bit = flops * peak_16bit;
    rates.attention_16bit = attention * peak_16bit;
    rates.flops_32bit = flops * peak_flops(name, at::kFloat).value();
    rates.device_memory = memory * runtime::known_memory_rate(sheet).value();
  }
  return rates;
}

std::optional<std::string> rates_name(const std::string& driver_name) {
  const auto sheet_of = [](const std::string& name) {
    return std::pair(
        runtime::known_peak_flops(name, at::kHalf, /*uses_tf32=*/false),
        runtime::known_memory_rate(name));
  };
  for (const auto& [name, device] : known_devices()) {
    const std::string sheet = device.data_sheet;
    if (!sheet.empty() && driver_name.find(sheet) != driver_name.npos &&
        sheet_of(driver_name) == sheet_of(sheet)) {
      return name;
    }
  }
  return std::nullopt;
}

std::optional<double> peak_flops(
    const std::string& name,
    c10::ScalarType dtype) {
  return runtime::known_peak_flops(
      known_device(name).data_sheet, dtype, /*uses_tf32=*/false);
}

} // namespace tessera::planner
